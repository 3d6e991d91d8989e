"""Models by name: what jobs made and what they started from; where their files are."""

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pairwright.backends.job import JobState
from pairwright.ledger.run_status import read_status
from pairwright.service import entities
from pairwright.service.refusals import Refusal
from pairwright.service.schema import jobs
from pairwright.service.settings import Settings
from pairwright.service.tokens import Caller

Document = dict[str, Any]


def check_known(connection: Connection, model: str, caller: Caller) -> None:
    """Refuse a model that no job makes and that is no base model."""
    row = _job(connection, model)
    if row is not None:
        caller.check(row["namespace"], write=False)
    elif _target(connection, model) is None:
        known = [document["id"] for document in every_model(connection, caller)][:50]
        raise Refusal(
            422, "unknown_model", f"model: {model!r} is not known; known models: {', '.join(known) or 'none'}"
        )


def model_folder(connection: Connection, model: str, caller: Caller, settings: Settings) -> Path:
    """The folder of a model that can be served now."""
    check_known(connection, model, caller)
    row = _job(connection, model)
    if row is None:
        target = _target(connection, model)
        assert target is not None
        return Path(target["model_path"])
    if row["state"] != JobState.COMPLETED:
        raise Refusal(409, "model_not_ready", f"model: {model!r} is made by job {row['id']}, which is {row['state']}")
    run_folder = settings.run_folder(row["id"])
    run = read_status(run_folder, strict=False)
    folder = run_folder / ((run and run.model) or "model")
    if not folder.is_dir():
        raise Refusal(409, "model_gone", f"model: the files of {model!r} are not there any more")
    return folder


def every_model(connection: Connection, caller: Caller) -> list[Document]:
    """Models that the caller may use, newest first."""
    chosen = sa.select(jobs).where(jobs.c.state == JobState.COMPLETED).order_by(jobs.c.number.desc())
    found = [
        _document(row["output_model"], row["namespace"], row["updated_at"])
        for row in connection.execute(chosen).mappings()
        if caller.may(row["namespace"], write=False)
    ]
    for target in entities.every(connection, entities.TARGET):
        found.append(_document(target["base_model"], target["namespace"], target["created_at"]))
    return found


def _document(model: str, namespace: str, created_at: str) -> Document:
    return {"id": model, "object": "model", "name": model.partition("/")[2] or model, "namespace": namespace,
            "owned_by": namespace, "created_at": created_at}  # fmt: skip


def _job(connection: Connection, model: str) -> Any:
    chosen = sa.select(jobs).where(jobs.c.output_model == model).order_by(jobs.c.number.desc())
    found = list(connection.execute(chosen).mappings())
    return next((row for row in found if row["state"] == JobState.COMPLETED), found[0] if found else None)


def _target(connection: Connection, model: str) -> Document | None:
    for target in entities.every(connection, entities.TARGET):
        if model in (target["name"], target["target"], target["base_model"]):
            return target
    return None
