"""The curriculum: tasks by their mean reward, and stages that grow as NAT's do."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import built, dropped, several

from pairwright.errors import ConfigError
from pairwright.pairs import PairOptions
from pairwright.pairs.curriculum import shares, stage_of_epoch, stages
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import pair_batches


def ten_tasks():
    """Task t0 is the easiest, t9 the hardest; each has one pair."""
    return [row for task in range(10) for row in several(1 - task / 20, 0.1, task=f"t{task}")]


def staged(folder):
    columns = pair_batches(folder / "pairs", ["task", "curriculum_stage"])
    return [row for batch in columns for row in zip(*batch.to_pydict().values(), strict=True)]


def test_stages_begin_with_a_share_of_the_tasks_and_grow(tmp_path):
    _, summary = built(tmp_path, ten_tasks(), curriculum="easy-first", curriculum_start=0.3)
    assert staged(tmp_path) == [(f"t{task}", stage) for task, stage in enumerate([0, 0, 0, 1, 1, 2, 2, 3, 3, 4])]
    assert summary["curriculum"] == [
        {"stage": 0, "from_epoch": 0, "share": 0.3, "pairs": 3},
        {"stage": 1, "from_epoch": 5, "share": 0.5, "pairs": 2},
        {"stage": 2, "from_epoch": 10, "share": 0.7, "pairs": 2},
        {"stage": 3, "from_epoch": 15, "share": 0.9, "pairs": 2},
        {"stage": 4, "from_epoch": 20, "share": 1.0, "pairs": 1},
    ]


def test_hard_tasks_come_first_on_request(tmp_path):
    built(tmp_path, ten_tasks(), curriculum="hard-first", curriculum_start=0.5, curriculum_increment=0.5)
    assert staged(tmp_path) == [(f"t{task}", int(task < 5)) for task in reversed(range(10))]


def test_stages_count_the_tasks_that_are_left(tmp_path):
    _, summary = built(tmp_path, ten_tasks(), curriculum="easy-first", curriculum_share=0.5, curriculum_start=0.4)
    assert dropped(summary) == {Reason.CURRICULUM: 5}
    assert [stage for _, stage in staged(tmp_path)] == [0, 0, 1, 2, 3]


def test_without_stages_the_column_is_null(tmp_path):
    built(tmp_path, ten_tasks(), curriculum="easy-first")
    assert {stage for _, stage in staged(tmp_path)} == {None}


def test_the_stage_is_in_the_pair_and_comes_back(tmp_path):
    pairs, _ = built(tmp_path, ten_tasks(), curriculum="easy-first", curriculum_start=1.0)
    assert {pair.info["curriculum_stage"] for pair in pairs} == {0}


def test_a_trainer_knows_the_stage_of_an_epoch():
    assert [stage_of_epoch(epoch, 5) for epoch in (0, 4, 5, 9, 10)] == [0, 0, 1, 1, 2]


@given(
    st.integers(1, 40), st.sampled_from([0.1, 0.3, 0.5, 1.0]), st.sampled_from([0.1, 0.2, 0.7]), st.integers(0, 9)
)  # fmt: skip
def test_what_is_included_at_a_stage_is_what_nat_would_include(num_tasks, start, increment, stage):
    options = PairOptions(curriculum="easy-first", curriculum_start=start, curriculum_increment=increment)
    found = stages(np.arange(num_tasks), options)
    percentile = min(1.0, round(start + stage * increment, 9))
    assert (found <= stage).sum() == max(1, math.ceil(round(num_tasks * percentile, 9)))
    assert found.max() < len(shares(options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curriculum_start": 0.3}, "--curriculum easy-first"),
        ({"curriculum": "easy-first", "curriculum_start": 0.0}, "above 0"),
        ({"curriculum": "easy-first", "curriculum_increment": 1.5}, "at most 1"),
        ({"curriculum": "easy-first", "curriculum_interval": 0}, "at least 1"),
    ],
)
def test_stages_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PairOptions(**options)
