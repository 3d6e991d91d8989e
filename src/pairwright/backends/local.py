"""Jobs on this machine: `pairwright train` in a process of its own, which the death of this command does not touch.

What the trainer writes (train.json, metrics.jsonl) says how far it is; the process's lock and exit code say whether it
lives. A job whose process is gone without a word is failed, with the last lines of its log: never stuck.
"""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pairwright.backends import process
from pairwright.backends.backend import Backend, JobRequest, Say, WaitLimits
from pairwright.backends.failures import BackendError, JobFailed, JobTimeout
from pairwright.backends.job import FINAL, Job, JobState, Status, changed, new_job, write_job
from pairwright.backends.yaml_file import write_yaml
from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.messages import Json

COMMAND = (sys.executable, "-m", "pairwright.cli")
CONFIG = "train-config.yaml"
PROCESS, SERVER = "process", "server"  # folders of the trainer's and the model server's process


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    if request.pairs is None and request.experience is None:
        raise ConfigError("nothing to train on: give --pairs DIR or --experience DIR")
    process.refuse_running(folder / PROCESS)
    command = train_command(folder, request)
    sections = {name: getattr(config, name).model_dump(mode="json") for name in ("tokens", "train")}
    shown = {"name": config.name, "seed": config.seed, **sections}
    write_yaml(folder / CONFIG, shown, heading="Written by pairwright: what this job trains with.")
    job = new_job("local", model=request.model, pairs=request.pairs)
    job = write_job(folder, changed(job, details={"command": command, "pid": None}))
    pid = process.start(folder / PROCESS, command)
    job = write_job(folder, changed(job, state=JobState.RUNNING, details={"command": command, "pid": pid}))
    say(f"process {pid} trains; its log is {folder / PROCESS / process.LOG}")
    return job


def train_command(folder: Path, request: JobRequest) -> list[str]:
    command = [*COMMAND, "train", "--model", request.model, "-o", str(folder)]
    command += ["--config", str(folder / CONFIG)]
    for option, path in (("--pairs", request.pairs), ("--experience", request.experience)):
        if path is not None:
            command += [option, str(path)]
    return [*command, "--resume"] if request.resume else command


def status(folder: Path, job: Job, config: Config) -> Status:
    code = process.exit_code(folder / PROCESS)
    said = _read(folder / "train.json")
    if job.state in FINAL:
        return _status(job.state, folder, said, job.error or "")
    if code is None:
        return _status(JobState.CANCELLING if job.state is JobState.CANCELLING else JobState.RUNNING, folder, said, "")
    if code == 0:
        return _status(JobState.COMPLETED, folder, said, "")
    if job.state is JobState.CANCELLING:
        return _status(JobState.CANCELLED, folder, said, "cancelled")
    return _status(JobState.FAILED, folder, said, _reason(folder, said, code))


def cancel(folder: Path, job: Job, config: Config) -> Job:
    if job.state in FINAL or not process.is_alive(folder / PROCESS):
        return job
    job = write_job(folder, changed(job, state=JobState.CANCELLING))
    pid = job.details["pid"] or _read(folder / "train.json").get("pid")
    if not isinstance(pid, int):
        raise BackendError(f"{job.id}: its process id is not known: it was interrupted while it started; see {folder}")
    process.stop(folder / PROCESS, pid, grace_seconds=config.backend.local.cancel_grace_seconds)
    return job


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    return serve_result(folder, job, trained_model(folder, job), config, say)


def serve_result(folder: Path, job: Job, model: Path, config: Config, say: Say) -> Json:
    """Serve a model on a free port of the loopback interface; ready when it answers."""
    if job.state is not JobState.COMPLETED:
        raise BackendError(f"{job.id}: is {job.state}, and only a completed job can be deployed")
    if process.is_alive(folder / SERVER) and job.deployment:
        return job.deployment
    port = _free_port()
    command = [*COMMAND, "serve", "model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    pid = process.start(folder / SERVER, command)
    deployment = {"url": f"http://127.0.0.1:{port}", "pid": pid, "status": "starting", "model": str(model)}
    job = write_job(folder, changed(job, deployment=deployment))
    say(f"process {pid} serves {model} at {deployment['url']}")
    _wait_for(f"{deployment['url']}/health", folder, config.backend.local.deployment_timeout_seconds)
    write_job(folder, changed(job, deployment={**deployment, "status": "ready"}))
    return {**deployment, "status": "ready"}


def trained_model(folder: Path, job: Job) -> Path:
    name = _read(folder / "train.json").get("model", "model")
    if job.state is JobState.COMPLETED and not (folder / str(name)).is_dir():
        raise BackendError(f"{folder / str(name)}: no such folder; the job's result was moved or deleted")
    return folder / str(name)


def logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    return process_logs(folder, follow)


def process_logs(folder: Path, follow: bool) -> Iterator[str]:
    path = folder / PROCESS / process.LOG
    yield from process.follow(path, folder / PROCESS) if follow else process.last_lines(path, 10_000)


def wait_limits(config: Config) -> WaitLimits:
    settings = config.backend.local
    return WaitLimits(
        poll_interval_seconds=settings.poll_interval_seconds, timeout_seconds=settings.training_timeout_seconds,
        max_failures=0,
    )  # fmt: skip


def _status(state: JobState, folder: Path, said: Json, message: str) -> Status:
    step, num_steps = said.get("step"), said.get("num_steps")
    train, validation = _losses(folder / "metrics.jsonl")
    percentage = 100.0 * step / num_steps if isinstance(step, int) and num_steps else None
    return Status(
        state=state, percentage=100.0 if state is JobState.COMPLETED else percentage, step=step, num_steps=num_steps,
        epoch=said.get("epoch"), train_loss=train, validation_loss=validation, message=message,
    )  # fmt: skip


def _reason(folder: Path, said: Json, code: int) -> str:
    if said.get("state") == "failed" and said.get("error"):
        return str(said["error"])
    how = "was killed, or the machine went down" if code == process.KILLED else f"ended with exit code {code}"
    lines = [line for line in process.last_lines(folder / PROCESS / process.LOG, 5) if line.strip()]
    return f"its process {how}" + (f": {lines[-1]}" if lines else "")


def _losses(path: Path) -> tuple[float | None, float | None]:
    """The newest training and validation loss of the metrics, from the end of the file."""
    train: Any = None
    validation: Any = None
    for line in process.last_lines(path, 200):
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue  # a line that is being written
        if isinstance(row, dict):
            train, validation = row.get("loss", train), row.get("eval_loss", validation)
    return _float(train), _float(validation)


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _read(path: Path) -> Json:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, folder: Path, timeout_seconds: float) -> None:
    import httpx

    until = time.monotonic() + timeout_seconds
    while time.monotonic() < until:
        if not process.is_alive(folder / SERVER):
            lines = process.last_lines(folder / SERVER / process.LOG, 3)
            raise JobFailed(f"the model server ended before it answered: {' | '.join(lines)}")
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise JobTimeout(f"{url}: no answer after {timeout_seconds:g} s; its log is {folder / SERVER / process.LOG}")


LOCAL = Backend(
    name="local", submit=submit, status=status, cancel=cancel, deploy=deploy, logs=logs, wait_limits=wait_limits
)
