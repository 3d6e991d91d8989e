"""Deployments: each is a model server in a process of its own, `ready` when it answers.

Rows say which servers should be there, locks say which are. A server that is gone is started again, a few times; one
that does not answer in time is a failed deployment with the end of its log. A folder whose row was deleted is the
sign to end its server. After a restart of the service a server that lives is found and used on.
"""

import contextlib
import http.client
import shutil
import signal
import time
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.backends import process
from pairwright.collect.listening import free_port
from pairwright.errors import PairwrightError
from pairwright.service.context import Context
from pairwright.service.names import age_seconds, now
from pairwright.service.queue import OFFLINE
from pairwright.service.refusals import not_found
from pairwright.service.schema import deployments as rows

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
    """Runs in the one thread that supervises."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._checked: dict[str, float] = {}
        self._ending: dict[str, float] = {}

    def tick(self) -> None:
        found = self._rows()
        for row in found:
            self._look_after(row)
        self._end_deleted({row["id"] for row in found})

    def stop(self) -> None:
        """End all servers; they are started again with the service."""
        found = self._rows()
        folders = [self._settings.deployment_folder(row["id"]) for row in found]
        for folder in folders:
            process.send(folder, signal.SIGTERM)
        deadline = time.monotonic() + min(10.0, self._settings.stop_seconds)
        for folder in folders:
            process.stop(folder, grace_seconds=deadline - time.monotonic())
        for row in found:
            self._move(row, DeploymentState.PENDING, "the service was stopped", starts=0)

    def _rows(self) -> list[RowMapping]:
        with self._context.database.reading() as connection:
            return list(connection.execute(sa.select(rows).order_by(rows.c.created_at)).mappings())

    def _look_after(self, row: RowMapping) -> None:
        folder = self._settings.deployment_folder(row["id"])
        state, alive = DeploymentState(row["state"]), process.is_alive(folder)
        if state is DeploymentState.FAILED:
            if alive:
                process.send(folder, signal.SIGKILL)
        elif not alive:
            self._start(row)
        elif state is DeploymentState.PENDING:
            if answers(row["port"]):
                self._move(row, DeploymentState.READY, "answers", starts=0)
            elif age_seconds(row["state_at"]) > self._settings.start_seconds:
                process.send(folder, signal.SIGKILL)
                self._fail(row, f"did not answer within {self._settings.start_seconds:g} seconds")
        elif time.monotonic() - self._checked.get(row["id"], 0.0) > CHECK_SECONDS:
            self._checked[row["id"]] = time.monotonic()
            if not answers(row["port"]):
                self._move(row, DeploymentState.PENDING, "does not answer")

    def _start(self, row: RowMapping) -> None:
        folder = self._settings.deployment_folder(row["id"])
        if row["starts"] >= MAX_STARTS:
            self._fail(row, f"the model server ended {row['starts']} times")
            return
        port = free_port()
        state = DeploymentState(row["state"])
        description = "the model server is starting" if not row["starts"] else "the model server is started again"
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
                .where(rows.c.id == row["id"], rows.c.state.in_(before))
                .values(state=new.value, description=description, state_at=now(), updated_at=now(), **values)
            )
        return changed.rowcount == 1

    def _update(self, row: RowMapping, **values: Any) -> None:
        with self._context.database.writing() as connection:
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(updated_at=now(), **values))

    def _end_deleted(self, known: set[str]) -> None:
        if not self._settings.deployments.is_dir():
            return
        for folder in self._settings.deployments.iterdir():
            if folder.name in known:
                continue
            if not process.is_alive(folder):
                self._ending.pop(folder.name, None)
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.name not in self._ending:
                self._ending[folder.name] = time.monotonic()
                process.send(folder, signal.SIGTERM)
            elif time.monotonic() - self._ending[folder.name] > 5.0:
                process.send(folder, signal.SIGKILL)


def get(connection: Connection, namespace: str, name: str) -> RowMapping:
    chosen = sa.select(rows).where(rows.c.namespace == namespace, rows.c.name == name)
    row = connection.execute(chosen).mappings().first()
    if row is None:
        raise not_found("deployment", f"{namespace}/{name}")
    return row


def deployment_document(row: RowMapping, base_url: str) -> Document:
    """A deployment as clients see it; `url` is the root of an OpenAI-compatible server (`/v1` below it)."""
    document: Document = msgspec.json.decode(row["document"])
    shown = {key: value for key, value in document.items() if key != "work"}
    return {
        **shown,
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
    """Whether a model server on this machine says that it is ready."""
    if port is None:
        return False
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
