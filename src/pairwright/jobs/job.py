"""A job: a training task with a lifecycle, wherever it runs. Its reference is `job.json` in the run's folder.

The file is written before anything is started and after every change, whole or not at all, so that `pairwright jobs
attach` finds the job again after a crash of the command, of the machine, or of the network. It holds no secrets.
"""

import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

from pairwright.errors import PairwrightError
from pairwright.paths import write_atomic, write_json
from pairwright.records.messages import Json

FILE_NAME = "job.json"


class BackendError(PairwrightError):
    """A backend cannot do what was asked."""


class ServiceError(BackendError):
    """A service refused a request, with its status and its own words."""

    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message)


class Unreachable(BackendError):
    """A service gave no usable answer; asking again may help."""


class JobFailed(BackendError):
    """The job ended, and not well."""


class JobTimeout(BackendError):
    """We stopped waiting; the job may still be going on."""


class JobState(StrEnum):
    """Where a job is. `prepared`: its files are written and nothing was started."""

    PREPARED = "prepared"
    CREATED = "created"
    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"


# States that never change again.
FINAL = frozenset({JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED})
# The steps of a job's life. A running job is pending again when a scheduler puts it back, or the service restarts.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.PREPARED: frozenset({JobState.CREATED}),
    JobState.CREATED: frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.PENDING, JobState.CANCELLING, JobState.FAILED, JobState.COMPLETED}),
    JobState.CANCELLING: FINAL,
    **{state: frozenset() for state in FINAL},
}


def states_before(new: JobState) -> list[JobState]:
    """The states from which a single step leads to `new`."""
    return [state for state, following in TRANSITIONS.items() if new in following]


def can_become(old: JobState, new: JobState) -> bool:
    """Whether steps lead from one state to another: who polls a job may miss the states in between."""
    # Depth-first search over TRANSITIONS.
    reached, pending = set[JobState](), [old]
    while pending:
        following = TRANSITIONS[pending.pop()] - reached
        reached |= following
        pending += following
    return new in reached


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job now. None means: the backend does not say."""

    state: JobState
    percentage: float | None = None
    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    message: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reference to a job. `details` is what its backend needs to find it again."""

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


def new_job(backend: str, *, model: str, pairs: Path | None, details: Json | None = None) -> Job:
    now = time.time()
    # Sorts by time, and is unique without asking anybody.
    name = f"pw-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{os.urandom(4).hex()}"
    return Job(
        id=name,
        backend=backend,
        state=JobState.CREATED,
        created_at=now,
        updated_at=now,
        model=model,
        pairs=None if pairs is None else str(pairs),
        details=details or {},
    )


def change_job(job: Job, *, state: JobState | None = None, **changes: Any) -> Job:
    """The job with changes. A state that cannot follow the one before is an error of ours, not of the user."""
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
    """Whether a run's folder has a job that was handed over; one that was interrupted before is submitted again."""
    return (folder / FILE_NAME).exists() and read_job(folder).state is not JobState.CREATED


def find_jobs(root: Path) -> Iterator[Path]:
    """The folders below `root`, three levels deep at most, that hold a job."""
    # Fixed depths, not `**`: run folders hold checkpoints with many files.
    for pattern in (FILE_NAME, f"*/{FILE_NAME}", f"*/*/{FILE_NAME}", f"*/*/*/{FILE_NAME}"):
        yield from sorted(path.parent for path in root.glob(pattern))


def job_folder(name: str, root: Path) -> Path:
    """The folder of a job, given as that folder or as the job's id or a beginning of it that is unique."""
    if (Path(name) / FILE_NAME).is_file():
        return Path(name)
    folders = [folder for folder in find_jobs(root) if read_job(folder).id.startswith(name)]
    if len(folders) == 1:
        return folders[0]
    what = f"{len(folders)} jobs begin with that" if folders else "no job has that id, and no such folder has one"
    raise BackendError(f"{name}: {what}; see: pairwright jobs list {root}")


def write_yaml(path: Path, value: Json, *, heading: str) -> None:
    """Write a file that appears whole, with a comment on top."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    # Keys in the order of the dict, as a reader expects them.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    with write_atomic(path, error=PairwrightError) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write("".join(f"# {line}\n" for line in heading.splitlines()))
        yaml.dump(value, file)
