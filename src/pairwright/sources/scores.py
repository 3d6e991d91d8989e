"""Which of several named scores is the reward."""

from pairwright.messages import Json
from pairwright.sources.fields import score

DEFAULT_NAMES = ("reward", "score")


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
