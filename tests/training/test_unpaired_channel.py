"""The kto channel (runs labelled individually as good or bad), mixtures, a moving reference."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.training import read_status, train
from training.made_runs import WORDS, make_runs


def settings(**changes) -> Config:
    base = {"batch_size": 8, "learning_rate": 1e-3, "threads": 1, "epochs": 2}
    kto = {"sft_loss_weight": 0.1} | changes.pop("kto", {})
    return Config.model_validate({"train": base | changes | {"kto": kto}})


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def make_thumbs(folder, num=12, *, good=lambda number: number % 3 == 0, reward=lambda good: float(good)):
    """Write one run per task, some of them good. No two runs are comparable, so there are no pairs."""
    with Table(folder) as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=number, run=0),
                kind="single_turn",
                prompt=[Message("user", f"{number}: say {WORDS[number % 3]}")],
                completion=[Message("assistant", f"it is {WORDS[number % 3]}" if good(number) else "no, stop")],
                reward=reward(good(number)),
            )
            for number in range(num)
        )
    return folder


def assert_same_weights(first, second, **tolerance):
    first, second = load_file(first / "model/model.safetensors"), load_file(second / "model/model.safetensors")
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], **(tolerance or {"rtol": 0, "atol": 0}))


KTO = {"dpo": 0, "kto": 1}


def test_runs_labelled_individually_are_trained_without_pairs(model, tmp_path):
    runs = make_thumbs(tmp_path / "runs", 24)
    train(
        settings(channels=KTO, epochs=8, kto={"sft_loss_weight": 0}),
        model=model,
        experience=runs,
        output=tmp_path / "run",
    )
    rows = rows_of(tmp_path / "run")
    # Initially the model equals the reference: σ(0) for each example.
    assert rows[0]["loss"] == pytest.approx(0.5, abs=1e-6)
    assert rows[0]["kto/z0"] == 0.0
    assert rows[-1]["kto/rewards_desirable"] > 0 > rows[-1]["kto/rewards_undesirable"]
    assert rows[-1]["kto/accuracies"] > 0.9
    status = read_status(tmp_path / "run")
    assert (status.counts["kto"]["desirable"], status.counts["kto"]["undesirable"]) == (8, 16)
    assert any("8 desirable runs (reward ≥ 0.5), 16 undesirable" in note for note in status.notes)


def test_the_threshold_decides_which_runs_are_desirable(model, tmp_path):
    runs = make_runs(tmp_path / "runs", 4, 3)
    config = settings(channels=KTO, max_steps=1, kto={"threshold": 0.99})
    train(config, model=model, experience=runs, output=tmp_path / "run")
    counts = read_status(tmp_path / "run").counts["kto"]
    assert counts["desirable"] + counts["undesirable"] == 12
    with pytest.raises(PairwrightError, match="all 12 runs are on one side: rewards go from"):
        train(settings(channels=KTO, kto={"threshold": 7}), model=model, experience=runs, output=tmp_path / "high")
    flat = make_thumbs(tmp_path / "flat", 4, good=lambda number: True)
    with pytest.raises(PairwrightError, match="all 4 scored runs have the reward 1: nothing to learn from"):
        train(settings(channels=KTO), model=model, experience=flat, output=tmp_path / "equal")


def test_imbalance_is_reported_with_the_weight_that_balances_it(model, tmp_path):
    runs = make_thumbs(tmp_path / "runs", 12, good=lambda number: number == 0)
    train(settings(channels=KTO, max_steps=1), model=model, experience=runs, output=tmp_path / "run")
    assert any("train.kto.desirable_weight=11 would balance" in note for note in read_status(tmp_path / "run").notes)


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_micro_batches_do_not_change_unpaired_training(model, tmp_path, loss):
    runs = make_thumbs(tmp_path / "runs", 12)
    for name, change in (("whole", {}), ("cut", {"micro_batch_size": 1})):
        config = settings(channels=KTO, kto={"loss": loss}, **change)
        train(config, model=model, experience=runs, output=tmp_path / name)
    assert_same_weights(tmp_path / "whole", tmp_path / "cut", rtol=1e-4, atol=1e-5)
    assert np.allclose(
        [row["loss"] for row in rows_of(tmp_path / "whole")], [row["loss"] for row in rows_of(tmp_path / "cut")]
    )


def test_kto_and_grpo_train_the_same_runs_together(model, tmp_path):
    runs = make_runs(tmp_path / "runs", 4, 3)
    config = settings(channels={"dpo": 0, "grpo": 0.5, "kto": 1}, max_steps=2)
    train(config, model=model, experience=runs, output=tmp_path / "run")
    assert {"grpo/ratio", "kto/z0"} <= rows_of(tmp_path / "run")[0].keys()


@pytest.mark.parametrize("dpo", [{"loss": "kto"}, {"mixture": {"sigmoid": 0.8, "apo_zero": 0.2}}], ids=str)
def test_micro_batches_do_not_change_these_losses(model, pairs, tmp_path, dpo):
    for name, change in (("whole", {}), ("cut", {"micro_batch_size": 3})):
        train(settings(dpo=dpo, **change), model=model, pairs=pairs, output=tmp_path / name)
    assert_same_weights(tmp_path / "whole", tmp_path / "cut", rtol=1e-4, atol=1e-5)
    losses = [[row["loss"] for row in rows_of(tmp_path / name) if "loss" in row] for name in ("whole", "cut")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dpo": {"mixture": {"sft": 1.0}}}, "train.channels.sft=1"),
        ({"dpo": {"mixture": {"dpoo": 1.0}}}, "mixture\n  Value error, expected one of sigmoid"),
        ({"dpo": {"loss_type": ["sigmoid", "ipo"], "loss_weights": [1.0]}}, "got 1 weights for 2 losses"),
    ],
)
def test_incompatible_options_are_refused(changes, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        settings(**changes)


def test_trls_lists_of_losses_are_a_mixture():
    config = settings(dpo={"loss_type": ["sigmoid", "apo_zero"], "loss_weights": [0.8, 0.2]})
    assert config.train.dpo.losses == {"sigmoid": 0.8, "apo_zero": 0.2}
    assert settings().train.dpo.losses == {"sigmoid": 1.0}


def test_labels_by_group_compare_with_the_mean_and_skip_groups_of_equal_rewards(model, tmp_path):
    """Group 0 has rewards 0.8, 0.9, 0.9, group 1 has 0.1, 0.2, 0.1, and all rewards of group 2 are equal."""
    rewards = [[0.8, 0.9, 0.9], [0.1, 0.2, 0.1], [0.5, 0.5, 0.5]]
    with Table(tmp_path / "runs") as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=task, run=run),
                kind="single_turn",
                prompt=[Message("user", f"say {WORDS[task]}")],
                completion=[Message("assistant", f"it is {WORDS[run]}")],
                reward=reward,
            )
            for task, group in enumerate(rewards)
            for run, reward in enumerate(group)
        )
    config = settings(channels=KTO, max_steps=1, kto={"label_by": "group", "sft_loss_weight": 0.1})
    train(config, model=model, experience=tmp_path / "runs", output=tmp_path / "run")
    counts = read_status(tmp_path / "run").counts["kto"]
    assert (counts["desirable"], counts["undesirable"], counts["equal_rewards"]) == (3, 3, 3)
    flat = make_thumbs(tmp_path / "thumbs", 4)
    with pytest.raises(PairwrightError, match="the rewards differ in no group"):
        train(config, model=model, experience=flat, output=tmp_path / "flat")


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        # Two tasks with the same prompt and answers, rewards 1, ½, 0 and 1, 1, 0.
        ({"label_by": "group"}, {"desirable": 3, "undesirable": 3}),
        ({"label_by": "best"}, {"desirable": 3, "undesirable": 3}),
        ({"label_by": "best-worst"}, {"desirable": 3, "undesirable": 2, "without_label": 1}),
        # The answers with rewards 1 and 0 occur in both tasks; the other one is good in the second and bad in the first.
        ({"label_by": "best", "unique": True}, {"desirable": 2, "undesirable": 2, "repeated": 2}),
    ],
)
def test_labels_are_assigned_by_group_and_repeated_answers_count_once(options, counts, model, tmp_path):
    with Table(tmp_path / "runs") as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=task, run=run), kind="single_turn", prompt=[Message("user", "say red")],
                completion=[Message("assistant", text)], reward=reward,
            )
            for task, middle in enumerate((0.5, 1.0))
            for run, (text, reward) in enumerate([("it is red", 1.0), ("red", middle), ("no, blue!", 0.0)])
        )  # fmt: skip
    config = settings(channels=KTO, max_steps=1, kto=options)
    train(config, model=model, experience=tmp_path / "runs", output=tmp_path / "run")
    expected = dict.fromkeys(("without_label", "repeated", "equal_rewards"), 0) | counts
    assert {name: read_status(tmp_path / "run").counts["kto"].get(name, 0) for name in expected} == expected
