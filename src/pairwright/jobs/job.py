"""Job references and states, and the interface of a backend.

A job is a training task on any backend; its reference is `job.json` in the run folder.

The file is written atomically, before anything is started and after every change, so that `pairwright jobs attach`
finds the job after a crash or a network failure. It contains no secrets.

A backend has the functions submit, status, cancel, deploy and logs, and a common `wait` that polls status. Every
function takes the run folder, which has the job reference, and the full configuration, which has the secrets. All of
them block. From an event loop, call them with `asyncio.to_thread`; `wait` raises if called inside a loop.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from ruamel.yaml import YAML

from pairwright.config import Config
from pairwright.errors import PairwrightError
from pairwright.paths import write_atomic, write_json
from pairwright.records.messages import Json

FILE_NAME = "job.json"
Answer = TypeVar("Answer")


class BackendError(PairwrightError):
    """A backend cannot carry out an operation."""


class ServiceError(BackendError):
    """A service rejected a request. Has the HTTP status; the message is that of the service."""

    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message)


class Unreachable(BackendError):
    """A service returned no usable response; a retry may succeed."""


class JobFailed(BackendError):
    """A job ended without completing."""


class JobTimeout(BackendError):
    """Waiting timed out; the job may still be running."""


class JobState(StrEnum):
    """State of a job. `prepared`: its files are written, but nothing was started."""

    PREPARED = "prepared"
    CREATED = "created"
    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"


FINAL = frozenset({JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED})
# State transitions. A running job becomes pending again if a scheduler requeues it or the service restarts.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PREPARED: frozenset({JobState.CREATED}),
    JobState.CREATED: frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.PENDING, JobState.CANCELLING, JobState.FAILED, JobState.COMPLETED}),
    JobState.CANCELLING: FINAL,
    **{state: frozenset() for state in FINAL},
}


def states_before(new: JobState) -> list[JobState]:
    return [state for state, following in TRANSITIONS.items() if new in following]


def can_become(old: JobState, new: JobState) -> bool:
    """Return whether `new` is reachable from `old` by any number of transitions, since polling may miss states."""
    reached, pending = set[JobState](), [old]
    while pending:
        following = TRANSITIONS[pending.pop()] - reached
        reached |= following
        pending += following
    return new in reached


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Current status of a job. None: not reported by the backend."""

    state: JobState
    percentage: float | None = None
    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    message: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reference to a job. `details` has the data by which its backend finds it."""

    id: str
    backend: str
    state: JobState
    created_at: float
    updated_at: float
    model: str
    pairs: str | None = None
    error: str | None = None
    details: Json = {}
    deployment: Json | None = None


def new_job(backend: str, *, model: str, pairs: Path | None) -> Job:
    """Create a job in state `created`, with a unique id that sorts by time."""
    now = time.time()
    name = f"pw-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{os.urandom(4).hex()}"
    return Job(
        id=name,
        backend=backend,
        state=JobState.CREATED,
        created_at=now,
        updated_at=now,
        model=model,
        pairs=None if pairs is None else str(pairs),
    )


def find_interrupted(folder: Path, backend: str) -> Job | None:
    """Return the job of an interrupted submission. Its names are reused, so that it cannot be created twice."""
    if not (folder / FILE_NAME).exists():
        return None
    job = read_job(folder)
    return job if job.backend == backend and job.state is JobState.CREATED else None


def change_job(job: Job, *, state: JobState | None = None, **changes: Any) -> Job:
    """Return the job with changes. An invalid state transition is a programming error, not a user error."""
    if state is not None and state is not job.state:
        assert can_become(job.state, state), f"{job.id}: {job.state} cannot become {state}"
        changes["state"] = state
    return msgspec.structs.replace(job, updated_at=time.time(), **changes)


def write_job(folder: Path, job: Job) -> Job:
    write_json(folder / FILE_NAME, job, error=BackendError)
    return job


def read_job(folder: Path) -> Job:
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except FileNotFoundError:
        raise BackendError(f"{folder}: no job here (no {FILE_NAME}); see: pairwright jobs list") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise BackendError(f"{path}: cannot be read: {error}") from error


def is_submitted(folder: Path) -> bool:
    """Return whether the folder has a submitted job. An interrupted submission does not count."""
    return (folder / FILE_NAME).exists() and read_job(folder).state is not JobState.CREATED


def find_jobs(root: Path) -> Iterator[Path]:
    """Find the folders with a job below `root`, at most three levels deep."""
    # Fixed depths, not `**`, since run folders have checkpoints with many files.
    for pattern in (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}", f"*/*/*/{FILE_NAME}"):
        yield from sorted(path.parent for path in root.glob(pattern))


def job_folder(name: str, root: Path) -> Path:
    """Resolve a job folder, job id or unique prefix of an id to the folder of the job."""
    if (Path(name) / FILE_NAME).is_file():
        return Path(name)
    folders = [folder for folder in find_jobs(root) if read_job(folder).id.startswith(name)]
    if len(folders) == 1:
        return folders[0]
    what = f"{len(folders)} jobs begin with that" if folders else "no job has that id, and no such folder has one"
    raise BackendError(f"{name}: {what}; see: pairwright jobs list {root}")


def write_yaml(path: Path, value: Json, *, heading: str) -> None:
    """Write a YAML file atomically, with a comment at the top."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    # Keys in the order of the dict.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with write_atomic(path, error=PairwrightError) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("".join(f"# {line}\n" for line in heading.splitlines()))
        yaml.dump(value, file)


Say = Callable[[str], None]


def silent(_: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Inputs of a training job. With `launch=False`, backends with launch files write them and start nothing.

    tokens: the encoded sequences of `pairs` or `experience`, if available; only the backend trl reads them.
    """

    model: str
    pairs: Path | None = None
    experience: Path | None = None
    tokens: Path | None = None
    launch: bool = True
    resume: bool = False


@dataclass(frozen=True, kw_only=True)
class Backend:
    name: str
    submit: Callable[[Path, JobRequest, Config, Say], Job]
    status: Callable[[Path, Job, Config], Status]
    cancel: Callable[[Path, Job, Config], Job]
    deploy: Callable[[Path, Job, Config, Say], Json]
    logs: Callable[[Path, Job, Config, bool], Iterator[str]]
    wait_limits: Callable[[Config], "WaitLimits"]

    def wait(self, folder: Path, config: Config, show: Callable[[Status], None]) -> Status:
        """Poll a job until it ends. Raises JobFailed if it did not complete, JobTimeout after the timeout."""
        with contextlib.suppress(RuntimeError):  # no loop is running in this thread
            asyncio.get_running_loop()
            raise BackendError("wait was called inside an event loop, which it would block: use asyncio.to_thread")
        limits, job = self.wait_limits(config), read_job(folder)
        try:
            # The job is read in each pass: another command may have cancelled it.
            for status in poll(lambda: self.status(folder, read_job(folder), config), limits):
                job = follow_status(folder, read_job(folder), status)  # `status` may have updated the job
                show(status)
                if status.state is JobState.COMPLETED:
                    return status
                if status.state in FINAL:
                    reason = status.message or "no reason given"
                    raise JobFailed(f"{job.id}: {status.state}: {reason}; see: pairwright jobs logs {folder}")
                if status.state is JobState.PREPARED:
                    raise BackendError(
                        f"{job.id}: was only prepared; start it with {job.details.get('script', '--launch')}"
                    )
        except Unreachable as error:
            again = f"The job may be going on; come back to it with: pairwright jobs attach {folder}"
            raise Unreachable(f"{job.id}: {error}. {again}") from error
        raise JobTimeout(
            f"{job.id}: not done after {limits.timeout_seconds:g} s. Wait on with: pairwright jobs attach "
            f"{folder}; end it with: pairwright jobs cancel {folder}"
        )


@dataclass(frozen=True, kw_only=True)
class WaitLimits:
    """Interval and timeout of polling. `max_failures`: consecutive calls that may fail, as in a short outage."""

    poll_interval_seconds: float
    timeout_seconds: float | None
    max_failures: int


def poll(ask: Callable[[], Answer], limits: WaitLimits) -> Iterator[Answer]:
    """Yield an answer per interval, until the timeout. Raises Unreachable after too many failures in a row."""
    started, num_failures = time.monotonic(), 0
    while True:
        try:
            answer = ask()
        except Unreachable as error:
            num_failures += 1
            if num_failures > limits.max_failures:
                raise Unreachable(f"{num_failures} status calls failed in a row, the last with: {error}") from error
        else:
            num_failures = 0
            yield answer
        if limits.timeout_seconds is not None and time.monotonic() - started > limits.timeout_seconds:
            return
        time.sleep(limits.poll_interval_seconds)


def follow_status(folder: Path, job: Job, status: Status) -> Job:
    """Write a new status to the job file. States that cannot follow the current one (stale responses) are ignored."""
    if status.state is job.state or not can_become(job.state, status.state):
        return job
    error = status.message if status.state is JobState.FAILED else job.error
    return write_job(folder, change_job(job, state=status.state, error=error))
