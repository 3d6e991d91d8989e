"""Advantages and rewards that were recorded for single tokens decide about these tokens, and are never guessed."""

import json

import numpy as np
import pytest
import torch

from pairwright.config import Config
from pairwright.ledger.run_status import read_status
from pairwright.records.experience import EID, CustomField, Experience
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.training import train
from pairwright.training.model.load_model import load_model
from training.made_runs import make_model

PROMPT, ANSWER = [1, 30, 31, 5, 4], [40, 41, 42, 5]
SETTINGS = {"channels": {"dpo": 0, "grpo": 1}, "batch_size": 4, "learning_rate": 1e-3, "threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("signals") / "model")


def table_of(folder, runs):
    """Runs of one task with the same tokens; each is given by what differs."""
    with Table(folder) as table:
        table.append(
            [
                Experience(
                    eid=EID(batch=0, task=0, run=number),
                    kind="single_turn",
                    prompt=[Message("user", "?")],
                    completion=[Message("assistant")],  # the ids say it all
                    tokens=np.array(PROMPT + answer, np.int32),
                    prompt_length=len(PROMPT),
                    **fields,
                )
                for number, (answer, fields) in enumerate(runs)
            ]
        )
    return folder


def run(model, runs, output, tokens=None, **settings):
    config = Config.model_validate({"train": {**SETTINGS, **settings}, "tokens": tokens or {}})
    train(config, model=model, experience=runs, output=output)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def logps(model, answer):
    """Log-probability of each token of an answer."""
    ids = torch.tensor([PROMPT + answer])
    with torch.no_grad():
        found = load_model(model, Config().train)(ids).logits.log_softmax(-1)[0]
    return found[len(PROMPT) - 1 : -1].gather(1, ids[0, len(PROMPT) :, None])[:, 0]


def test_recorded_advantages_are_taken_as_they_are(model, tmp_path):
    values = [np.array(row, np.float32) for row in ([1, 2, 3, 4], [-1, 0, 0, -1])]
    runs = table_of(tmp_path / "runs", [(ANSWER, {"advantages": row, "reward": 1.0}) for row in values])
    rows = run(model, runs, tmp_path / "run", epochs=1)
    # the ratio is 1: the loss is minus the mean of the advantages of the eight trained tokens
    assert rows[0]["loss"] == pytest.approx(-(10 - 2) / 8, abs=1e-6)
    assert read_status(tmp_path / "run").counts["grpo"]["runs_by_token"] == 2


def test_rewards_of_steps_raise_what_led_to_them_in_runs_that_scored_alike(model, tmp_path):
    # both runs have the reward 1; in one the first token was good, in the other it was bad
    rewards = [np.array(row, np.float32) for row in ([1, 0, 0, 0], [-1, 0, 0, 0])]
    answers = [ANSWER, [50, 41, 42, 5]]
    runs = table_of(
        tmp_path / "runs",
        [(answer, {"token_level_reward": row, "reward": 1.0}) for answer, row in zip(answers, rewards, strict=True)],
    )
    rows = run(model, runs, tmp_path / "run", epochs=6)
    assert rows[0]["loss"] == pytest.approx(0.0, abs=1e-6)
    before, after = (logps(folder, ANSWER)[0] for folder in (model, tmp_path / "run" / "model"))
    other_before, other_after = (logps(folder, answers[1])[0] for folder in (model, tmp_path / "run" / "model"))
    assert after - before > 0.01
    assert other_after - other_before < -0.01


def test_a_group_of_which_one_run_has_no_rewards_of_tokens_is_compared_by_its_runs_rewards(model, tmp_path):
    rewards = np.array([5, 5, 5, 5], np.float32)
    runs = table_of(
        tmp_path / "runs", [(ANSWER, {"reward": 1.0, "token_level_reward": rewards}), (ANSWER, {"reward": 0.0})]
    )
    run(model, runs, tmp_path / "run", epochs=1)
    counts = read_status(tmp_path / "run").counts["grpo"]
    assert "runs_by_token" not in counts
    assert (counts["flat_groups"], counts["token_rewards_unused"]) == (0, 1)


def test_unscored_runs_are_trained_by_the_rewards_of_their_tokens(model, tmp_path):
    rewards = [np.array(row, np.float32) for row in ([1, 0, 0, 2], [3, 0, 0, 0])]
    runs = table_of(tmp_path / "runs", [(ANSWER, {"token_level_reward": row}) for row in rewards] + [(ANSWER, {})])
    rows = run(model, runs, tmp_path / "run", epochs=1)
    assert np.isfinite(rows[0]["loss"])
    counts = read_status(tmp_path / "run").counts["grpo"]
    assert (counts["runs_by_token"], counts["unscored"]) == (2, 1)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_a_run_whose_reward_is_not_finite_is_counted_as_unscored(reward, model, tmp_path):
    runs = table_of(tmp_path / "runs", [(ANSWER, {"reward": value}) for value in (0.0, 1.0, reward)])
    rows = run(model, runs, tmp_path / "run", epochs=1)
    assert np.isfinite(rows[0]["loss"])
    assert read_status(tmp_path / "run").counts["grpo"]["unscored"] == 1


def test_an_unscored_run_whose_rewards_of_tokens_cannot_be_compared_is_counted(model, tmp_path):
    rewards = np.array([1, 0, 0, 2], np.float32)
    scored = [(ANSWER, {"reward": value}) for value in (0.0, 1.0)]
    runs = table_of(tmp_path / "runs", [(ANSWER, {"token_level_reward": rewards}), *scored])
    run(model, runs, tmp_path / "run", epochs=1)
    counts = read_status(tmp_path / "run").counts["grpo"]
    assert (counts["token_rewards_unused"], counts["unscored"]) == (1, 1)
    assert "runs_by_token" not in counts


def test_values_of_tokens_that_were_cut_off_are_not_used_and_counted(model, tmp_path):
    rewards = [np.array(row, np.float32) for row in ([1, 0, 0, 0], [0, 0, 0, 2])]
    scored = [{"token_level_reward": row, "reward": float(number)} for number, row in enumerate(rewards)]
    runs = table_of(tmp_path / "runs", [(ANSWER, fields) for fields in scored])
    run(model, runs, tmp_path / "run", tokens={"max_length": 7, "truncation": "keep_end"}, epochs=1)
    counts = read_status(tmp_path / "run").counts["grpo"]
    assert counts["token_rewards_unused"] == 2
    assert "runs_by_token" not in counts


@pytest.mark.parametrize("name", ["token_level_reward", "advantages"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_never_taken_for_zero(name, bad, model, tmp_path):
    values = [np.array(row, np.float32) for row in ([1, bad, 0, 0], [0, 0, 0, 2])]
    scored = [{name: row, "reward": float(number)} for number, row in enumerate(values)]
    runs = table_of(tmp_path / "runs", [(ANSWER, fields) for fields in scored])
    rows = run(model, runs, tmp_path / "run", epochs=1)
    assert np.isfinite(rows[0]["loss"])
    counts = read_status(tmp_path / "run").counts["grpo"]
    assert counts["token_rewards_not_finite"] == 1
    assert counts.get("runs_by_token") == (1 if name == "advantages" else None)


def test_recorded_but_unused_values_are_reported(model, tmp_path):
    field = CustomField("w", "weight", "float32")
    values = np.ones(4, np.float32)
    fields = [
        {"reward": reward, "teacher_logprobs": -values, "returns": values, "info": {"w": 1.0}, "custom_fields": [field]}
        for reward in (0.0, 1.0)
    ]
    runs = table_of(tmp_path / "runs", [(ANSWER, row) for row in fields])
    run(model, runs, tmp_path / "run", epochs=1)
    status = read_status(tmp_path / "run")
    names = ("teacher_logprobs", "returns", "custom_fields")
    assert [status.counts["grpo"][f"{name}_unused"] for name in names] == [2, 2, 2]
    notes = " ".join(status.notes)
    assert "2 runs have teacher_logprobs, which are not used" in notes
    assert "2 runs have returns, which are not used" in notes
