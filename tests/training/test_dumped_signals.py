"""Dumped batches contain the other inputs of a loss, equal to those of an independent computation."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pairwright.config import Config
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.training import train
from training.made_runs import made_pair, make_model

PROMPT = [1, 30, 31, 5, 4]
REWARDS = {0: [0.0, 1.0, 0.25], 1: [3.0, -1.0, 0.5]}  # of the runs of two tasks


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("dumped") / "model")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Recorded runs; the first of each task has no log-probabilities."""
    folder = tmp_path_factory.mktemp("dumped") / "runs"
    with Table(folder) as table:
        for task, rewards in REWARDS.items():
            for number, reward in enumerate(rewards):
                answer = [40 + task, 43 + number, 42, 5]
                logprobs = {"logprobs": recorded_logprobs(task, number)} if number else {}
                table.append(
                    [
                        Experience(
                            eid=EID(batch=0, task=task, run=number, suffix=f"{task}-{number}"),
                            kind="single_turn",
                            prompt=[Message("user", f"? {task}")],
                            completion=[Message("assistant")],
                            tokens=np.array(PROMPT + answer, np.int32),
                            prompt_length=len(PROMPT),
                            reward=reward,
                            **logprobs,
                        )
                    ]
                )
    return folder


def recorded_logprobs(task: int, number: int) -> np.ndarray:
    return np.array([-0.5, -0.25 * number, -1.0, -0.125 - task], np.float32)


def dump(model: Path, output: Path, channel: str, **sources: Path) -> list[dict]:
    """The items of the first update."""
    channels = {"dpo": 0, channel: 1}
    settings = {
        "channels": channels,
        "batch_size": 6,
        "max_steps": 1,
        "threads": 1,
        "dump_batches": 1,
        "kto": {"sft_loss_weight": 1},
    }
    reference = {"reference": str(sources.pop("reference"))} if "reference" in sources else {}
    config = Config.model_validate({"train": settings | reference})
    train(config, model=model, output=output, **sources)
    (path,) = (output / "batches").iterdir()
    return json.loads(path.read_text())["channels"][channel]


def score(model: Path, item: dict) -> list[list[float | None]]:
    """Log-probabilities of an item's trained tokens by transformers, with null where nothing is trained."""
    network = AutoModelForCausalLM.from_pretrained(model).eval()
    rows = []
    for branch, mask in zip(item["branches"], item["masks"], strict=True):
        ids = torch.tensor([item["prompt"] + branch])
        with torch.no_grad():
            logps = network(ids).logits.float().log_softmax(-1)[0]
        # A token is predicted at the position before it.
        start = len(item["prompt"])
        values = [float(logps[start + place - 1, token]) for place, token in enumerate(branch)]
        rows.append([value if trained else None for value, trained in zip(values, mask, strict=True)])
    return rows


def name_of(item: dict) -> tuple[int, int]:
    task, number = json.loads(item["id"])[-1].split("-")
    return int(task), int(number)


def flat(rows: list[list[float | None]]) -> list[float]:
    return [value for row in rows for value in row if value is not None]


def test_advantages_and_log_probabilities_of_grpo_are_those_of_the_runs(model, runs, tmp_path) -> None:
    items = dump(model, tmp_path, "grpo", experience=runs)
    assert len(items) == 6
    for item in items:
        task, number = name_of(item)
        rewards = REWARDS[task]
        wanted = (rewards[number] - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-4)
        (mask,), (advantages,), (logprobs,) = item["masks"], item["advantages"], item["logprobs"]
        assert mask[-4:] == [True] * 4
        assert advantages == pytest.approx([wanted if trained else 0.0 for trained in mask], rel=1e-5)
        recorded = recorded_logprobs(task, number).tolist() if number else [None] * 4
        assert logprobs[-4:] == recorded
        assert set(logprobs[:-4]) <= {None}


def test_labels_of_kto_are_those_of_the_rewards(model, runs, tmp_path) -> None:
    items = dump(model, tmp_path, "kto", experience=runs)
    everything = [reward for rewards in REWARDS.values() for reward in rewards]
    halfway = (min(everything) + max(everything)) / 2
    labels = {name_of(item): item["label"] for item in items}
    assert labels == {
        (task, number): reward >= halfway for task, own in REWARDS.items() for number, reward in enumerate(own)
    }
    assert set(labels.values()) == {True, False}
    for item in items:
        assert flat(item["reference_logprobs"]) == pytest.approx(flat(score(model, item)), abs=1e-4)


def test_the_loss_of_pairs_can_be_computed_from_the_dump(model, tmp_path) -> None:
    weights = [0.5, 1.0, 2.0, 4.0]
    pairs = [made_pair(number, weight=weight) for number, weight in enumerate(weights)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    other = make_model(tmp_path / "other", seed=7)
    items = dump(model, tmp_path / "out", "dpo", pairs=tmp_path / "pairs", reference=other)
    assert {item["id"]: item["weight"] for item in items} == {pair.id: pair.weight for pair in pairs}
    losses = []
    for item in items:
        known = item["reference_logprobs"]
        assert flat(known) == pytest.approx(flat(score(other, item)), abs=1e-4)
        chosen, rejected = (
            sum(flat([own])) - sum(flat([reference])) for own, reference in zip(score(model, item), known, strict=True)
        )
        options = Config().train.dpo
        margin = torch.tensor(options.beta * (chosen - rejected))
        likelihood = statistics.mean(flat(score(model, item)[:1]))  # of the chosen side, per token
        losses.append(-float(torch.nn.functional.logsigmoid(margin)) - options.sft_loss_weight * likelihood)
    wanted = np.average(losses, weights=[item["weight"] for item in items])
    first = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(wanted, rel=1e-3)
