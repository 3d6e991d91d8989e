"""Deployments: model servers, each in its own process, `ready` once the health check succeeds. Also looks up models.

The database holds the desired servers, process locks show the running ones. A server that exits is restarted a few
times. One that does not become healthy in time fails its deployment, with the end of its log. The server of a deleted
row is stopped and its folder removed. Servers that survive a restart of the service are reused.
"""

import contextlib
import http.client
import shutil
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.engines.listening import free_port
from pairwright.errors import PairwrightError
from pairwright.jobs import process
from pairwright.jobs.job import JobState
from pairwright.ledger.run_status import read_status
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.entities import age_seconds, now
from pairwright.service.rows.schema import deployments as rows
from pairwright.service.rows.schema import jobs
from pairwright.service.run.queue import OFFLINE
from pairwright.service.settings import Context, Settings

# Starts in a row that did not lead to an answer.
MAX_STARTS = 4
CHECK_SECONDS = 5.0
Document = dict[str, Any]


class DeploymentState(StrEnum):
    CREATED = "created"
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


TRANSITIONS: dict[DeploymentState, frozenset[DeploymentState]] = {
    DeploymentState.CREATED: frozenset({DeploymentState.PENDING, DeploymentState.FAILED}),
    DeploymentState.PENDING: frozenset({DeploymentState.READY, DeploymentState.FAILED}),
    DeploymentState.READY: frozenset({DeploymentState.PENDING, DeploymentState.FAILED}),
    DeploymentState.FAILED: frozenset(),
}


class Deployments:
    """Manages the model servers. Used only from the supervisor thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        # Monotonic times by id: of the last health check, and of the first request to end.
        self._checked: dict[str, float] = {}
        self._ending: dict[str, float] = {}

    def tick(self) -> None:
        rows_now = self._rows()
        for row in rows_now:
            self._look_after(row)
        self._end_deleted({row["id"] for row in rows_now})

    def stop(self) -> None:
        """Stop all servers. They are started again with the service."""
        rows_now = self._rows()
        folders = [self._settings.deployment_folder(row["id"]) for row in rows_now]
        for folder in folders:
            process.send(folder, signal.SIGTERM)
        # One deadline for all: they end at the same time.
        deadline = time.monotonic() + min(10.0, self._settings.stop_seconds)
        for folder in folders:
            process.stop(folder, grace_seconds=deadline - time.monotonic())
        for row in rows_now:
            self._move(row, DeploymentState.PENDING, "the service was stopped", starts=0)

    def _rows(self) -> list[RowMapping]:
        with self._context.database.reading() as connection:
            return list(connection.execute(sa.select(rows).order_by(rows.c.created_at)).mappings())

    def _look_after(self, row: RowMapping) -> None:
        """Start, check or stop the server of a deployment, according to its state."""
        folder = self._settings.deployment_folder(row["id"])
        state, alive = DeploymentState(row["state"]), process.is_alive(folder)
        if state is DeploymentState.FAILED:
            if alive:
                process.send(folder, signal.SIGKILL)
        elif not alive:
            self._start(row)
        elif state is DeploymentState.PENDING:
            if answers(row["port"]):
                # `starts` counts failures in a row, so an answer resets it.
                self._move(row, DeploymentState.READY, "answers", starts=0)
            elif age_seconds(row["state_at"]) > self._settings.start_seconds:
                process.send(folder, signal.SIGKILL)
                self._fail(row, f"did not answer within {self._settings.start_seconds:g} seconds")
        elif time.monotonic() - self._checked.get(row["id"], 0.0) > CHECK_SECONDS:
            self._checked[row["id"]] = time.monotonic()
            if not answers(row["port"]):
                self._move(row, DeploymentState.PENDING, "does not answer")

    def _start(self, row: RowMapping) -> None:
        """Start the model server on a free port; fail the deployment after too many starts."""
        folder = self._settings.deployment_folder(row["id"])
        if row["starts"] >= MAX_STARTS:
            self._fail(row, f"the model server ended {row['starts']} times")
            return
        port = free_port()
        state = DeploymentState(row["state"])
        description = "the model server is starting" if not row["starts"] else "the model server is started again"
        # PENDING to PENDING is no transition: only the start is noted.
        if state is DeploymentState.PENDING:
            self._update(row, port=port, starts=row["starts"] + 1, description=description, state_at=now())
        elif not self._move(row, DeploymentState.PENDING, description, port=port, starts=row["starts"] + 1):
            return
        work = msgspec.json.decode(row["document"])["work"]
        command = [*self._settings.model_command, work["folder"], "--host", "127.0.0.1", "--port", str(port)]
        try:
            process.start(folder, [*command, *work["arguments"]], environment=OFFLINE)
        except (OSError, PairwrightError) as error:
            self._fail(row, f"the model server could not be started: {error}")

    def _fail(self, row: RowMapping, message: str) -> None:
        lines = process.log_end(self._settings.deployment_folder(row["id"]), 3)
        self._move(row, DeploymentState.FAILED, "; ".join([message, *lines])[:2000])

    def _move(self, row: RowMapping, new: DeploymentState, description: str, **values: Any) -> bool:
        before = [state for state, following in TRANSITIONS.items() if new in following]
        with self._context.database.writing() as connection:
            changed = connection.execute(
                sa.update(rows)
                # Compare-and-set: a row that was deleted or moved meanwhile is left alone.
                .where(rows.c.id == row["id"], rows.c.state.in_(before))
                .values(state=new.value, description=description, state_at=now(), updated_at=now(), **values)
            )
        return changed.rowcount == 1

    def _update(self, row: RowMapping, **values: Any) -> None:
        with self._context.database.writing() as connection:
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(updated_at=now(), **values))

    def _end_deleted(self, known: set[str]) -> None:
        """Stop the servers of deleted deployments, and remove their folders."""
        if not self._settings.deployments.is_dir():
            return
        for folder in self._settings.deployments.iterdir():
            # A folder without a row is that of a deleted deployment.
            if folder.name in known:
                continue
            if not process.is_alive(folder):
                self._ending.pop(folder.name, None)
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.name not in self._ending:
                self._ending[folder.name] = time.monotonic()
                process.send(folder, signal.SIGTERM)
            # Five seconds after SIGTERM.
            elif time.monotonic() - self._ending[folder.name] > 5.0:
                process.send(folder, signal.SIGKILL)


def get(connection: Connection, namespace: str, name: str) -> RowMapping:
    chosen = sa.select(rows).where(rows.c.namespace == namespace, rows.c.name == name)
    row = connection.execute(chosen).mappings().first()
    if row is None:
        raise not_found("deployment", f"{namespace}/{name}")
    return row


def deployment_document(row: RowMapping, base_url: str) -> Document:
    """Build the API document of a deployment. `url` is the root of an OpenAI-compatible server (`/v1` below it)."""
    document: Document = msgspec.json.decode(row["document"])
    # `work` has paths on this machine.
    fields_of_deployment = {key: value for key, value in document.items() if key != "work"}
    return {
        **fields_of_deployment,
        "id": row["id"],
        "name": row["name"],
        "namespace": row["namespace"],
        "url": f"{base_url.rstrip('/')}/deployments/{row['namespace']}/{row['name']}",
        "deployed": row["state"] == DeploymentState.READY,
        "status_details": {"status": row["state"], "description": row["description"]},
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def answers(port: int | None, path: str = "/health") -> bool:
    """Whether the model server on a local port is healthy."""
    if port is None:
        return False
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


# Lookup of models by name: outputs of jobs, and base models

ModelDocument = dict[str, Any]


def check_known(connection: Connection, model: str, caller: Caller) -> None:
    """Raise a 422 refusal if the model is neither a base model nor the output of a job."""
    row = _job(connection, model)
    if row is not None:
        caller.check(row["namespace"], write=False)
    elif _target(connection, model) is None:
        known = [document["id"] for document in every_model(connection, caller)][:50]
        raise Refusal(
            422, "unknown_model", f"model: {model!r} is not known; known models: {', '.join(known) or 'none'}"
        )


def model_folder(connection: Connection, model: str, caller: Caller, settings: Settings) -> Path:
    """Return the folder of a model. Raises a refusal if it is unknown or not ready."""
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


def every_model(connection: Connection, caller: Caller) -> list[ModelDocument]:
    """Return the models that the caller may use: outputs of completed jobs, newest first, then base models."""
    chosen = sa.select(jobs).where(jobs.c.state == JobState.COMPLETED).order_by(jobs.c.number.desc())
    documents = [
        _document(row["output_model"], row["namespace"], row["updated_at"])
        for row in connection.execute(chosen).mappings()
        if caller.may(row["namespace"], write=False)
    ]
    for target in entities.every(connection, entities.TARGET):
        documents.append(_document(target["base_model"], target["namespace"], target["created_at"]))
    return documents


def _document(model: str, namespace: str, created_at: str) -> ModelDocument:
    return {
        "id": model,
        "object": "model",
        "name": model.partition("/")[2] or model,
        "namespace": namespace,
        "owned_by": namespace,
        "created_at": created_at,
    }


def _job(connection: Connection, model: str) -> Any:
    chosen = sa.select(jobs).where(jobs.c.output_model == model).order_by(jobs.c.number.desc())
    matches = list(connection.execute(chosen).mappings())
    # A completed job before newer ones that failed or still run.
    return next((row for row in matches if row["state"] == JobState.COMPLETED), matches[0] if matches else None)


def _target(connection: Connection, model: str) -> ModelDocument | None:
    for target in entities.every(connection, entities.TARGET):
        if model in (target["name"], target["target"], target["base_model"]):
            return target
    return None
