"""Names of NAT and NeMo Gym are understood, and contradictions between names are refused."""

import pytest

from pairwright.errors import ConfigError
from pairwright.pairs import PairOptions
from pairwright.pairs.config_names import FOREIGN_NAMES, own_names


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"exhaustive_pairs": True}, {"strategy": "all"}),
        ({"exhaustive_pairs": False, "min_score_diff": 0.1}, {"strategy": "best-worst", "min_gap": 0.1}),
        ({"max_pairs_per_turn": 5, "max_pairs": 9}, {"max_pairs_per_group": 5, "max_pairs": 9}),
        ({"reward_from_score_diff": True}, {"weight": "gap"}),
        ({"reward_from_score_diff": False}, {"weight": "chosen"}),
        ({"require_multiple_candidates": False, "deduplicate_pairs": False}, {"dedupe": False}),
        ({"same_prompt": True, "min_gap": 0.2}, {"strategy": "best-worst", "min_gap": 0.2}),
        ({"strategy": "same_prompt"}, {"strategy": "best-worst"}),
        ({"strategy": "stratified", "high_threshold": 0.8, "low_threshold": 0.2}, {"strategy": "stratified", "high": 0.8, "low": 0.2}),
        ({"seed": 3}, {"seed": 3}),
    ],
)  # fmt: skip
def test_their_names_become_ours(theirs, ours):
    assert own_names(theirs) == ours


def test_every_name_leads_to_an_option_that_exists():
    values = dict.fromkeys(FOREIGN_NAMES, True)
    for name, value in values.items():
        for own in own_names({name: value}):
            assert own in PairOptions.__dataclass_fields__


def test_two_names_that_disagree_are_refused():
    with pytest.raises(ConfigError, match=r"pairs.min_score_diff: says min_gap is 0.2, but min_gap says 0.1"):
        own_names({"min_gap": 0.1, "min_score_diff": 0.2})
    assert own_names({"min_gap": 0.1, "min_score_diff": 0.1}) == {"min_gap": 0.1}


def test_a_switch_is_true_or_false():
    with pytest.raises(ConfigError, match="expected true or false"):
        own_names({"exhaustive_pairs": "yes"})
