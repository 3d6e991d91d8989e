"""Several processes that train one model end with the weights of one process and report what it reports."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from train.made_runs import make_model, make_pairs

OPTIONS = ["--batch-size", "5", "--epochs", "2", "--learning-rate", "1e-3", "--set", "threads=1", "--seed", "3"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A model, pairs whose number no batch and no two processes divide, and a run of one process on them."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model")
    make_pairs(folder / "pairs", 13, held=3)
    run(folder, "alone", [sys.executable, "-m", "pairwright.cli"])
    return folder


def run(folder, name, launcher, *more):
    command = [*launcher, "train", "--model", "model", "--pairs", "pairs", "-o", name, *OPTIONS, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(folder, name, expected="alone"):
    """The same weights and metrics within 1e-5, however they were computed."""
    weights, others = (load_file(folder / one / "model" / "model.safetensors") for one in (expected, name))
    start = load_file(folder / "model" / "model.safetensors")
    assert weights.keys() == others.keys()
    assert max(float((weights[key] - start[key]).abs().max()) for key in weights) > 1e-3, "training moved the weights"
    for key, value in weights.items():
        assert float((value - others[key]).abs().max()) < 1e-5, key
    left, right = rows(folder / expected), rows(folder / name)
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        for key in one.keys() - {"time", "tokens_per_second"}:
            assert other[key] == pytest.approx(one[key], abs=1e-4, rel=1e-4), key


@pytest.mark.slow
def test_two_processes_of_torchrun_end_with_the_weights_of_one(alone):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(alone, "torchrun", [*launcher, "-m", "pairwright.cli"])
    assert_same_run(alone, "torchrun")


@pytest.mark.slow
def test_two_processes_of_accelerate_end_with_the_weights_of_one(alone):
    pytest.importorskip("accelerate")
    launcher = [
        sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "pairwright.cli",
    ]  # fmt: skip
    run(alone, "accelerate", launcher)
    assert_same_run(alone, "accelerate")
