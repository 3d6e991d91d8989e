"""The curriculum: tasks in the order of their mean reward."""

import msgspec
import pytest
from made_tables import built, several

from pairwright.errors import TableError
from pairwright.pairs.pair_table import pair_batches, pairs_to_batch, read_curriculum, read_pairs, write_pairs


def ten_tasks():
    """Task t0 is the easiest, t9 the hardest; each has one pair."""
    return [row for task in range(10) for row in several(1 - task / 20, 0.1, task=f"t{task}")]


@pytest.mark.parametrize("curriculum", ["easy-first", "hard-first"])
def test_pairs_are_in_the_order_of_their_tasks(tmp_path, curriculum):
    pairs, _ = built(tmp_path, ten_tasks(), curriculum=curriculum)
    tasks = [f"t{task}" for task in range(10)]
    assert [pair.chosen_eid.task for pair in pairs] == (tasks if curriculum == "easy-first" else tasks[::-1])
    assert read_curriculum(tmp_path / "pairs") == curriculum
    (batch,) = pair_batches(tmp_path / "pairs", ["curriculum_stage"])
    assert batch.column(0).null_count == 10


def test_pairs_without_a_curriculum_have_none(tmp_path):
    built(tmp_path, ten_tasks())
    assert read_curriculum(tmp_path / "pairs") is None
    (tmp_path / "pairs" / "funnel.json").unlink()
    assert read_curriculum(tmp_path / "pairs") is None


def test_the_stages_of_earlier_versions_are_read_and_their_training_is_refused(tmp_path):
    pairs, _ = built(tmp_path, ten_tasks(), curriculum="easy-first")
    staged = [msgspec.structs.replace(pair, info={**pair.info, "curriculum_stage": 1}) for pair in pairs]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(staged)])
    assert list(read_pairs(tmp_path / "pairs")) == staged
    with pytest.raises(TableError, match="stages of a curriculum, which only earlier versions train"):
        read_curriculum(tmp_path / "pairs")
