"""The `pairs` section in the names of NAT's trajectory builder and NeMo Gym's script."""

from collections.abc import Mapping
from typing import Any

from pairwright.errors import ConfigError

# Options that differ only in their name
_RENAMED = {
    "min_score_diff": "min_gap",
    "max_pairs_per_turn": "max_pairs_per_group",
    "deduplicate_pairs": "dedupe",
    "high_threshold": "high",
    "low_threshold": "low",
}
# Boolean options of NAT and Gym: our options for true and for false
_SWITCHES: dict[str, dict[bool, dict[str, Any]]] = {
    "exhaustive_pairs": {True: {"strategy": "all"}, False: {"strategy": "best-worst"}},
    "reward_from_score_diff": {True: {"weight": "gap"}, False: {"weight": "chosen"}},
    "require_multiple_candidates": {True: {}, False: {}},
    "same_prompt": {True: {"strategy": "best-worst"}, False: {"strategy": "stratified", "across_groups": True}},
    "stratified": {True: {"strategy": "stratified"}, False: {}},
}
_STRATEGIES = {"same_prompt": "best-worst", "given": "imported"}  # Gym's name, and our former name
FOREIGN_NAMES = (*_RENAMED, *_SWITCHES)


def own_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with every name of NAT's or Gym's replaced by ours.

    >>> own_names({"exhaustive_pairs": False, "min_score_diff": 0.1})
    {'strategy': 'best-worst', 'min_gap': 0.1}
    """
    own: dict[str, Any] = {}
    origins: dict[str, str] = {}  # our key: the foreign name that set it
    for name, value in section.items():
        if name == "strategy" and isinstance(value, str):
            value = _STRATEGIES.get(value, value)
        if name in _SWITCHES and not isinstance(value, bool):
            raise ConfigError(f"pairs.{name}: got {value!r}, expected true or false")
        settings = _SWITCHES[name][value] if name in _SWITCHES else {_RENAMED.get(name, name): value}
        for key, setting in settings.items():
            if key in own and own[key] != setting:
                raise ConfigError(
                    f"pairs.{name}: says {key} is {setting!r}, but {origins[key]} says {own[key]!r}: drop one"
                )
            own[key], origins[key] = setting, name
    return own
