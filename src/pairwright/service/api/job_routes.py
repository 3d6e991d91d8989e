"""Routes of jobs, and of the base models that they can train."""

from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from sqlalchemy.engine import RowMapping
from starlette.responses import Response

from pairwright.jobs import process
from pairwright.jobs.job import JobState
from pairwright.jobs.local import PROCESS
from pairwright.service.access import CallerIs
from pairwright.service.api.entity_crud import deletion_document
from pairwright.service.api.paging import FILTERED, Paging, PagingIs, envelope, json_answer, page_of
from pairwright.service.api_errors import not_found
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.request_models import JobBody
from pairwright.service.rows import entities
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.database import JsonField
from pairwright.service.rows.job_progress import read_metrics, summary
from pairwright.service.rows.names import check_model_name, check_name
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.base_models import config_document, target_document
from pairwright.service.run.job_control import JobIs, end_job, remove_job, reopen_job
from pairwright.service.run.submitting import IdentityOf, submit

router = APIRouter(prefix="/v1/customization", tags=["jobs"])


def _field(path: str) -> sa.ColumnElement[str]:
    return JsonField(rows.c.document, path)


# The columns that each filter compares; a job matches if one of them has the value.
_VALUES: dict[str, tuple[sa.ColumnElement[Any], ...]] = {
    "namespace": (rows.c.namespace,),
    "status": (rows.c.state,),
    "name": (rows.c.name,),
    "project": (_field("project"),),
    "base_model": (_field("config_snapshot.base_model"),),
    "dataset": (
        _field("dataset.name"),
        _field("dataset.namespace").concat("/").concat(_field("dataset.name")),
        _field("dataset.files_url"),
    ),
    **{
        name: (_field(f"hyperparameters.{name}"),)
        for name in ("batch_size", "epochs", "finetuning_type", "log_every_n_steps", "training_type")
    },
}


@router.post("/jobs")
def create_job(body: JobBody, caller: CallerIs, context: ContextIs, identity_of: IdentityOf) -> Document:
    """Submit a job. A repeated request returns the job of the first one."""
    return jobs.job_document(submit(context, body, caller, identity_of(body)))


@router.get("/jobs", openapi_extra=FILTERED)
def list_jobs(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
    """Jobs that the caller may read, newest first."""
    where = _conditions(asked, caller)
    # `number` grows with each job, so it sorts by creation without ties.
    order: Any = {"name": rows.c.name, "updated_at": rows.c.updated_at}.get(asked.key, rows.c.number)
    # Jobs with equal names or times are listed newest first.
    chosen = (
        sa.select(rows).where(*where).order_by(order.desc() if asked.is_descending else order, rows.c.number.desc())
    )
    with context.database.reading() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(rows).where(*where)) or 0
        page = chosen.offset((asked.page - 1) * asked.page_size).limit(asked.page_size)
        listed = [jobs.job_document(row) for row in connection.execute(page).mappings()]
    return envelope(listed, total, asked)


@router.get("/jobs/{job_id}")
def read_job(row: JobIs, context: ContextIs) -> Document:
    """One job."""
    return jobs.job_document(row, _progress(row, context))


@router.get("/jobs/{job_id}/status")
def read_status(row: JobIs, context: ContextIs) -> Response:
    """Progress of a job, with its curves."""
    curves = read_metrics(context.settings.run_folder(row["id"]))
    for name in ("train_loss", "val_loss"):
        curves.setdefault(name, [])
    details = jobs.status_details(row, _progress(row, context))
    return json_answer({**details, "metrics": {"keys": sorted(curves), "metrics": curves}})


@router.post("/jobs/{job_id}/cancel")
def cancel_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Cancel a job: at once if it waits, else as soon as its worker has ended."""
    return jobs.job_document(end_job(context, job_id, caller, is_paused=False))


@router.post("/jobs/{job_id}/pause")
def pause_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Cancel a job and keep its checkpoints, so that it can be resumed."""
    return jobs.job_document(end_job(context, job_id, caller, is_paused=True))


@router.post("/jobs/{job_id}/resume")
def resume_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Requeue a job that failed, or was paused or cancelled; it continues from its last checkpoint."""
    return jobs.job_document(reopen_job(context, job_id, caller))


@router.delete("/jobs/{job_id}")
def delete_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Delete a job that has ended, with its files and its model."""
    remove_job(context, job_id, caller)
    return deletion_document(job_id)


@router.get("/jobs/{job_id}/container-logs")
def read_logs(row: JobIs, context: ContextIs) -> Document:
    """The last lines that the worker wrote."""
    text = "\n".join(process.log_end(context.settings.run_folder(row["id"]) / PROCESS, 1000))
    lines = context.settings.hide_paths(text).split("\n") if text else []
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
def list_configs(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
    """Base models that can be trained, with the names that jobs use."""
    with context.database.reading() as connection:
        configs = [config_document(target) for target in entities.every(connection, entities.TARGET)]
    of_target = {f"target_{name}": f"target.{name}" for name in ("base_model", "name", "enabled")}
    of_options = {name: f"training_options.{name}" for name in ("training_type", "finetuning_type")}
    return page_of(configs, asked, "name", "namespace", **of_target, **of_options)


@router.get("/configs/{namespace}/{name:path}")
def read_config(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """One configuration."""
    return _find_by_name(context, namespace, name, "config")


@router.get("/targets", openapi_extra=FILTERED)
def list_targets(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
    """The base models."""
    with context.database.reading() as connection:
        targets = [target_document(target) for target in entities.every(connection, entities.TARGET)]
    return page_of(targets, asked, "name", "namespace", "base_model", "status", "enabled")


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


def _progress(row: RowMapping, context: Context) -> Document | None:
    """Read the current progress of a running job; None for other jobs, whose progress is in the row."""
    if row["state"] not in (JobState.RUNNING, JobState.CANCELLING):
        return None
    return summary(context.settings.run_folder(row["id"]), is_completed=False)


def _conditions(asked: Paging, caller: Caller) -> list[sa.ColumnElement[bool]]:
    where: list[sa.ColumnElement[bool]] = []
    for key, bound, values in asked.parts(_VALUES):
        if bound:
            where.append(rows.c[key] >= values[0] if bound == "gte" else rows.c[key] <= values[0])
            continue
        matching: list[sa.ColumnElement[bool]] = [value.in_(values) for value in _VALUES[key]]
        if key == "dataset":
            # A URL without its commit matches all revisions.
            url = _field("dataset.files_url")
            matching += [url.startswith(f"{value}@", autoescape=True) for value in values]
        where.append(sa.or_(*matching))
    if caller.namespaces is not None:
        where.append(rows.c.namespace.in_(caller.namespaces))
    return where
