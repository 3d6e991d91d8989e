"""Training in several processes gives the weights and the reports of training in one process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pairwright.config.config_file import adjust_config
from pairwright.errors import ConfigError
from pairwright.ledger.run_status import read_status
from training.cases_script import CASES, MODELS
from training.made_runs import make_failed_runs, make_model, make_pairs

pytestmark = pytest.mark.stress

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
OPTIONS = ["--batch-size", "5", "--epochs", "2", "--learning-rate", "1e-3", "--set", "train.threads=1", "--seed", "3"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A model, pairs whose number no batch and no two processes divide, and a run of one process on them.

    The last batch of an epoch is one pair: the second process has nothing to do.
    """
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "model")
    make_pairs(folder / "pairs", 11, held=3)
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
        left_out = {"time", "tokens_per_second"}
        # Before the first update the policy is its reference: the sign of a margin that is zero is that of a rounding.
        if abs(one.get("rewards/margins", 1.0)) < 1e-6:
            left_out.add("rewards/accuracies")
        for key in one.keys() - left_out:
            assert other[key] == pytest.approx(one[key], abs=1e-4, rel=1e-4), key


@pytest.mark.slow
def test_two_processes_of_torchrun_end_with_the_weights_of_one(alone):
    run(alone, "torchrun", [*TORCHRUN, "-m", "pairwright.cli"])
    assert_same_run(alone, "torchrun")


@pytest.mark.slow
def test_two_processes_of_accelerate_end_with_the_weights_of_one(alone):
    pytest.importorskip("accelerate")
    launcher = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "pairwright.cli",
    ]  # fmt: skip
    done = run(alone, "accelerate", launcher)
    told = (done.stdout + done.stderr).count("the model is in")
    assert told == 2, "each process says so; with --cpu there would be only one"
    assert_same_run(alone, "accelerate")


@pytest.mark.slow
def test_processes_with_different_numbers_of_parts_end_with_the_weights_of_one(alone):
    """With parts of one pair, the processes have three and two of them, two and one in validation, one and none."""
    run(alone, "parts", [*TORCHRUN, "-m", "pairwright.cli"], "--set", "train.micro_batch_size=1")
    assert_same_run(alone, "parts")


@pytest.mark.slow
def test_a_run_resumes_from_a_checkpoint_of_another_number_of_processes(alone):
    every = ["train.save_every=1", "train.val_check_interval=1", "train.keep_top_k=99"]
    two, one = [*TORCHRUN, "-m", "pairwright.cli"], [sys.executable, "-m", "pairwright.cli"]
    run(alone, "whole", two, *every)
    run(alone, "whole-alone", one, *every)
    assert_same_run(alone, "whole", "whole-alone")
    for name, source, launcher in (("by-two", "whole-alone", two), ("by-one", "whole", one)):
        cut(alone / source, alone / name, step=3)
        run(alone, name, launcher, *every, "--resume")
        assert_same_run(alone, name, "whole-alone")


def cut(source, folder, *, step):
    """A copy of a run as it was right after the checkpoint of a step."""
    shutil.copytree(source, folder)
    shutil.rmtree(folder / "model")
    kept = 0
    for place in sorted((folder / "checkpoints").iterdir()):
        if int(place.name.split("-")[1]) > step:
            shutil.rmtree(place)
        else:
            kept += 1
    assert kept == step


@pytest.mark.slow
def test_every_kind_of_training_by_two_processes_ends_with_the_weights_of_one(tmp_path):
    """Adapters, losses with a separate pass, all channels, teachers, another reference, tied weights, experts."""
    make_model(tmp_path / "model")
    make_model(tmp_path / "other", seed=7)
    for kind in MODELS:
        make_model(tmp_path / kind, kind)
    make_pairs(tmp_path / "pairs", 11, held=3)
    make_failed_runs(tmp_path / "failed")
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    for launcher, name in (([sys.executable], "one"), (TORCHRUN, "two")):
        command = [*launcher, "-m", "training.cases_script", str(tmp_path), name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
    for case in CASES:
        one, two = (next((tmp_path / name / case).glob("*/*model.safetensors")) for name in ("one", "two"))
        assert one.relative_to(tmp_path / "one") == two.relative_to(tmp_path / "two")
        weights, others = load_file(one), load_file(two)
        assert weights.keys() == others.keys()
        for key, value in weights.items():
            assert CASES[case].get("dropout") or float((value - others[key]).abs().max()) < 1e-5, (case, key)
        assert read_status(tmp_path / "one" / case).notes == read_status(tmp_path / "two" / case).notes
    assert (tmp_path / "two" / "bad" / "batches" / "bad-00000000.json").exists()


def test_the_removed_option_for_shards_names_what_replaces_it():
    with pytest.raises(ConfigError, match="--backend trl and accelerate's FSDP"):
        adjust_config(train={"sharding": "full"})
