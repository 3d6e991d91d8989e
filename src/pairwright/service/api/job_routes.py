"""Routes of jobs, and of the base models that they can train."""

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Header, Request
from sqlalchemy.engine import RowMapping

from pairwright.jobs import process
from pairwright.jobs.job import JobState
from pairwright.jobs.local import PROCESS
from pairwright.service.access import CallerIs
from pairwright.service.api.paging import FILTERED, Getter, Paging, PagingIs, envelope, matches, page_of
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.request_models import JobBody
from pairwright.service.rows import entities
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.entities import check_model_name, check_name
from pairwright.service.rows.job_rows import read_metrics, summary
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.base_models import config_document, target_document
from pairwright.service.run.submitting import submit
from pairwright.service.settings import Context, context_of

router = APIRouter(prefix="/v1/customization", tags=["jobs"])
ContextIs = Annotated[Context, Depends(context_of)]
Document = dict[str, Any]


# Hyperparameters by name, for the filters below.
def _knob(name: str) -> Getter:
    return lambda document: document["hyperparameters"].get(name)


JOB_FILTERS: dict[str, Getter] = {
    "namespace": lambda document: document["namespace"],
    "name": lambda document: document["name"],
    "project": lambda document: document["project"],
    "status": lambda document: document["status"],
    "base_model": lambda document: document["config_snapshot"]["base_model"],
    "dataset": lambda document: document["dataset"]["name"],
    **{name: _knob(name) for name in ("batch_size", "epochs", "finetuning_type", "log_every_n_steps", "training_type")},
}
# Filters that the database applies; the others need the document.
_COLUMNS = {"namespace": rows.c.namespace, "status": rows.c.state, "name": rows.c.name}


@router.post("/jobs")
def create_job(
    body: JobBody,
    request: Request,
    caller: CallerIs,
    context: ContextIs,
    idempotency_key: Annotated[str | None, Header(max_length=300)] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
    x_stainless_read_timeout: Annotated[str | None, Header()] = None,
) -> Document:
    """Submit a job. The same request sent again is answered with the job that it made."""
    identity = jobs.request_of(
        caller.name,
        body.model_dump_json().encode(),
        key=idempotency_key,
        attempt=x_stainless_retry_count,
        timeout=x_stainless_read_timeout,
    )
    # Serialized, so that a request sent twice at once still makes one job.
    with context.database.writing_one_at_a_time("jobs") as connection:
        row = submit(connection, body, caller, identity)
    context.wake.set()
    return jobs.job_document(row)


@router.get("/jobs", openapi_extra=FILTERED)
def list_jobs(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Document:
    """Jobs that the caller may read, newest first."""
    where, rest = _conditions(asked, caller)
    # `number` grows with each job, so it sorts by creation without ties.
    order = rows.c.name if asked.key == "name" else rows.c.updated_at if asked.key == "updated_at" else rows.c.number
    chosen = sa.select(rows).where(*where).order_by(order.desc() if asked.is_descending else order)
    with context.database.reading() as connection:
        # Some filter is on the document: all rows are decoded, and the page is cut here.
        if rest:
            documents = [jobs.job_document(row) for row in connection.execute(chosen).mappings()]
            matching = [document for document in documents if matches(document, rest, JOB_FILTERS)]
            start = (asked.page - 1) * asked.page_size
            return envelope(matching[start : start + asked.page_size], len(matching), asked)
        total = connection.scalar(sa.select(sa.func.count()).select_from(rows).where(*where)) or 0
        page = chosen.offset((asked.page - 1) * asked.page_size).limit(asked.page_size)
        documents = [jobs.job_document(row) for row in connection.execute(page).mappings()]
    return envelope(documents, total, asked)


@router.get("/jobs/{job_id}")
def read_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """One job."""
    row = _job(job_id, caller, context)
    return jobs.job_document(row, _progress(row, context))


@router.get("/jobs/{job_id}/status")
def read_status(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """How far a job is, with its curves."""
    row = _job(job_id, caller, context)
    curves = read_metrics(context.settings.run_folder(row["id"]))
    # The two curves that clients always expect.
    for name in ("train_loss", "val_loss"):
        curves.setdefault(name, [])
    details = jobs.status_details(row, _progress(row, context))
    return {**details, "metrics": {"keys": sorted(curves), "metrics": curves}}


@router.post("/jobs/{job_id}/cancel")
def cancel_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Cancel a job: at once if it waits, else as soon as its worker has ended."""
    _job(job_id, caller, context, write=True)
    with context.database.writing() as connection:
        # Read again inside the transaction: the job may have moved on since the check.
        row = jobs.get(connection, job_id)
        if row["state"] in jobs.WAITING:
            jobs.move(connection, job_id, JobState.CANCELLED, f"cancelled by {caller.name}")
        elif row["state"] == JobState.RUNNING:
            jobs.move(connection, job_id, JobState.CANCELLING, f"cancellation asked for by {caller.name}")
        elif row["state"] not in (JobState.CANCELLING, JobState.CANCELLED):
            raise Refusal(409, "job_ended", f"job {job_id} is {row['state']}: there is nothing to cancel")
        row = jobs.get(connection, job_id)
    context.wake.set()
    return jobs.job_document(row)


@router.get("/jobs/{job_id}/container-logs")
def read_logs(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """The last lines that the worker wrote."""
    row = _job(job_id, caller, context)
    lines = process.log_end(context.settings.run_folder(row["id"]) / PROCESS, 1000)
    error = None
    if row["state"] == JobState.FAILED:
        last = jobs.status_details(row)["status_logs"][-1]
        error = {"message": last["message"], "explanation": last["detail"], "timestamp": last["updated_at"]}
    entry = {
        "object": "worker",
        "status": {"state": row["state"], "starts": row["starts"]},
        "events": [],
        "logs": {"lines": lines},
    }
    return {"entries": {"worker": entry}, "error": error}


@router.get("/configs", openapi_extra=FILTERED)
def list_configs(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Document:
    """What can be trained: base models with the names that jobs use."""
    with context.database.reading() as connection:
        configs = [config_document(target) for target in entities.every(connection, entities.TARGET)]
    filters: dict[str, Getter] = {
        "name": lambda config: config["name"],
        "namespace": lambda config: config["namespace"],
        "target_base_model": lambda config: config["target"]["base_model"],
        "target_name": lambda config: config["target"]["name"],
        "target_enabled": lambda config: config["target"]["enabled"],
    }
    return page_of(configs, asked, filters)


@router.get("/configs/{namespace}/{name:path}")
def read_config(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """One configuration."""
    return _find_by_name(context, namespace, name, "config")


@router.get("/targets", openapi_extra=FILTERED)
def list_targets(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Document:
    """The base models."""
    with context.database.reading() as connection:
        targets = [target_document(target) for target in entities.every(connection, entities.TARGET)]
    names = ("name", "namespace", "base_model", "status", "enabled")
    return page_of(targets, asked, {name: _field(name) for name in names})


@router.get("/targets/{namespace}/{name:path}")
def read_target(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """One base model."""
    return _find_by_name(context, namespace, name, "target")


def _find_by_name(context: Context, namespace: str, name: str, kind: str) -> Document:
    check_name(namespace, "namespace")
    check_model_name(name, "name")
    with context.database.reading() as connection:
        targets = entities.every(connection, entities.TARGET)
    show = config_document if kind == "config" else target_document
    for target in targets:
        document = show(target)
        if (document["namespace"], document["name"]) == (namespace, name):
            return document
    raise not_found(kind, f"{namespace}/{name}", hint=f"known: {', '.join(target['name'] for target in targets)}")


def _job(job_id: str, caller: Caller, context: Context, *, write: bool = False) -> RowMapping:
    with context.database.reading() as connection:
        row = jobs.get(connection, check_name(job_id, "job_id"))
    caller.check(row["namespace"], write=write)
    return row


def _progress(row: RowMapping, context: Context) -> Document | None:
    """Read the current progress of a running job; None for other jobs, whose progress is in the row."""
    if row["state"] not in (JobState.RUNNING, JobState.CANCELLING):
        return None
    return summary(context.settings.run_folder(row["id"]), is_completed=False)


def _conditions(asked: Paging, caller: Caller) -> tuple[list[sa.ColumnElement[bool]], dict[str, str]]:
    """Split the filters into SQL conditions and those left to apply to the documents."""
    where: list[sa.ColumnElement[bool]] = []
    rest = dict(asked.filters)
    for name, column in _COLUMNS.items():
        if name in rest:
            where.append(column.in_(rest.pop(name).replace("\0", "").split(",")))
    if not caller.is_everywhere:
        # A scope is NAMESPACE or NAMESPACE:RIGHT; either may read.
        where.append(rows.c.namespace.in_(sorted({scope.partition(":")[0] for scope in caller.scopes})))
    return where, rest


def _field(name: str) -> Getter:
    return lambda document: document.get(name)
