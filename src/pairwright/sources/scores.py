"""Scores by name: which of them concern a conversation, and which of those is the reward."""

from typing import Any

from pairwright.messages import Json
from pairwright.sources.fields import score
from pairwright.sources.traces import Score

DEFAULT_NAMES = ("reward", "score")
_MAX_KEPT = 20  # values of one name for one span; more than these say nothing new
_MAX_ANCESTORS = 1000

# What each span (None: the whole trace) was given: by name, the value that was logged last first.
ScoreIndex = dict[str | None, dict[str, list[Any]]]


def pick_reward(components: Json, name: str | None) -> float | None:
    """The component that the user names; by default the one called reward or score, else the only number there is.

    Scores of several names are never averaged: nobody said that they share a scale or a direction.
    """
    if name is not None:
        return score(components.get(name))
    for default in DEFAULT_NAMES:
        if default in components:
            return score(components[default])
    numbers = [value for value in map(score, components.values()) if value is not None]
    return numbers[0] if len(numbers) == 1 else None


def index_scores(scores: list[Score]) -> ScoreIndex:
    found: ScoreIndex = {}
    for one in reversed(scores):
        values = found.setdefault(one.target, {}).setdefault(one.name, [])
        if len(values) < _MAX_KEPT:
            values.append(one.value)
    return found


def nearest_scores(index: ScoreIndex, spans: list[str], parents: dict[str, str | None]) -> tuple[Json, Json]:
    """Of each name the nearest score (of the spans, then of an ancestor, then of the trace), and all where several."""
    distances: dict[str, int] = {}
    for given in spans:
        span: str | None = given
        for distance in range(_MAX_ANCESTORS):  # a bound, since hostile parents may form a ring
            if span is None or distance >= distances.get(span, _MAX_ANCESTORS):
                break
            distances[span] = distance
            span = parents.get(span)
    scored = [
        (distance, -position, span) for position, (span, distance) in enumerate(distances.items()) if span in index
    ]
    values: dict[str, list[Any]] = {}
    for target in [*(span for *_, span in sorted(scored)), None]:
        for name, found in index.get(target, {}).items():
            values.setdefault(name, []).extend(found)
    more = {name: found for name, found in values.items() if len(found) > 1}
    return {name: found[0] for name, found in values.items()}, more
