"""Rows of the jobs table. State changes use compare-and-set.

A repeated POST does not create a second job. With an `idempotency-key` header, the job of the same caller and key is
returned. Clients without the header mark retries by `x-stainless-retry-count`: such a request returns the recent job
with the same body, unless this or a later retry has already claimed it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.jobs.job import JobState, states_before
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.rows.job_progress import NOTHING_YET
from pairwright.service.rows.names import age_seconds, now
from pairwright.service.rows.schema import Document, jobs

WAITING = (JobState.CREATED, JobState.PENDING)
WITH_WORKER = (JobState.RUNNING, JobState.CANCELLING)
REOPENED = (JobState.FAILED, JobState.CANCELLED)
MAX_LOG_ENTRIES = 100


@dataclass(frozen=True)
class Request:
    """Identity of a submission, for detecting retries."""

    body_hash: str
    key: str | None
    attempt: int
    window_seconds: float


def find_repeat(connection: Connection, request: Request) -> RowMapping | None:
    """Return the job created by an earlier attempt of this request, or None."""
    if request.key is not None:
        row = connection.execute(sa.select(jobs).where(jobs.c.request_key == request.key)).mappings().first()
        if row is not None and row["request_hash"] != request.body_hash:
            raise Refusal(409, "key_reused", "this idempotency-key belongs to a job with another body: use a new key")
        return row
    if not request.attempt:
        return None
    chosen = (
        sa.select(jobs)
        # `attempt` is the last retry that returned this job: a smaller one means that this retry has not claimed it.
        .where(jobs.c.request_hash == request.body_hash, jobs.c.attempt < request.attempt)
        .order_by(jobs.c.number.desc())
        .limit(1)
    )
    row = connection.execute(chosen).mappings().first()
    if row is None or age_seconds(row["created_at"]) > request.window_seconds:
        return None
    # Claimed, so that this retry of another submission with the same body does not match the job.
    connection.execute(sa.update(jobs).where(jobs.c.id == row["id"]).values(attempt=request.attempt))
    return row


def insert(connection: Connection, document: Document, request: Request) -> RowMapping:
    """Insert a job in state `created`. Raises a 409 refusal if its name or output model exists."""
    moment = now()
    identity, namespace = document["id"], document["namespace"]
    name = document["name"] or identity
    taken = sa.select(jobs.c.id).where(jobs.c.namespace == namespace, jobs.c.name == name)
    if connection.scalar(taken) is not None:
        raise Refusal(409, "job_exists", f"there is already a job named {name!r} in namespace {namespace!r}")
    refuse_taken_model(connection, document["output_model"])
    row = {
        "id": identity,
        "namespace": namespace,
        "name": name,
        "output_model": document["output_model"],
        "state": JobState.CREATED.value,
        "created_at": moment,
        "updated_at": moment,
        "request_key": request.key,
        "request_hash": request.body_hash,
        "attempt": request.attempt,
        "document": document,
        "progress": {},
        "log": [_entry(moment, "created", None)],
    }
    connection.execute(sa.insert(jobs).values(row))
    return get(connection, identity)


def refuse_taken_model(connection: Connection, model: str) -> None:
    """Raise a 409 refusal if another job makes, or has made, a model of this name."""
    written = sa.select(jobs.c.id).where(jobs.c.output_model == model, jobs.c.state.not_in(REOPENED))
    if model and (other := connection.scalar(written)) is not None:
        message = f"output_model: {model!r} is made by job {other}: choose another"
        raise Refusal(409, "output_model_exists", message)


def set_document(connection: Connection, identity: str, **changes: Any) -> None:
    document = {**get(connection, identity)["document"], **changes}
    connection.execute(sa.update(jobs).where(jobs.c.id == identity).values(document=document))


# Built once, since every poll of a client runs it.
_BY_ID = sa.select(jobs).where(jobs.c.id == sa.bindparam("identity"))


def get(connection: Connection, identity: str) -> RowMapping:
    row = connection.execute(_BY_ID, {"identity": identity}).mappings().first()
    if row is None:
        raise not_found("job", identity[:200])
    return row


def in_states(connection: Connection, states: Sequence[JobState], limit: int | None = None) -> list[RowMapping]:
    """Return the jobs in the given states, oldest first."""
    chosen = sa.select(jobs).where(jobs.c.state.in_(states)).order_by(jobs.c.number).limit(limit)
    return list(connection.execute(chosen).mappings())


def move(
    connection: Connection,
    identity: str,
    new: JobState,
    message: str,
    *,
    before: Sequence[JobState] | None = None,
    detail: str | None = None,
    **values: Any,
) -> bool:
    """Change the state of a job. Returns False if its state is not in `before`, by default those that allow `new`."""
    row = get(connection, identity)
    if row["state"] not in (states_before(new) if before is None else before):
        return False
    moment = now()
    log = [*row["log"], _entry(moment, message, detail)][-MAX_LOG_ENTRIES:]
    changed = connection.execute(
        sa.update(jobs)
        # Compare-and-set: no effect if another transaction moved the job meanwhile.
        .where(jobs.c.id == identity, jobs.c.state == row["state"])
        .values(state=new.value, updated_at=moment, log=log, **values)
    )
    return changed.rowcount == 1


def job_document(row: RowMapping, progress: Document | None = None) -> Document:
    """Build the API document of a job, with the given progress, or that of the row."""
    document = {
        **row["document"],
        "status": row["state"],
        "status_details": status_details(row, progress),
        "name": row["name"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }
    # `work` has local paths and is only for the worker. `openai` is shown by the routes of that API.
    for key in ("work", "openai", "is_paused"):
        document.pop(key, None)
    return document


def status_details(row: RowMapping, progress: Document | None = None) -> Document:
    known: Document = {**NOTHING_YET, **(progress or row["progress"])}
    if row["state"] == JobState.COMPLETED:
        known["percentage_done"] = 100.0
    # Seconds of earlier starts; those of the current one are added.
    seconds = row["seconds"]
    if row["state"] in (JobState.RUNNING, JobState.CANCELLING) and row["started_at"]:
        seconds += max(0.0, age_seconds(row["started_at"]))
    return {
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
        "status": row["state"],
        "elapsed_time": round(seconds, 3),
        "heartbeat_at": row["heartbeat_at"],
        **known,
        "status_logs": row["log"],
    }


def _entry(moment: str, message: str, detail: str | None) -> Document:
    return {"updated_at": moment, "message": message, "detail": detail}
