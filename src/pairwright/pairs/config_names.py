"""The `pairs` section of a configuration, in our names or in those of NAT's trajectory builder and NeMo Gym's script.

    NAT   exhaustive_pairs, min_score_diff, max_pairs_per_turn, reward_from_score_diff, require_multiple_candidates,
          deduplicate_pairs, max_pairs
    Gym   same_prompt, min_gap, high_threshold, low_threshold

A name of theirs and ours for one thing, with different values, is an error. Where theirs did less than its name says
(require_multiple_candidates: false never made a pair of one candidate) it is accepted and changes nothing.
"""

from collections.abc import Mapping
from typing import Any

from pairwright.errors import ConfigError

_RENAMED = {
    "min_score_diff": "min_gap",
    "max_pairs_per_turn": "max_pairs_per_group",
    "deduplicate_pairs": "dedupe",
    "high_threshold": "high",
    "low_threshold": "low",
}
_SWITCHES: dict[str, dict[bool, dict[str, Any]]] = {
    "exhaustive_pairs": {True: {"strategy": "all"}, False: {"strategy": "best-worst"}},
    "reward_from_score_diff": {True: {"weight": "gap"}, False: {"weight": "chosen"}},
    "require_multiple_candidates": {True: {}, False: {}},
    "same_prompt": {True: {"strategy": "best-worst"}, False: {"strategy": "stratified", "across_groups": True}},
    "stratified": {True: {"strategy": "stratified"}, False: {}},
}
FOREIGN_NAMES = (*_RENAMED, *_SWITCHES)


def own_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with every name of NAT's or Gym's replaced by ours.

    >>> own_names({"exhaustive_pairs": False, "min_score_diff": 0.1})
    {'strategy': 'best-worst', 'min_gap': 0.1}
    """
    found: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, value in section.items():
        if name == "strategy" and value == "same_prompt":
            value = "best-worst"
        for own, meant in _meant(name, value).items():
            if own in found and found[own] != meant:
                raise ConfigError(
                    f"pairs.{name}: says {own} is {meant!r}, but {said_by[own]} says {found[own]!r}: drop one"
                )
            found[own], said_by[own] = meant, name
    return found


def _meant(name: str, value: Any) -> dict[str, Any]:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"pairs.{name}: got {value!r}, expected true or false")
        return _SWITCHES[name][value]
    return {_RENAMED.get(name, name): value}
