"""Models by name: the outputs of jobs, base models, and entries of clients."""

import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.jobs.job import JobState
from pairwright.jobs.local import result_folder
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.context import Context
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.database import JsonField
from pairwright.service.rows.names import check_name
from pairwright.service.rows.schema import deployments, jobs
from pairwright.service.settings import Settings

ModelDocument = dict[str, Any]
AUTOMATIC = "auto-"  # name prefix of deployments that were started on first use


def find_known(connection: Connection, model: str, caller: Caller) -> RowMapping | Path:
    """Return the job that makes a model, or the folder of a base model. Raises a 422 refusal for other names."""
    row = _job(connection, model)
    if row is not None:
        caller.check(row["namespace"], write=False)
        return row
    target = _target(connection, model)
    if target is None:
        known = [document["id"] for document in list_models(connection, caller, filters={}, limit=50)[0]]
        raise Refusal(
            422, "unknown_model", f"model: {model!r} is not known; known models: {', '.join(known) or 'none'}"
        )
    return Path(target["model_path"])


def model_folder(connection: Connection, model: str, caller: Caller, settings: Settings) -> Path:
    row = find_known(connection, model, caller)
    if isinstance(row, Path):
        return row
    if row["state"] != JobState.COMPLETED:
        raise Refusal(409, "model_not_ready", f"model: {model!r} is made by job {row['id']}, which is {row['state']}")
    folder = result_folder(settings.run_folder(row["id"]))
    if not folder.is_dir():
        raise Refusal(409, "model_gone", f"model: the files of {model!r} are not there any more")
    return folder


# Filters of the list of models, and their columns for models of jobs.
MODEL_FILTERS: dict[str, sa.ColumnElement[Any]] = {
    "namespace": jobs.c.namespace,
    "name": sa.func.substr(jobs.c.output_model, sa.func.length(jobs.c.namespace) + 2),
    "base_model": JsonField(jobs.c.document, "config_snapshot.base_model"),
    "project": JsonField(jobs.c.document, "project"),
}


def list_models(
    connection: Connection,
    caller: Caller,
    *,
    filters: Mapping[str, list[str]],
    by_name: bool = False,
    is_descending: bool = True,
    start: int = 0,
    limit: int = 1000,
) -> tuple[list[ModelDocument], int]:
    """Return a page of the models that the caller may use, and how many there are.

    Models of jobs come newest first, then base models and entries; only the rows of the page are read.
    """
    # There are few entries: all are read at once, not per model of the page.
    entries = {
        f"{entry['namespace']}/{entry['name']}": entry
        for entry in entities.every(connection, entities.MODEL)
        if caller.may(entry["namespace"], write=False)
    }
    others = [
        document
        for document in _other_models(connection, entries)
        if all(str(document.get(name)) in values for name, values in filters.items())
    ]
    where = [
        jobs.c.state == JobState.COMPLETED,
        jobs.c.output_model != "",
        *(MODEL_FILTERS[name].in_(values) for name, values in filters.items()),
    ]
    if caller.namespaces is not None:
        where.append(jobs.c.namespace.in_(caller.namespaces))
    num_jobs = connection.scalar(sa.select(sa.func.count()).select_from(jobs).where(*where)) or 0
    key = jobs.c.output_model if by_name else jobs.c.number
    columns = (jobs.c.output_model, jobs.c.namespace, jobs.c.updated_at)
    chosen = (
        sa.select(*columns, MODEL_FILTERS["base_model"], MODEL_FILTERS["project"])
        .where(*where)
        .order_by(key.desc() if is_descending else key)
    )
    # The others come last in a descending list, first in an ascending one.
    others.sort(key=lambda document: str(document["name" if by_name else "created_at"]), reverse=is_descending)
    before = [] if is_descending else others[start : start + limit]
    offset = start if is_descending else max(0, start - len(others))
    documents = []
    for row in connection.execute(chosen.offset(offset).limit(limit - len(before))):
        document = _document(row[0], row[1], row[2], base_model=row[3], project=row[4])
        documents.append(_with_entry(document, entries.get(document["id"])))
    after = others[max(0, start - num_jobs) :][: limit - len(documents)] if is_descending else []
    return [*before, *documents, *after], num_jobs + len(others)


def _other_models(connection: Connection, entries: Mapping[str, ModelDocument]) -> list[ModelDocument]:
    """Return base models, and entries of clients that no job made."""
    entries, documents = dict(entries), []
    for target in entities.every(connection, entities.TARGET):
        document = _document(target["base_model"], target["namespace"], target["created_at"])
        documents.append(_with_entry(document, entries.pop(document["id"], None)))
    for name, entry in entries.items():
        if _job(connection, name) is None:
            documents.append(_with_entry(_document(name, entry["namespace"], entry["created_at"]), entry))
    return documents


def find_model(connection: Connection, name: str, caller: Caller) -> ModelDocument:
    namespace, _, rest = name.partition("/")
    entry = entities.find(connection, entities.MODEL, namespace, rest)
    row = _job(connection, name)
    if row is not None and row["state"] == JobState.COMPLETED:
        caller.check(row["namespace"], write=False)
        return _with_entry(_document(name, row["namespace"], row["updated_at"]), entry)
    target = _target(connection, name)
    if target is not None:
        return _with_entry(_document(name, target["namespace"], target["created_at"]), entry)
    if entry is None:
        raise not_found("model", name[:300])
    caller.check(namespace, write=False)
    return _with_entry(_document(name, namespace, entry["created_at"]), entry)


def remove_model(context: Context, name: str, caller: Caller) -> None:
    """Delete a model: its files and its entry. Raises a 409 refusal if it is deployed."""
    namespace, _, rest = name.partition("/")
    caller.check(check_name(namespace, "namespace"), write=True)
    folder = None
    with context.database.writing_one_at_a_time("deployments") as connection:
        row = _job(connection, name)
        if row is None and _target(connection, name) is not None:
            raise Refusal(403, "base_model", f"model: {name!r} is a base model, which only the operator removes")
        if row is not None and row["state"] == JobState.COMPLETED:
            caller.check(row["namespace"], write=True)
            refuse_deployed(connection, name)
            folder = model_folder(connection, name, caller, context.settings)
            connection.execute(sa.update(jobs).where(jobs.c.id == row["id"]).values(output_model=""))
        entry = entities.find(connection, entities.MODEL, namespace, rest)
        if entry is not None:
            entities.delete(connection, entities.MODEL, namespace, rest)
        if entry is None and folder is None:
            raise not_found("model", name[:300])
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def refuse_deployed(connection: Connection, model: str) -> None:
    """Raise a 409 refusal if a model is served; servers that were started on first use are stopped instead."""
    is_automatic = deployments.c.name.startswith(AUTOMATIC, autoescape=True)
    connection.execute(sa.delete(deployments).where(deployments.c.model == model, is_automatic))
    chosen = sa.select(deployments.c.namespace, deployments.c.name).where(deployments.c.model == model)
    if model and (row := connection.execute(chosen.limit(1)).first()) is not None:
        message = f"model {model!r} is served by the deployment {row[0]}/{row[1]}: delete that first"
        raise Refusal(409, "model_deployed", message)


def _with_entry(document: ModelDocument, entry: ModelDocument | None) -> ModelDocument:
    if entry is None:
        return document
    return {**{key: value for key, value in entry.items() if value is not None and key != "id"}, **document}


def _document(model: str, namespace: str, created_at: str, **more: str | None) -> ModelDocument:
    return {
        **more,
        "id": model,
        "object": "model",
        # Unix time in seconds, as OpenAI's clients expect.
        "created": int(datetime.fromisoformat(created_at).timestamp()),
        "name": model.partition("/")[2] or model,
        "namespace": namespace,
        "owned_by": namespace,
        "created_at": created_at,
    }


def _job(connection: Connection, model: str) -> RowMapping | None:
    chosen = sa.select(jobs).where(jobs.c.output_model == model).order_by(jobs.c.number.desc())
    matches = list(connection.execute(chosen).mappings())
    # Prefers a completed job to newer ones that failed or still run.
    return next((row for row in matches if row["state"] == JobState.COMPLETED), matches[0] if matches else None)


def _target(connection: Connection, model: str) -> ModelDocument | None:
    for target in entities.every(connection, entities.TARGET):
        if model in (target["name"], target["target"], target["base_model"]):
            return target
    return None
