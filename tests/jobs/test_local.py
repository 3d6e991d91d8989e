"""Local jobs and `pairwright jobs`: started, found again, followed, cancelled; never stuck."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.made_pairs import pairs_table
from pairwright.cli import app
from pairwright.config import Config, load_config
from pairwright.jobs import (
    BACKENDS,
    BackendError,
    JobFailed,
    JobRequest,
    JobState,
    find_jobs,
    job_folder,
    local,
    process,
    read_job,
)
from pairwright.jobs.job import TRANSITIONS, change_job, new_job, silent, write_job

pytestmark = pytest.mark.stress

STANDIN = (sys.executable, str(Path(__file__).with_name("standin_trainer.py")))
CONFIG = Config()
backend = BACKENDS["local"]


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Return a function that starts a stand-in of some kind; remaining processes are killed after the test."""
    monkeypatch.setattr(local, "COMMAND", STANDIN)

    def start(kind, name="run"):
        request = JobRequest(model=kind, pairs=tmp_path / "pairs")
        return backend.submit(tmp_path / name, request, CONFIG, silent), tmp_path / name

    yield start
    for folder in find_jobs(tmp_path):
        job = read_job(folder)
        for place, number in (("process", job.details.get("pid")), ("server", (job.deployment or {}).get("pid"))):
            if number:
                process.stop(folder / place, grace_seconds=0)
                until(lambda place=place, folder=folder: not process.is_alive(folder / place))


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def test_a_job_is_followed_to_its_end_with_its_steps_and_losses(started):
    _, folder = started("quick")
    seen = []
    status = backend.wait(folder, CONFIG, seen.append)
    assert (status.state, status.step, status.num_steps, status.percentage) == (JobState.COMPLETED, 3, 3, 100.0)
    assert (status.train_loss, status.validation_loss) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert seen[0].state is JobState.RUNNING
    assert read_job(folder).state is JobState.COMPLETED


def test_the_job_trains_with_the_resolved_configuration(started, tmp_path):
    request = JobRequest(model="quick", pairs=tmp_path / "pairs", resume=True)
    config = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update={"epochs": 7})})
    job = backend.submit(tmp_path / "run", request, config, silent)
    command = job.details["command"]
    assert command[-1] == "--resume"
    assert command[2:6] == ["train", "--model", "quick", "-o"]
    written = load_config(command[command.index("--config") + 1], environment={})
    assert written.train == config.train
    backend.wait(tmp_path / "run", CONFIG, lambda _: None)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("failing", "loss is not a number at step 1"), ("crashing", "exit code 139: Segmentation fault")],
)
def test_a_job_that_fails_says_why(started, kind, words):
    _, folder = started(kind)
    with pytest.raises(JobFailed, match=words):
        backend.wait(folder, CONFIG, lambda _: None)
    assert words in read_job(folder).error


def test_a_job_that_was_killed_is_failed_not_stuck(started):
    job, folder = started("slow")
    until(lambda: (folder / "train.json").exists())
    os.killpg(job.details["pid"], signal.SIGKILL)
    with pytest.raises(JobFailed, match="was killed"):
        backend.wait(folder, CONFIG, lambda _: None)


def test_a_cancelled_job_saves_and_ends(started):
    _, folder = started("slow")
    until(lambda: (folder / "train.json").exists())
    backend.cancel(folder, read_job(folder), CONFIG)
    with pytest.raises(JobFailed, match="cancelled"):
        backend.wait(folder, CONFIG, lambda _: None)
    assert json.loads((folder / "train.json").read_text())["state"] == "stopped"
    assert read_job(folder).state is JobState.CANCELLED
    assert backend.cancel(folder, read_job(folder), CONFIG).state is JobState.CANCELLED, "again changes nothing"


def test_a_job_survives_the_command_that_started_it_and_is_attached_to(started, tmp_path):
    code = (f"import sys; from pairwright.jobs import local; local.COMMAND = {STANDIN!r};"
            "from pairwright.cli import run_program; run_program()")  # fmt: skip
    arguments = ["jobs", "submit", "--pairs", str(tmp_path), "--model", "slow", "-o", str(tmp_path / "run")]
    command = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (tmp_path / "run" / "train.json").exists())
        command.kill()
        command.wait()
        job = read_job(tmp_path / "run")
        assert job.state is JobState.RUNNING
        assert process.is_alive(tmp_path / "run" / "process")
        step = json.loads((tmp_path / "run" / "train.json").read_text())["step"]
        until(lambda: json.loads((tmp_path / "run" / "train.json").read_text())["step"] > step)
        shown = CliRunner().invoke(app, ["jobs", "show", job.id[:20], "--runs", str(tmp_path), "--json"])
        assert json.loads(shown.stdout)["status"]["state"] == "running"
    finally:
        command.stderr.close()
        ended = CliRunner().invoke(app, ["jobs", "cancel", str(tmp_path / "run")])
    assert "is cancelled" in ended.stderr


def test_the_commands_tell_the_whole_life_of_a_job(started, tmp_path):
    invoke = CliRunner().invoke
    done = invoke(
        app, ["jobs", "submit", "--pairs", str(tmp_path), "--model", "quick", "-o", str(tmp_path / "run"), "--no-wait"]
    )
    assert done.exit_code == 0, done.exception
    assert f"Next: pairwright jobs attach {tmp_path / 'run'}" in done.stderr
    followed = invoke(app, ["jobs", "attach", str(tmp_path / "run"), "--json"])
    assert json.loads(followed.stdout)["status"]["percentage"] == 100.0
    assert "completed, 100%, step 3 of 3, loss 0.3333, validation loss 0.6667" in followed.stderr
    listed = json.loads(invoke(app, ["jobs", "list", str(tmp_path), "--json"]).stdout)
    assert [(row["state"], row["folder"]) for row in listed] == [("completed", str(tmp_path / "run"))]
    assert invoke(app, ["jobs", "logs", str(tmp_path / "run")]).stdout == "training quick\n"
    again = invoke(app, ["jobs", "submit", "--pairs", "x", "--model", "quick", "-o", str(tmp_path / "run")])
    assert "say --overwrite" in str(again.exception)
    deployed = invoke(app, ["jobs", "deploy", str(tmp_path / "run"), "--json"])
    assert json.loads(deployed.stdout)["status"] == "ready"


def test_a_job_that_fails_is_exit_code_1(started, tmp_path):
    code = f"from pairwright.jobs import local; local.COMMAND = {STANDIN!r}; from pairwright.cli import run_program; run_program()"
    done = subprocess.run(
        [sys.executable, "-c", code, "jobs", "submit", "--pairs", "x", "--model", "failing", "-o", str(tmp_path / "run")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "loss is not a number" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_a_running_job_accepts_no_other_job(started, tmp_path):
    job, _ = started("slow")
    done = CliRunner().invoke(app, ["jobs", "submit", "--pairs", "x", "--model", "quick", "-o", str(tmp_path / "run")])
    assert "jobs attach" in str(done.exception)
    forced = CliRunner().invoke(
        app, ["jobs", "submit", "--pairs", "x", "--model", "quick", "-o", str(tmp_path / "run"), "--overwrite"]
    )
    assert "still running" in str(forced.exception), "two trainers never write into one folder"
    kept = read_job(tmp_path / "run")
    assert (kept.id, kept.details["pid"], kept.state) == (job.id, job.details["pid"], JobState.RUNNING), (
        "and its reference stays"
    )


def test_only_a_completed_job_is_deployed(started):
    _, folder = started("slow")
    with pytest.raises(BackendError, match="only a completed job"):
        backend.deploy(folder, read_job(folder), CONFIG, silent)


def test_jobs_are_found_by_folder_and_by_the_beginning_of_their_id(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b" / "c"]
    jobs = [write_job(folder, new_job("local", model="m", pairs=None)) for folder in folders]
    assert list(find_jobs(tmp_path)) == folders
    assert job_folder(str(folders[1]), tmp_path) == folders[1]
    assert job_folder(jobs[0].id, tmp_path) == folders[0]
    with pytest.raises(BackendError, match="2 jobs begin with that"):
        job_folder("pw-", tmp_path)
    with pytest.raises(BackendError, match="jobs list"):
        job_folder("nothing", tmp_path)
    (folders[0] / "job.json").write_text("{")
    with pytest.raises(BackendError, match="cannot be read"):
        read_job(folders[0])


def test_a_state_that_cannot_follow_is_a_mistake_of_ours():
    job = change_job(new_job("local", model="m", pairs=None), state=JobState.COMPLETED)
    for state in set(JobState) - {JobState.COMPLETED}:
        with pytest.raises(AssertionError):
            change_job(job, state=state)
    assert set(TRANSITIONS) == set(JobState)


@pytest.mark.slow
def test_the_real_trainer_trains_and_its_model_answers(tmp_path):
    import httpx

    from generate.tiny_models import save_model

    model = save_model(tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-m", "pairwright.cli", "jobs", "submit", "--pairs", str(pairs_table(tmp_path / "pairs")), "--model", str(model),
         "-o", str(tmp_path / "run"), "--set", "train.epochs=1", "--set", "train.threads=1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "run"
    deployment = backend.deploy(folder, read_job(folder), CONFIG, silent)
    try:
        asked = {"model": "model", "messages": [{"role": "user", "content": "the"}], "max_tokens": 2}
        answer = httpx.post(f"{deployment['url']}/v1/chat/completions", json=asked, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] >= 1
    finally:
        process.stop(folder / "server", grace_seconds=30)
