"""Several processes that train one model end with the weights of one process and report what it reports."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pairwright.config import Config
from pairwright.ledger.run_status import read_status
from pairwright.training import train
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.sharded_tensors import write_tensors
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
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_of_accelerate_end_with_the_weights_of_one(sharding, alone):
    pytest.importorskip("accelerate")
    launcher = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "pairwright.cli",
    ]  # fmt: skip
    done = run(alone, f"accelerate-{sharding}", launcher, "--set", f"train.sharding={sharding}")
    told = (done.stdout + done.stderr).count("the model is in")
    assert told == 2, "each process says so; with --cpu there would be only one"
    assert_same_run(alone, f"accelerate-{sharding}")


@pytest.mark.slow
@pytest.mark.parametrize("options", [["micro_batch_tokens=4096"], ["micro_batch_size=1"]], ids=["one part", "parts"])
def test_two_processes_in_shards_end_with_the_weights_of_one(options, alone):
    """With parts of one pair, the processes have three and two of them, two and one in validation, one and none."""
    name = "-".join(["sharded", *options])
    settings = [word for option in ["sharding=full", *options] for word in ("--set", f"train.{option}")]
    run(alone, name, [*TORCHRUN, "-m", "pairwright.cli"], *settings)
    assert_same_run(alone, name)
    assert not read_status(alone / name).notes
    files = [sorted(path.name for path in (alone / one / "model").iterdir()) for one in ("alone", name)]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_run_in_shards_goes_on_from_a_checkpoint_whoever_wrote_it(alone):
    """From its own it ends with the same bits; from one of a single process, or that process from its, within 1e-5."""
    every = ["train.save_every=1", "train.val_check_interval=1", "train.keep_top_k=99"]
    sharded, launcher = [*every, "train.sharding=full"], [*TORCHRUN, "-m", "pairwright.cli"]
    single = [sys.executable, "-m", "pairwright.cli"]
    run(alone, "whole", launcher, *sharded)
    run(alone, "whole-alone", single, *every)
    assert_same_run(alone, "whole", "whole-alone")
    for name, source in (("own", "whole"), ("from-alone", "whole-alone"), ("by-one", "whole")):
        cut(alone / source, alone / name, step=3)
    run(alone, "own", launcher, *sharded, "--resume")
    run(alone, "from-alone", launcher, *sharded, "--resume")
    run(alone, "by-one", single, *every, "--resume")
    one, other = (load_file(alone / name / "model" / "model.safetensors") for name in ("whole", "own"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    for name in ("own", "from-alone", "by-one"):
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
def test_every_kind_of_training_in_shards_ends_with_the_weights_of_one_process(tmp_path):
    """Adapters, losses with a pass of their own, all channels, teachers, another reference, tied weights, experts."""
    make_model(tmp_path / "model")
    make_model(tmp_path / "other", seed=7)
    for kind in MODELS:
        make_model(tmp_path / kind, kind)
    make_pairs(tmp_path / "pairs", 11, held=3)
    make_failed_runs(tmp_path / "failed")
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    for launcher, name, sharding in (([sys.executable], "one", "none"), (TORCHRUN, "two", "full")):
        command = [*launcher, "-m", "train.cases_script", str(tmp_path), name, sharding]
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


def test_one_process_has_the_whole_model_and_says_so(model, pairs, tmp_path):
    config = Config.model_validate({"train": {"batch_size": 8, "threads": 1, "max_steps": 1, "sharding": "full"}})
    train(config, model=model, pairs=pairs, output=tmp_path)
    assert read_status(tmp_path).notes == ["sharding: this is the only process, so it has all of the model"]


@pytest.mark.parametrize(
    "change",
    [{"quantization": "nf4", "finetuning_type": "lora"}, {"optimizer": "adafactor"}, {"optimizer": "adamw_8bit"}],
)
def test_what_cannot_be_sharded_is_refused(change):
    with pytest.raises(ValueError, match=r"sharding: .* cannot be sharded"):
        Config.model_validate({"train": {"sharding": "full"} | change})


def test_a_process_of_a_whole_model_takes_its_parts_and_no_more():
    assert list(Ranks(rank=0, size=2).in_step([1, 2], lambda: 0)) == [(1, True), (2, True)]


def test_a_file_that_is_written_tensor_by_tensor_is_a_safetensors_file(tmp_path):
    tensors = {
        "b": torch.arange(6.0).view(2, 3), "a": torch.tensor(7.0), "random": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "half": torch.tensor([0.5, -1.5], dtype=torch.bfloat16), "none": torch.zeros(0, 4),
        "turned": torch.arange(6).view(2, 3).T, "is": torch.tensor([True, False]),
    }  # fmt: skip
    write_tensors(tmp_path / "file", tensors, metadata={"others": "{}"})
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    assert all(found[name].dtype == tensors[name].dtype and torch.equal(found[name], tensors[name]) for name in found)
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"others": "{}"}
