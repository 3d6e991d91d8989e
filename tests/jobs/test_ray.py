"""Training on a Ray cluster of two nodes: the weights of one process, also when a worker is lost on the way."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from pairwright.config import Config
from pairwright.errors import PairwrightError
from pairwright.jobs import BACKENDS, JobRequest, JobState, read_job
from pairwright.jobs.ray_training import train_on_ray
from pairwright.training import train
from pairwright.training.run_dir import RunError
from training.made_runs import make_model, make_pairs

# what Ray warns of is its own
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning")]
TRAIN = {
    "batch_size": 5,
    "epochs": 2,
    "learning_rate": 1e-3,
    "threads": 1,
    "save_every": 1,
    "dpo": {"sft_loss_weight": 0.0},  # the first loss is log 2
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, pairs, and the run of one process on them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ray")
    make_model(folder / "model")
    make_pairs(folder / "pairs", 13, held=3)
    train(config(), model=folder / "model", pairs=folder / "pairs", output=folder / "alone")
    return folder


def config(address=None, **settings):
    engine = {"name": "ray", "address": address, "workers": 2} if address else "embedded"
    return Config.model_validate({"engine": engine, "train": TRAIN | settings})


def assert_same_weights(folder, name):
    weights, others = (load_file(folder / one / "model" / "model.safetensors") for one in ("alone", name))
    for key, value in weights.items():
        assert float((value - others[key]).abs().max()) < 1e-5, key


def steps_of(folder: Path):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "loss" in row]


def test_a_job_of_the_backend_ray_runs_the_command_with_that_engine(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr("pairwright.jobs.process.start", lambda folder, command, **_: commands.append(command) or 17)
    settings = Config.model_validate({"engine": {"name": "ray", "address": "auto"}, "backend": {"name": "ray"}})
    request = JobRequest(model="model", pairs=Path("pairs"))
    job = BACKENDS["ray"].submit(tmp_path, request, settings, lambda line: None)
    assert job.state is JobState.RUNNING
    assert read_job(tmp_path).details["pid"] == 17
    assert commands[0][-2:] == ["--engine", "ray"]
    assert "address: auto" in (tmp_path / "train-config.yaml").read_text()


@pytest.mark.slow
def test_two_workers_end_with_the_weights_of_one_process(made, cluster):
    events = []
    sources = {"model": made / "model", "pairs": made / "pairs", "output": made / "two"}
    result = train_on_ray(config(cluster), progress=events.append, **sources)
    assert_same_weights(made, "two")
    assert (
        steps_of(made / "two") == [1, 2, 3, 4, 5, 6] == [event["step"] for event in events if event["kind"] == "step"]
    )
    assert result.num_steps == 6
    assert result.metrics["eval_loss"] < 0.6
    with pytest.raises(RunError, match="already has a run"):
        train_on_ray(config(cluster), **sources)


@pytest.mark.slow
def test_a_worker_that_is_lost_costs_what_was_done_since_the_last_checkpoint(made, cluster):
    output = made / "lost"
    killed = []

    def kill():
        """Kill the process of the first worker, which train.json names, once it has saved a checkpoint."""
        until = time.monotonic() + 240
        while time.monotonic() < until and not killed:
            if (output / "checkpoints" / "step-00000001").exists():
                pid = json.loads((output / "train.json").read_text())["pid"]
                assert "ray" in " ".join(psutil.Process(pid).cmdline())
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    longer = config(cluster, epochs=6)
    train_on_ray(longer, model=made / "model", pairs=made / "pairs", output=output)
    thread.join()
    assert killed
    assert json.loads((output / "train.json").read_text())["pid"] != killed[0]
    assert steps_of(output) == list(range(1, 19))
    expected = made / "alone-longer"
    train(config(epochs=6), model=made / "model", pairs=made / "pairs", output=expected)
    weights, others = (load_file(one / "model" / "model.safetensors") for one in (expected, output))
    assert all(float((weights[key] - others[key]).abs().max()) < 1e-5 for key in weights)


@pytest.mark.slow
def test_an_error_of_ours_ends_the_run_with_its_message(made, cluster):
    with pytest.raises(PairwrightError, match=r"loss 0\.69") as caught:
        train_on_ray(config(cluster, max_loss=0.1), model=made / "model", pairs=made / "pairs", output=made / "bad")
    assert caught.value.exit_code == 1
    assert json.loads((made / "bad" / "train.json").read_text())["state"] == "failed"
