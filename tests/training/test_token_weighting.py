"""Weights of tokens: unlikely ones are not imitated (train.min_probability), reports of rejected sides not pushed away
(train.dpo.contrast)."""

import itertools
import json
import math
from pathlib import Path

import msgspec
import pytest

from ledger.small_flows import make_model, run_of, train_on
from pairwright.config import Config
from pairwright.ledger import build_ledger
from pairwright.store.table import Table
from pairwright.training import train
from pairwright.training.data import DataError

LIKELY, UNLIKELY = math.log(0.5), math.log(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "model")


def with_noise(run):
    """The run with every third sampled token improbable."""
    sampled = iter(range(10**6))
    return msgspec.structs.replace(
        run, logprobs=[(LIKELY if next(sampled) % 3 else UNLIKELY) if own else 0.0 for own in run.action_mask]
    )


def made_runs():
    runs = [run_of(1, 0, ["good", "yes"], reward=1.0, is_recorded=True)]
    return [with_noise(run) for run in [*runs, run_of(1, 1, ["bad", "no"], reward=0.0, is_recorded=True)]]


def dumped_weights(folder: Path) -> dict[tuple[str, int], list[float]]:
    """(channel, branch) -> the weights of the trained tokens of the only item."""
    found = {}
    for channel, items in json.loads(next((folder / "batches").glob("step-*.json")).read_text())["channels"].items():
        for item in items:
            for number, mask in enumerate(item["masks"]):
                found[channel, number] = [
                    weight for weight, own in zip(item["weights"][number], mask, strict=True) if own
                ]
    return found


def expected(run) -> list[float]:
    """The weights by hand: 0 for the tokens with a probability of 0.01."""
    sampled = [value for value, own in zip(run.logprobs, run.action_mask, strict=True) if own]
    return [0.0 if value < -1 else 1.0 for value in sampled]


def test_unlikely_tokens_of_chosen_sides_and_of_runs_have_weight_0_and_those_of_rejected_sides_keep_theirs(
    model, tmp_path
):
    good, bad = made_runs()
    settings = {"min_probability": 0.02, "channels": {"dpo": 1.0, "sft": 1.0}, "dpo": {"contrast": "all"}}
    pairs = train_on(tmp_path / "dpo", model, [good, bad], **settings)
    weights = dumped_weights(pairs)
    assert weights["dpo", 0] == weights["sft", 0] == expected(good)
    assert 0.0 in expected(good)
    assert weights["dpo", 1] == [1.0] * len(expected(bad))
    with Table(tmp_path / "sft" / "experience") as table:
        table.append([good])
    settings = {"channels": {"dpo": 0.0, "sft": 1.0}, "min_probability": 0.02, "threads": 1, "dump_batches": 1}
    config, runs = Config.model_validate({"train": settings, "tokens": {"workers": 1}}), tmp_path / "sft" / "train"
    train(config, model=model, output=runs, experience=tmp_path / "sft" / "experience")
    assert dumped_weights(runs)["sft", 0] == expected(good)
    assert build_ledger("run", pairs).problems == build_ledger("run", runs).problems == []
    counts = json.loads((runs / "train.json").read_text())["counts"]["sft"]
    assert counts["too_unlikely"] == expected(good).count(0.0)


def test_nothing_changes_if_every_token_is_likely_enough(model, tmp_path):
    plain = train_on(tmp_path / "plain", model, made_runs())
    low = train_on(tmp_path / "low", model, made_runs(), min_probability=0.005)
    assert (low / "model" / "model.safetensors").read_bytes() == (plain / "model" / "model.safetensors").read_bytes()


def test_it_is_refused_where_it_would_have_no_effect(model, tmp_path):
    unknown = [msgspec.structs.replace(run, logprobs=None) for run in made_runs()]
    with pytest.raises(DataError, match=r"train\.min_probability needs log-probabilities"):
        train_on(tmp_path / "unknown", model, unknown, min_probability=0.02)
    with pytest.raises(DataError, match="for channels that imitate: dpo and sft"):
        train_on(tmp_path / "grpo", model, made_runs(), min_probability=0.02, channels={"dpo": 0.0, "grpo": 1.0})


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("answers", "trained"),
    [
        (["bad", "no"], [True, False]),  # the report follows from another decision
        (["good", "no"], [True, True]),  # the report is what differs
        (["bad"], [True]),  # a single turn
    ],
)
def test_the_last_turn_of_a_rejected_side_is_pushed_away_only_if_no_earlier_turn_differs(
    model, tmp_path, answers, trained, is_recorded
):
    runs = [
        run_of(1, 0, ["good", "yes"], reward=1.0, is_recorded=is_recorded),
        run_of(1, 1, answers, reward=0.0, is_recorded=is_recorded),
    ]
    folder = train_on(tmp_path, model, runs, dpo={"contrast": "decisions"})
    weights = dumped_weights(folder) if not all(trained) else {("dpo", 1): None}
    counts = json.loads((folder / "train.json").read_text())["counts"]["dpo"]
    assert counts["last_turns_left_out"] == trained.count(False)
    if not all(trained):
        first, second = (len(list(turn)) for _, turn in itertools.groupby(weights["dpo", 1]))
        assert weights["dpo", 1] == [1.0] * first + [0.0] * second
        assert set(weights["dpo", 0]) == {1.0}
    assert build_ledger("run", folder).problems == []
