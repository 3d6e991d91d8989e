"""The backend interface: submit, status, cancel, deploy and logs as functions, and a common `wait` that polls status.

Every function takes the run folder, which holds the job reference, and the full configuration, which holds the secrets.
All of them block. From an event loop, call them with `asyncio.to_thread`; `wait` raises if called inside a loop.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pairwright.config import Config
from pairwright.jobs.job import (
    FINAL,
    BackendError,
    Job,
    JobFailed,
    JobState,
    JobTimeout,
    Status,
    Unreachable,
    can_become,
    change_job,
    read_job,
    write_job,
)
from pairwright.records.messages import Json

Say = Callable[[str], None]


def silent(_: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Inputs of a training job. With `launch=False`, backends with launch files write them and start nothing."""

    model: str
    pairs: Path | None = None
    experience: Path | None = None
    launch: bool = True
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend: its name and the functions that implement it."""

    name: str
    submit: Callable[[Path, JobRequest, Config, Say], Job]
    status: Callable[[Path, Job, Config], Status]
    cancel: Callable[[Path, Job, Config], Job]
    deploy: Callable[[Path, Job, Config, Say], Json]
    logs: Callable[[Path, Job, Config, bool], Iterator[str]]
    wait_limits: Callable[[Config], "WaitLimits"]

    def wait(self, folder: Path, config: Config, show: Callable[[Status], None]) -> Status:
        """Poll a job until it ends. Raises JobFailed if it did not complete, JobTimeout after the timeout."""
        _refuse_event_loop()
        return _wait(self, folder, config, show)


@dataclass(frozen=True, kw_only=True)
class WaitLimits:
    """Polling interval and timeout of `wait`. `max_failures`: consecutive status calls that may fail."""

    poll_interval_seconds: float
    timeout_seconds: float | None
    max_failures: int


def follow_status(folder: Path, job: Job, status: Status) -> Job:
    """Write a new status to the job file. States that cannot follow the current one (stale responses) are ignored."""
    if status.state is job.state or not can_become(job.state, status.state):
        return job
    error = status.message if status.state is JobState.FAILED else job.error
    return write_job(folder, change_job(job, state=status.state, error=error))


def _wait(backend: Backend, folder: Path, config: Config, show: Callable[[Status], None]) -> Status:
    """Poll the status until a final state, the timeout, or more than `max_failures` consecutive failures."""
    limits = backend.wait_limits(config)
    started, num_failures = time.monotonic(), 0
    while True:
        # Read again in each pass: another command may have cancelled the job meanwhile.
        job = read_job(folder)
        try:
            status = backend.status(folder, job, config)
            num_failures = 0
        # A service that is away for a moment does not end the wait.
        except Unreachable as error:
            num_failures += 1
            if num_failures > limits.max_failures:
                raise Unreachable(
                    f"{job.id}: {num_failures} status calls failed in a row, the last with: {error}. The job may be "
                    f"going on; come back to it with: pairwright jobs attach {folder}"
                ) from error
        else:
            job = follow_status(folder, read_job(folder), status)  # asking may have written what was learnt
            show(status)
            if status.state in FINAL:
                return _end_job(folder, job, status)
            if status.state is JobState.PREPARED:
                raise BackendError(
                    f"{job.id}: was only prepared; start it with {job.details.get('script', '--launch')}"
                )
        if limits.timeout_seconds is not None and time.monotonic() - started > limits.timeout_seconds:
            raise JobTimeout(
                f"{job.id}: not done after {limits.timeout_seconds:g} s. Wait on with: pairwright jobs attach "
                f"{folder}; end it with: pairwright jobs cancel {folder}"
            )
        time.sleep(limits.poll_interval_seconds)


def _end_job(folder: Path, job: Job, status: Status) -> Status:
    if status.state is JobState.COMPLETED:
        return status
    raise JobFailed(
        f"{job.id}: {status.state}: {status.message or 'no reason given'}; see: pairwright jobs logs {folder}"
    )


def _refuse_event_loop() -> None:
    try:
        # Raises where no loop is running in this thread, which is the good case.
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BackendError("a job was waited for inside an event loop, which would stand still: use asyncio.to_thread")
