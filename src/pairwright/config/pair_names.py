"""The `pairs` section of a configuration, in our names or in those of NAT's trajectory builder and NeMo Gym's script.

    NAT   exhaustive_pairs, min_score_diff, max_pairs_per_turn, reward_from_score_diff, require_multiple_candidates,
          deduplicate_pairs, max_pairs, curriculum_learning: {enabled, initial_percentile, increment_percentile,
          expansion_interval, sort_ascending}
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
_STRATEGIES = {"same_prompt": "best-worst", "given": "imported"}  # Gym's name, and our old one
_CURRICULUM = {
    "initial_percentile": "curriculum_start",
    "increment_percentile": "curriculum_increment",
    "expansion_interval": "curriculum_interval",
}
_NAT_START = 0.3
_NOT_OURS = {
    "min_reward_diff": "a group without different rewards gives no pair; min_gap bounds the gap of each",
    "random_subsample": "max_pairs draws a sample",
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
        if name == "strategy" and isinstance(value, str):
            value = _STRATEGIES.get(value, value)
        for own, meant in _meant(name, value).items():
            if own in found and found[own] != meant:
                raise ConfigError(
                    f"pairs.{name}: says {own} is {meant!r}, but {said_by[own]} says {found[own]!r}: drop one"
                )
            found[own], said_by[own] = meant, name
    return found


def _meant(name: str, value: Any) -> dict[str, Any]:
    if name == "curriculum_learning":
        return _curriculum(value)
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(f"pairs.{name}: got {value!r}, expected true or false")
        return _SWITCHES[name][value]
    return {_RENAMED.get(name, name): value}


def _curriculum(section: Any) -> dict[str, Any]:
    """NAT's section: tasks by mean reward, in stages that begin with a share of them and grow."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"pairs.curriculum_learning: got {section!r}, expected keys and values")
    known = {"enabled": False, "sort_ascending": False, **dict.fromkeys(_CURRICULUM), **dict.fromkeys(_NOT_OURS)}
    for name, value in section.items():
        if name not in known:
            raise ConfigError(f"pairs.curriculum_learning: unknown key {name!r}; known keys: {', '.join(known)}")
        if name in _NOT_OURS and value is not None:
            raise ConfigError(f"pairs.curriculum_learning.{name}: leave it out: {_NOT_OURS[name]}")
    said = {**known, **section}
    if not said["enabled"]:
        return {}
    found = {own: section[name] for name, own in _CURRICULUM.items() if section.get(name) is not None}
    order = "hard-first" if said["sort_ascending"] else "easy-first"
    return {"curriculum": order, "curriculum_start": _NAT_START, **found}
