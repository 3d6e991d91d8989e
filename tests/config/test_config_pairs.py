"""Names of NAT and NeMo Gym are understood, and contradictions between names are refused."""

import json

import pytest

from pairwright.config import PairsConfig
from pairwright.config.pairs_names import FOREIGN_NAMES, own_names
from pairwright.errors import ConfigError
from pairwright.pairs import PairOptions


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
            assert own in PairOptions.model_fields


def test_two_names_that_disagree_are_refused():
    with pytest.raises(ConfigError, match=r"pairs.min_score_diff: says min_gap is 0.2, but min_gap says 0.1"):
        own_names({"min_gap": 0.1, "min_score_diff": 0.2})
    assert own_names({"min_gap": 0.1, "min_score_diff": 0.1}) == {"min_gap": 0.1}


def test_a_switch_is_true_or_false():
    with pytest.raises(ConfigError, match="expected true or false"):
        own_names({"exhaustive_pairs": "yes"})


def test_the_options_of_pair_building_are_the_section_and_a_seed():
    from pairwright.config import Config, PairsConfig
    from pairwright.pairs.options import pair_options

    assert pair_options(Config()) == PairOptions()
    assert list(PairOptions.model_fields) == [*PairsConfig.model_fields, "seed"]


def test_the_old_name_of_imported_is_accepted_and_keeps_the_key_of_its_stage(tmp_path):
    from pairwright.config import load_config

    path = tmp_path / "config.yaml"
    path.write_text("pairs: {strategy: given}\n")
    section = load_config(path).pairs
    assert section == load_config(overrides=[("pairs.strategy", "imported")]).pairs
    assert (section.strategy, section.content()["strategy"]) == ("imported", "given")
    assert PairOptions(strategy="given").as_json()["strategy"] == "imported"
    assert "verbatim" not in section.content()  # which older runs did not have
    assert PairOptions(strategy="imported", verbatim=True).content()["verbatim"] is True


def test_the_key_of_a_stage_has_thresholds_as_they_were_written(tmp_path):
    from pairwright.config import load_config

    path = tmp_path / "config.yaml"
    path.write_text("pairs: {high: q0.80, low: 0.25}\n")
    section = load_config(path).pairs
    assert (section.content()["high"], section.content()["low"]) == ("q0.80", 0.25)
    assert (str(section.high), section.low.value) == ("q0.8", 0.25)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{min_gap: 0.2, max_gap: 0.1}", "pairs.max_gap: got 0.1, expected at least min_gap, 0.2"),
        ("{high: much}", "pairs.high: expected a reward such as 0.7 or a quantile such as q0.8"),
        ("{across_groups: true}", "pairs.across_groups: only the strategy 'stratified'"),
        ("{votes: 's3://bucket/votes.csv'}", "pairs.votes: an address, but votes are read on this machine only"),
        ("{memory_megabytes: lots}", "pairs.memory_megabytes: expected megabytes, or a size such as 512MB or 2GB"),
    ],
)
def test_errors_of_a_file_name_the_key(tmp_path, section, problem):
    from pairwright.config import load_config

    path = tmp_path / "config.yaml"
    path.write_text(f"pairs: {section}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"strategy": "best"}, "strategy: got 'best', expected one of all, best-worst"),
        ({"min_gap": -1}, "min_gap: got -1, expected at least 0"),
        ({"high": "much"}, "high: got 'much', expected a reward"),
        ({"mingap": 1}, "unknown key 'mingap'; did you mean 'min_gap'?"),
    ],
)
def test_errors_of_python_options_are_ours_and_have_the_value(options, problem):
    with pytest.raises(ConfigError) as caught:
        PairOptions(**options)
    assert str(caught.value).startswith(problem)


def test_names_of_nat_and_gym_work_in_a_configuration_and_contradictions_are_refused(tmp_path):
    from pairwright.config import load_config
    from pairwright.pairs.options import pair_options

    path = tmp_path / "config.yaml"
    path.write_text("seed: 3\npairs: {exhaustive_pairs: false, min_score_diff: 0.1, high_threshold: q0.8}\n")
    options = pair_options(load_config(path))
    assert (options.strategy, options.min_gap, str(options.high), options.seed) == ("best-worst", 0.1, "q0.8", 3)
    path.write_text("pairs: {min_gap: 0.2, min_score_diff: 0.1}\n")
    with pytest.raises(ConfigError, match="drop one"):
        load_config(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tree", True), ("balance_by", "reweight"), ("curriculum_start", 0.3), ("curriculum_learning", {"enabled": True})],
)
def test_a_removed_option_says_what_holds_now(tmp_path, key, value):
    from pairwright.config import load_config

    (tmp_path / "run.yaml").write_text(json.dumps({"pairs": {key: value}}))
    with pytest.raises(ConfigError, match=f"unknown key 'pairs.{key}', which was removed: "):
        load_config(tmp_path / "run.yaml")


def test_a_preset_gives_defaults_and_what_is_set_beside_it_wins():
    preset = PairsConfig.model_validate({"preset": "gym-guide"})
    assert (preset.strategy, preset.min_gap) == ("best-worst", 0.2)
    beside = PairsConfig.model_validate({"preset": "gym-guide", "min_score_diff": 0.5})
    assert (beside.strategy, beside.min_gap) == ("best-worst", 0.5)
    assert preset.content() == PairsConfig(strategy="best-worst", min_gap=0.2).content()
    with pytest.raises(ValueError, match="gym-guide"):
        PairsConfig.model_validate({"preset": "other"})
