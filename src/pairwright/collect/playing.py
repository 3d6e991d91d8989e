"""How a run that raised ended: the kind of its failure, and a message with the place in the user's code."""

import traceback
from pathlib import Path

import pairwright
from pairwright.collect.failures import FailureKind, PolicyError, ScorerError, one_line
from pairwright.collect.ledger import Entry
from pairwright.collect.tasks import Task
from pairwright.errors import RecordError

_OURS = str(Path(pairwright.__file__).parent)


def failed_entry(task: Task, error: Exception, *, expired: float | None = None) -> Entry:
    """The entry of a run that raised; `expired` is the run's time limit if that is what ended it."""
    if expired is not None:
        return _entry(task, "timeout", f"took longer than {expired:g} s")
    cause = _first_cause(error)
    if isinstance(cause, PolicyError):
        return _entry(task, cause.kind, str(cause))
    if isinstance(cause, ScorerError):
        return _entry(task, "scorer", str(cause))
    kind: FailureKind = "record" if isinstance(cause, RecordError) else "workflow"
    return _entry(task, kind, f"{one_line(cause)}{_place(cause)}")


def _entry(task: Task, kind: FailureKind, message: str) -> Entry:
    return Entry(task=task.id, run=task.run, state="failed", kind=kind, message=" ".join(message.split())[:1000])


def _first_cause(error: BaseException) -> BaseException:
    """What a group of exceptions, as asyncio.TaskGroup raises them, is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
