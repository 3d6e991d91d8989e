"""Local and Ray backends: jobs that run as a process on this machine. Other backends launch their commands through it.

The process outlives the command that started it. Progress is read from the trainer's files (train.json,
metrics.jsonl), liveness from the process lock and the exit code. A job whose process disappeared without an exit code
has failed, with the last line of its log as the message.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from pairwright.config import Config
from pairwright.engines.listening import free_port
from pairwright.errors import ConfigError
from pairwright.jobs import process
from pairwright.jobs.job import (
    FINAL,
    Backend,
    BackendError,
    Job,
    JobFailed,
    JobRequest,
    JobState,
    JobTimeout,
    Say,
    Status,
    WaitLimits,
    change_job,
    new_job,
    write_job,
    write_yaml,
)
from pairwright.ledger.run_status import FILE_NAME, last_lines, last_losses, read_status
from pairwright.records.messages import Json

COMMAND = (sys.executable, "-m", "pairwright.cli")
CONFIG = "train-config.yaml"
PROCESS, SERVER = "process", "server"  # folders of the trainer's and the model server's process
_SERVER_SECONDS = 300
POLL_SECONDS = 1.0  # interval between two status checks
CANCEL_SECONDS = 60.0  # grace period in which a cancelled job saves its checkpoint
# Reads the trainer's files; the message of a failed job is the reason.
Progress = Callable[[Path, Job], Status]


def submit(backend: str, folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    """Write the configuration of the job and start `pairwright train`, on a cluster for `ray` (ray_training.py)."""
    if request.pairs is None and request.experience is None:
        raise ConfigError("nothing to train on: give --pairs DIR or --experience DIR")
    process.refuse_running(folder / PROCESS)
    command = [*COMMAND, "train", "--model", request.model, "-o", str(folder), "--config", str(folder / CONFIG)]
    command += ["--backend", "local"]  # overrides the environment
    for option, path in (("--pairs", request.pairs), ("--experience", request.experience)):
        command += [] if path is None else [option, str(path)]
    command += ["--resume"] if request.resume else []
    # Only the sections that the trainer reads; backend sections may hold secrets.
    sections = {name: getattr(config, name).model_dump(mode="json") for name in ("tokens", "train")}
    if backend == "ray":
        command += ["--engine", "ray"]
        sections["engine"] = config.engine.model_dump(mode="json") | {"name": "ray"}
    tree = {"name": config.name, "seed": config.seed, **sections}
    write_yaml(folder / CONFIG, tree, heading="Written by pairwright: what this job trains with.")
    return launch(folder, new_job(backend, model=request.model, pairs=request.pairs), command, say=say)


def launch(
    folder: Path,
    job: Job,
    command: Sequence[str],
    *,
    say: Say,
    is_started: bool = True,
    directory: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Job:
    """Start the command of a job. The job reference is written before and after; unless `is_started`, only that."""
    if not is_started:
        # `replace`, not `change_job`: `prepared` is an initial state without transitions to it.
        return write_job(folder, msgspec.structs.replace(job, state=JobState.PREPARED))
    # The reference is on disk before the process starts: a crash in between loses nothing.
    job = write_job(folder, change_job(job, details={**job.details, "command": list(command), "pid": None}))
    pid = process.start(folder / PROCESS, command, directory=directory, environment=environment)
    say(f"process {pid} runs {' '.join(command)}; its log is {folder / PROCESS / process.LOG}")
    return write_job(folder, change_job(job, state=JobState.RUNNING, details={**job.details, "pid": pid}))


def status(folder: Path, job: Job, config: Config) -> Status:
    return process_status(folder, job, train_progress)


def process_status(folder: Path, job: Job, progress: Progress, result: Path | None = None) -> Status:
    """Return the status of a job. Exit code 0 without `result` counts as a failure."""
    known = progress(folder, job)
    if job.state in FINAL or job.state is JobState.PREPARED:
        state, message = job.state, job.error or ""
    else:
        code = process.exit_code(folder / PROCESS)
        state, message = _outcome(folder, job, known, code, result)
    percentage = 100.0 if state is JobState.COMPLETED else known.percentage
    return msgspec.structs.replace(known, state=state, message=message, percentage=percentage)


def _outcome(folder: Path, job: Job, known: Status, code: int | None, result: Path | None) -> tuple[JobState, str]:
    is_cancelling = job.state is JobState.CANCELLING
    if code is None:
        return JobState.CANCELLING if is_cancelling else JobState.RUNNING, ""
    # A job that finished while being cancelled is completed: it has a result.
    if code == 0 and (result is None or result.exists()):
        return JobState.COMPLETED, ""
    if is_cancelling:
        return JobState.CANCELLED, "cancelled"
    if code == 0:
        return JobState.FAILED, f"it ended well, but {result} is not there"
    return JobState.FAILED, known.message or process.describe_exit(folder / PROCESS, code)


def train_progress(folder: Path, job: Job) -> Status:
    run = read_status(folder, strict=False)
    train_loss, validation_loss = last_losses(folder)
    if run is None:
        return Status(state=JobState.RUNNING, train_loss=train_loss, validation_loss=validation_loss)
    return Status(
        state=JobState.RUNNING,
        percentage=run.percentage,
        step=run.step,
        num_steps=run.num_steps,
        epoch=run.epoch,
        train_loss=train_loss,
        validation_loss=validation_loss,
        # After a resume, a failure in train.json may be that of an earlier process.
        message=(run.error or "the trainer failed") if run.state == "failed" and is_current(folder) else "",
    )


def is_current(folder: Path) -> bool:
    """Return whether the latest process of the job wrote train.json."""
    try:
        # The lock is written when the process starts.
        return (folder / FILE_NAME).stat().st_mtime_ns >= (folder / PROCESS / process.LOCK).stat().st_mtime_ns
    except OSError:
        return False


def cancel(folder: Path, job: Job, config: Config) -> Job:
    if job.state in FINAL or not process.is_alive(folder / PROCESS):
        return job
    job = write_job(folder, change_job(job, state=JobState.CANCELLING))
    process.stop(folder / PROCESS, grace_seconds=CANCEL_SECONDS)
    return job


def logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    place = folder / PROCESS
    yield from process.follow(place) if follow else last_lines(place / process.LOG, 10_000)


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    return serve_result(folder, job, model_of_job(folder, job), config, say)


def serve_result(folder: Path, job: Job, model: Path, config: Config, say: Say) -> Json:
    """Serve a model on a free port of the loopback interface and wait until it is healthy."""
    if job.state is not JobState.COMPLETED:
        raise BackendError(f"{job.id}: is {job.state}, and only a completed job can be deployed")
    if process.is_alive(folder / SERVER) and job.deployment:
        return job.deployment
    port = free_port()
    command = [*COMMAND, "serve", "model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    pid = process.start(folder / SERVER, command)
    deployment = {"url": f"http://127.0.0.1:{port}", "pid": pid, "status": "starting", "model": str(model)}
    job = write_job(folder, change_job(job, deployment=deployment))
    say(f"process {pid} serves {model} at {deployment['url']}")
    _wait_for(f"{deployment['url']}/health", folder)
    write_job(folder, change_job(job, deployment={**deployment, "status": "ready"}))
    return {**deployment, "status": "ready"}


def result_folder(folder: Path) -> Path:
    """Return the folder of the trained model, which train.json names relative to the run folder."""
    run = read_status(folder, strict=False)
    return folder / ((run and run.model) or "model")


def model_of_job(folder: Path, job: Job) -> Path:
    model = result_folder(folder)
    if job.state is JobState.COMPLETED and not model.is_dir():
        raise BackendError(f"{model}: no such folder; the job's result was moved or deleted")
    return model


def wait_limits(config: Config) -> WaitLimits:
    return WaitLimits(poll_interval_seconds=POLL_SECONDS, timeout_seconds=None, max_failures=5)


def _wait_for(url: str, folder: Path) -> None:
    """Poll a URL until it succeeds. Raises JobFailed if the server exits, JobTimeout after the timeout."""
    import httpx

    until = time.monotonic() + _SERVER_SECONDS
    while time.monotonic() < until:
        if not process.is_alive(folder / SERVER):
            lines = process.log_end(folder / SERVER, 3)
            raise JobFailed(f"the model server ended before it answered: {' | '.join(lines)}")
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        # Not listening yet.
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise JobTimeout(f"{url}: no answer after {_SERVER_SECONDS} s; its log is {folder / SERVER / process.LOG}")


LOCAL = Backend(
    name="local",
    submit=partial(submit, "local"),
    status=status,
    cancel=cancel,
    deploy=deploy,
    logs=logs,
    wait_limits=wait_limits,
)
RAY = replace(LOCAL, name="ray", submit=partial(submit, "ray"))
