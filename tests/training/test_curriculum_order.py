"""A curriculum is trained in the order in which it was built: stages by epoch, or the order of the table if there are no stages."""

import json

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from pairwright import EID, Experience, Message, Table
from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.errors import TableError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.pair_table import pair_batches, pairs_to_batch, read_pairs, write_pairs
from pairwright.service.rows.job_progress import summary
from pairwright.tokens.stage.stage import encode_source
from pairwright.training import read_status, train
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.data import DataError
from training.made_runs import made_pair


def staged_pairs(folder, **options):
    """Ten tasks with one pair each, the easiest first; with the defaults two, six and ten tasks in three stages."""
    with Table(folder / "experience") as table:
        table.append(
            Experience(
                eid=EID(0, task, run, suffix="s"), kind="single_turn", prompt=[Message("user", f"say {task}")],
                completion=[Message("assistant", f"it is {task} {run}")], reward=(1 - task / 20) * run,
            )
            for task in range(10) for run in range(2)
        )  # fmt: skip
    stages = {"curriculum_start": 0.2, "curriculum_increment": 0.4, "curriculum_interval": 2}
    options = PairOptions(**{"curriculum": "easy-first", **stages, **options})
    build_pairs([Table(folder / "experience")], folder / "pairs", options)
    return folder / "pairs"


def column(pairs, name):
    return dict(
        row for batch in pair_batches(pairs, ["id", name]) for row in zip(*batch.to_pydict().values(), strict=True)
    )


def config(**changes):
    base = {"batch_size": 4, "learning_rate": 1e-3, "threads": 1, "epochs": 5, "dump_batches": 99}
    return Config.model_validate({"train": base | changes})


def batches_of(run, channel="dpo"):
    files = sorted((run / "batches").glob("step-*.json"))
    return [[item["id"] for item in json.loads(path.read_bytes())["channels"][channel]] for path in files]


def epochs_of(run):
    return [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_each_epoch_trains_the_stages_that_are_in(model, tmp_path):
    pairs = staged_pairs(tmp_path)
    result = train(config(), model=model, pairs=pairs, output=tmp_path / "run")
    stage = column(pairs, "curriculum_stage")
    batches = batches_of(tmp_path / "run")
    # epochs 1-2 have 2 pairs (1 update), 3-4 have 6 (2 updates), the fifth has 10 (3 updates)
    assert [len(batch) for batch in batches] == [2, 2, 4, 2, 4, 2, 4, 4, 2]
    assert (result.num_steps, len(batches)) == (9, 9)
    for epoch, steps in enumerate(([0], [1], [2, 3], [4, 5], [6, 7, 8])):
        trained = [pair for step in steps for pair in batches[step]]
        assert sorted(trained) == sorted(pair for pair in stage if stage[pair] <= epoch // 2)
    assert batches[2] + batches[3] != batches[4] + batches[5]  # shuffled anew among what is in
    assert epochs_of(tmp_path / "run") == [
        1.0,
        2.0,
        2.5,
        3.0,
        3.5,
        4.0,
        pytest.approx(4.3333),
        pytest.approx(4.6667),
        5.0,
    ]
    status = read_status(tmp_path / "run")
    assert (status.epoch, status.num_steps, status.steps_per_epoch) == (5.0, 9, 3)
    assert "first epoch has 2 of 10 items, the last 10" in " ".join(status.notes)


def test_pairs_that_no_epoch_reaches_are_reported(model, tmp_path):
    train(config(epochs=3), model=model, pairs=staged_pairs(tmp_path), output=tmp_path / "run")
    assert "4 are never trained: all are in from epoch 5 on" in " ".join(read_status(tmp_path / "run").notes)


def test_a_curriculum_without_stages_is_not_shuffled_away(model, tmp_path):
    pairs = staged_pairs(tmp_path, curriculum_start=None)
    train(config(epochs=2), model=model, pairs=pairs, output=tmp_path / "run")
    table = [pair.id for pair in read_pairs(pairs)]
    trained = [pair for batch in batches_of(tmp_path / "run") for pair in batch]
    assert trained == table * 2
    assert "order of the table" in " ".join(read_status(tmp_path / "run").notes)


def test_the_order_of_the_table_counts_and_not_that_of_the_cache(model, tmp_path):
    """The tokens come from the cache, which has the order of an earlier build of the table."""
    tokens = tmp_path / "tokens"
    for name in ("hard-first", "easy-first"):
        pairs = staged_pairs(tmp_path / name, curriculum=name, curriculum_start=None)
        if not tokens.exists():
            encode_source(pairs, tokens, TokensConfig(tokenizer=str(model)), num_workers=1)
        train(config(epochs=1), model=model, pairs=pairs, output=tmp_path / name / "run", tokens=tokens)
        trained = [pair for batch in batches_of(tmp_path / name / "run") for pair in batch]
        assert trained == [pair.id for pair in read_pairs(pairs)]


def test_sft_on_the_chosen_sides_follows_the_same_stages(model, tmp_path):
    channels = {"dpo": 1.0, "sft": 0.5}
    train(config(channels=channels), model=model, pairs=staged_pairs(tmp_path), output=tmp_path / "run")
    assert batches_of(tmp_path / "run", "dpo") == batches_of(tmp_path / "run", "sft")


def test_validation_and_checkpoints_come_at_the_end_of_each_epoch_however_long_it_is(model, tmp_path):
    pairs = staged_pairs(tmp_path, validation=0.2)
    train(config(batch_size=2), model=model, pairs=pairs, output=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if "eval_loss" in row] == [1.0, 2.0, 3.0, 4.0, 5.0]
    status = read_status(tmp_path / "run")
    (best,) = {row["epoch"] for row in rows if row["step"] == status.best_step}
    assert status.best_epoch == best - 1
    assert summary(tmp_path / "run", is_completed=True)["best_epoch"] == best - 1


def test_a_stopped_run_resumes_in_the_right_stage(model, tmp_path):
    pairs = staged_pairs(tmp_path)
    whole = train(config(), model=model, pairs=pairs, output=tmp_path / "whole")

    def stop(event):
        if event["kind"] == "step" and event["step"] == 7:
            raise KeyboardInterrupt

    # the checkpoint is of step 5, in the middle of the fourth epoch and of the second stage
    with pytest.raises(KeyboardInterrupt):
        train(config(save_every=5), model=model, pairs=pairs, output=tmp_path / "again", progress=stop)
    assert [path.name for path in (tmp_path / "again/checkpoints").iterdir()] == ["step-00000005"]
    result = train(config(save_every=5), model=model, pairs=pairs, output=tmp_path / "again", resume=True)
    assert result.num_steps == whole.num_steps
    assert batches_of(tmp_path / "again") == batches_of(tmp_path / "whole")
    first, second = (load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_stages_that_nothing_dates_are_refused(model, tmp_path):
    pairs = staged_pairs(tmp_path)
    (pairs / "funnel.json").unlink()
    with pytest.raises(TableError, match="when each begins"):
        train(config(), model=model, pairs=pairs, output=tmp_path / "run")


def test_a_run_that_ends_before_the_first_pair_is_an_error(model, tmp_path):
    late = [msgspec.structs.replace(made_pair(number), info={"curriculum_stage": 2}) for number in range(4)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(late)])
    (tmp_path / "pairs/funnel.json").write_text('{"options": {"curriculum": "easy-first", "curriculum_interval": 2}}')
    with pytest.raises(DataError, match="the first update is in epoch 5"):
        train(config(epochs=4), model=model, pairs=tmp_path / "pairs", output=tmp_path / "run")
    result = train(config(epochs=5), model=model, pairs=tmp_path / "pairs", output=tmp_path / "other")
    assert result.num_steps == 1


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 7), st.integers(1, 3), st.integers(1, 12),
    st.booleans(),
)  # fmt: skip
def test_an_order_is_a_pure_function_of_the_step(stages, batch_size, interval, epochs, shuffle):
    items, stages = np.arange(len(stages)) + 100, np.array(stages)
    order = BatchOrder(items, batch_size, 7, shuffle, stages=stages, interval=interval)
    step = 0
    for epoch in range(epochs):
        wanted = items[stages <= epoch // interval]
        num_steps = -(-len(wanted) // batch_size)
        trained = [order.batch(step + place).tolist() for place in range(num_steps)]
        assert sorted(item for batch in trained for item in batch) == wanted.tolist()
        for place in range(num_steps):
            assert order.locate(step + place) == (epoch, place)
            assert order.num_epochs(step + place + 1) == pytest.approx(epoch + (place + 1) / num_steps)
            assert order.ends_period(step + place + 1, None) is (place == num_steps - 1)
            assert order.steps_in_epoch_of(step + place) == num_steps
        step += num_steps
        assert order.num_steps(epoch + 1) == step
    again = BatchOrder(items, batch_size, 7, shuffle, stages=stages, interval=interval)
    for place in reversed(range(step)):
        assert again.batch(place).tolist() == order.batch(place).tolist()


def test_periods_without_stages_are_as_they_were():
    order = BatchOrder(np.arange(10), batch_size=3, seed=0)
    assert [step for step in range(1, 13) if order.ends_period(step, None)] == [4, 8, 12]
    assert [step for step in range(1, 13) if order.ends_period(step, 0.5)] == [2, 4, 6, 8, 10, 12]
    assert [step for step in range(1, 13) if order.ends_period(step, 5.0)] == [5, 10]
    assert [order.num_epochs(step) for step in (0, 1, 4, 6)] == [0.0, 0.25, 1.0, 1.5]
