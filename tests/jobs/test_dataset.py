"""The files that remote trainers read: split by group, or as the table says; the same bytes for the same seed."""

import json

import pytest

from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright.config.backend_config import NemoRlConfig
from pairwright.jobs import BackendError
from pairwright.jobs.dataset import write_dataset
from pairwright.jobs.nemo_rl import refuse_unfaithful

NAMES = ("train.jsonl", "validation.jsonl")


def written(tmp_path, pairs=None, *, target="trl", validation=0.2, seed=0, name="out"):
    table = pairs_table(tmp_path / "pairs", pairs)
    return write_dataset(table, tmp_path / name, target=target, names=NAMES, validation=validation, seed=seed)


def prompts(path):
    return [json.loads(line)["prompt"][0]["content"] for line in path.read_text().splitlines()]


def test_no_prompt_is_in_both_splits_and_no_pair_is_lost(tmp_path):
    made = written(tmp_path, [pair(task, n) for task in range(50) for n in range(4)])
    training, validation = prompts(made.training), prompts(made.validation)
    assert set(training) & set(validation) == set()
    assert len(training) + len(validation) == made.num_training + made.num_validation == 200
    assert 0.05 < made.num_validation / 200 < 0.45


def test_tasks_that_share_a_prompt_stay_together(tmp_path):
    from pairwright import Message

    same = [Message("user", "the same question")]
    shared = [pair(task, prompt=same) for task in range(10)]
    made = written(tmp_path, shared + [pair(task) for task in range(20, 40)])
    sides = ["the same question" in prompts(path) for path in (made.training, made.validation)]
    assert sorted(sides) == [False, True]


def test_a_split_that_the_table_has_is_kept(tmp_path):
    made = written(
        tmp_path, [pair(task, split="validation" if task == 3 else "train") for task in range(10)], validation=0.9
    )
    assert prompts(made.validation) == ["What is 3 + 3?"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_split(tmp_path):
    first, again, other = (written(tmp_path, seed=seed, name=name) for seed, name in ((1, "a"), (1, "b"), (2, "c")))
    assert first.training.read_bytes() == again.training.read_bytes()
    assert prompts(first.validation) != prompts(other.validation)


def test_without_a_share_there_is_no_validation_file(tmp_path):
    made = written(tmp_path, validation=0)
    assert made.validation is None
    assert made.num_training == 20
    assert not (tmp_path / "out" / "validation.jsonl").exists()


def test_one_group_cannot_be_split_and_the_error_suggests_a_fix(tmp_path):
    with pytest.raises(BackendError, match="validation: 0"):
        written(tmp_path, [pair(1, n) for n in range(5)])


def test_what_does_not_fit_is_counted_and_nothing_at_all_is_refused(tmp_path):
    odd = [pair_with_tool_results(task) for task in range(50, 53)]
    made = written(tmp_path, [*odd, *(pair(task) for task in range(20))], target="customizer", name="some")
    assert made.refused == {"prompt_is_not_one_user_message": 3}
    assert made.num_training + made.num_validation == 20
    assert "refused: prompt_is_not_one_user_message 3" in str(made)
    with pytest.raises(BackendError, match="prompt_is_not_one_user_message"):
        written(tmp_path, odd * 4, target="customizer", name="none")


def test_data_that_would_be_trained_otherwise_is_refused_unless_accepted(tmp_path):
    made = written(tmp_path, [pair_with_tool_results(task) for task in range(20)])
    assert made.noted == {"several_messages_a_side": 20, "arguments_as_text": 20}
    with pytest.raises(BackendError, match=r"several_messages_a_side 20.*accept_other_data: true"):
        refuse_unfaithful(made, NemoRlConfig())
    refuse_unfaithful(made, NemoRlConfig(accept_other_data=True))
