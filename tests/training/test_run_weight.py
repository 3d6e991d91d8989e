"""A run that is several sequences, since its template rewrites history, counts as several, or by option as one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ledger.small_flows import dumped, make_model, train_on
from pairwright.config.train_config import PolicyConfig
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message
from pairwright.tokens.sequence import Sequence
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.policy_gradient import PolicyChannel
from pairwright.training.data import PolicyData


def sequence(length: int) -> Sequence:
    mask = [False] + [True] * (length - 1)
    return Sequence(ids=list(range(length)), mask=mask, message_index=[1] * length, paint=[0] * length)


@pytest.fixture
def data() -> PolicyData:
    """One group: run a is three sequences with reward 1, run b one with reward 0."""
    sequences = [sequence(length) for length in (2, 3, 4, 5)]
    return PolicyData(
        ids=["a", "a", "a", "b"], sequences=sequences, lengths=np.array([2, 3, 4, 5]),
        rewards=np.array([1, 1, 1, 0], np.float32), groups=np.zeros(4, np.int64), weights=np.ones(4, np.float32), counts={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by", "weights", "advantages", "totals"),
    [
        # The mean reward of four sequences is ¾; that of two runs ½.
        ("sequence", [1, 1, 1, 1], [0.25, 0.25, 0.25, -0.75], {"token": 1 + 2 + 3 + 4, "sequence": 4}),
        ("run", [1 / 3, 1 / 3, 1 / 3, 1], [0.5, 0.5, 0.5, -0.5], {"token": (1 + 2 + 3) / 3 + 4, "sequence": 2}),
    ],
)
def test_weights_advantages_and_totals_are_of_sequences_or_of_runs(data, by, weights, advantages, totals):
    data = replace(data, weights=np.array(weights, np.float32))
    for aggregation, total in totals.items():
        options = PolicyConfig(aggregation=aggregation, advantage="dr_grpo")
        channel = PolicyChannel(data, options, 1.0, lambda items: BatchOrder(items, 4, 0, False), None, run_weight=by)
        assert [float(channel._advantage(item)[0]) for item in range(4)] == pytest.approx(advantages)
        assert channel.total(np.arange(4)) == pytest.approx(total)


def test_both_ways_train_the_same_batches_with_another_loss(tmp_path):
    model = make_model(tmp_path / "model", "drops old reasoning")
    turns = [
        Message("assistant", "ok", reasoning="hm"),
        Message("user", "hi"),
        Message("assistant", "there", reasoning="so"),
    ]
    runs = [
        Experience(
            eid=EID(0, 0, number, 0, f"r{number}"), kind="multi_turn", prompt=[Message("user", "hi")],
            completion=completion, reward=float(number),
        )
        for number, completion in enumerate((turns, [Message("assistant", "look", reasoning="please")]))
    ]  # fmt: skip
    losses, batches = {}, {}
    for by in ("sequence", "run"):
        folder = train_on(
            tmp_path / by, model, runs, channels={"grpo": 1.0}, max_steps=1, batch_size=3, run_weight=by,
        )  # fmt: skip
        batches[by] = dumped(folder)
        lines = Path(folder / "metrics.jsonl").read_text().splitlines()
        losses[by] = next(json.loads(line)["loss"] for line in lines if "loss" in json.loads(line))
    assert batches["sequence"] == batches["run"]
    assert len([name for name, *_ in batches["run"] if name == "grpo"]) == 3  # two of the first run, one of the second
    assert losses["sequence"] != pytest.approx(losses["run"])
