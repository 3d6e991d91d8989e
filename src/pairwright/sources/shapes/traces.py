"""Traces in a form common to all tracing tools: model calls and tool runs in chronological order, and their scores."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from pairwright.records.messages import Json, Message, content_hash
from pairwright.sources.fields import identifier, score

TASK_KEYS = ("task_id", "task.id", "gen_ai.task.id", "taskId", "dataset_item_id", "reference_example_id", "instance_id")
DEFAULT_NAMES = ("reward", "score")
_LESS_IS_BETTER = re.compile(r"hallucinat|toxic|bias|latency|duration|cost|error|loss|perplexity|harm|violation")
_MAX_KEPT = 20  # values of one name for one span
_MAX_ANCESTORS = 1000

# Scores per span (None: the whole trace) and name, most recent value first.
ScoreIndex = dict[str | None, dict[str, list[Any]]]


class Failure(msgspec.Struct, frozen=True):
    kind: str
    text: str


class ModelCall(msgspec.Struct, frozen=True):
    """One request to the model; `parent` is the enclosing span."""

    id: str
    input: list[Message]
    output: list[Message]
    tools: list[Json] = []
    parent: str | None = None
    model: str | None = None
    failure: Failure | None = None
    usage: dict[str, int | float] = {}
    flat: bool = False
    notes: Json = {}


class ToolRun(msgspec.Struct, frozen=True):
    """One tool execution; `call_id` is the id of the model's tool call, if it was logged."""

    id: str
    name: str
    output: Any = None
    arguments: Any = None
    call_id: str | None = None
    parent: str | None = None
    failure: Failure | None = None


class Score(msgspec.Struct, frozen=True):
    """A score of the whole trace, or of the span `target` and its descendants."""

    name: str
    value: Any
    target: str | None = None


class Trace(msgspec.Struct, frozen=True):
    """A trace: its model calls and tool runs in chronological order, scores, and span hierarchy."""

    id: int | str | None
    events: list[ModelCall | ToolRun]
    scores: list[Score] = []
    parents: dict[str, str | None] = {}
    task: int | str | None = None
    info: Json = {}
    refused: list[str] = []  # reasons why calls could not be read


def task_in(*places: Any) -> int | str | None:
    """Return the first task id found in the given attribute dicts, under any of TASK_KEYS."""
    for place in places:
        if isinstance(place, dict):
            for key in TASK_KEYS:
                if (task := identifier(place.get(key))) is not None:
                    return task
    return None


def run_of(name: int | str | None, position: int) -> int:
    """Derive a run number from a name (48 bits of its hash, to avoid collisions between files); default `position`."""
    return position if name is None or name == "" else int(content_hash(name)[:12], 16)


def outermost_of(spans: Iterable[str], parents: dict[str, str | None]) -> set[str]:
    """Return the spans not nested in any other: a provider's span inside a framework's span is the same call."""
    own, outermost = set(spans), set()
    if own.isdisjoint(parents.values()):  # none of them encloses anything
        return own
    for span in spans:
        above = parents.get(span)
        for _ in range(100):  # bounded, since the parents of an untrusted file may form a cycle
            if above is None or above in own:
                break
            above = parents.get(above)
        if above is None or above not in own or above == span:
            outermost.add(span)
    return outermost


def pick_reward(components: Json, name: str | None) -> float | None:
    """Select the named component; by default "reward" or "score", else the only number.

    Scores with different names are never averaged: their scales and directions may differ.
    """
    if name is not None:
        return score(components.get(name))
    for default in DEFAULT_NAMES:
        if default in components:
            return score(components[default])
    numbers = {name: value for name, item in components.items() if (value := score(item)) is not None}
    # The only score is the reward, unless its name means that lower is better.
    names = list(numbers)
    return numbers[names[0]] if len(names) == 1 and not _LESS_IS_BETTER.search(str(names[0]).lower()) else None


def index_scores(scores: list[Score]) -> ScoreIndex:
    """Group scores by target span and name, most recent value first."""
    by_target: ScoreIndex = {}
    # Backwards, so that the last value comes first: corrections override earlier values.
    for one in reversed(scores):
        values = by_target.setdefault(one.target, {}).setdefault(one.name, [])
        if len(values) < _MAX_KEPT:
            values.append(one.value)
    return by_target


def nearest_scores(index: ScoreIndex, spans: list[str], parents: dict[str, str | None]) -> tuple[Json, Json]:
    """Return the nearest score per name (from the spans, then ancestors, then the trace), and all values if several.

    >>> index = index_scores([Score("helpful", 0.5, "agent"), Score("helpful", 1.0)])  # of the span, of the trace
    >>> nearest_scores(index, ["call"], {"call": "agent"})
    ({'helpful': 0.5}, {'helpful': [0.5, 1.0]})
    """
    targets: list[str | None] = [None]  # the whole trace is last
    if len(index) > (None in index):
        # Span -> number of levels above the nearest call; 0 for the call itself.
        distances: dict[str, int] = {}
        for own_span in spans:
            span: str | None = own_span
            for distance in range(_MAX_ANCESTORS):  # bounded, since the parents of an untrusted file may form a cycle
                if span is None or distance >= distances.get(span, _MAX_ANCESTORS):
                    break
                distances[span] = distance
                span = parents.get(span)
        # Nearest first; at equal distance, the later call first.
        scored = [(distance, -position, span) for position, (span, distance) in enumerate(distances.items())]
        targets = [*(span for *_, span in sorted(scored) if span in index), None]
    values: dict[str, list[Any]] = {}
    for target in targets:
        for name, numbers in index.get(target, {}).items():
            values[name] = values[name] + numbers if name in values else numbers
    more = {name: numbers for name, numbers in values.items() if len(numbers) > 1}
    return {name: numbers[0] for name, numbers in values.items()}, more
