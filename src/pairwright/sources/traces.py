"""A trace, as all tracing tools have it: model calls and tool runs in the order in which they happened, and scores."""

from typing import Any

import msgspec

from pairwright.canonical import content_hash
from pairwright.messages import Json, Message
from pairwright.sources.fields import identifier

TASK_KEYS = ("task_id", "task.id", "gen_ai.task.id", "taskId", "dataset_item_id", "reference_example_id", "instance_id")


class Failure(msgspec.Struct, frozen=True):
    kind: str
    text: str


class ModelCall(msgspec.Struct, frozen=True):
    """One request to the model. `parent` is the span that it belongs to."""

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
    """One execution of a tool; `call_id` is the id that the model gave the call, where it was logged."""

    id: str
    name: str
    output: Any = None
    arguments: Any = None
    call_id: str | None = None
    parent: str | None = None
    failure: Failure | None = None


class Score(msgspec.Struct, frozen=True):
    """A score of the whole trace, or of the span `target` and what lies under it."""

    name: str
    value: Any
    target: str | None = None


class Trace(msgspec.Struct, frozen=True):
    """A trace: its calls and tool runs in the order in which they happened."""

    id: int | str | None
    events: list[ModelCall | ToolRun]
    scores: list[Score] = []
    parents: dict[str, str | None] = {}
    task: int | str | None = None
    info: Json = {}


def task_in(*places: Any) -> int | str | None:
    """The task id among a trace's own attributes, under the names in use."""
    for place in places:
        if isinstance(place, dict):
            for key in TASK_KEYS:
                if (found := identifier(place.get(key))) is not None:
                    return found
    return None


def run_of(name: int | str | None, position: int) -> int:
    """The number of a run that has a name: 48 bits of its hash, so that runs of different files stay apart."""
    return position if name is None or name == "" else int(content_hash(name)[:12], 16)


def outermost_of(spans: list[str], parents: dict[str, str | None]) -> set[str]:
    """The spans that lie in none of the others: a provider's call inside a framework's is the same call again."""
    given, outermost = set(spans), set()
    for span in spans:
        above = parents.get(span)
        for _ in range(100):  # a bound, since hostile parents may form a ring
            if above is None or above in given:
                break
            above = parents.get(above)
        if above is None or above not in given or above == span:
            outermost.add(span)
    return outermost
