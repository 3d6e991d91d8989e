"""Deployments: model servers, each in its own process, `ready` once the health check succeeds.

The database holds the desired servers, process locks show the running ones. A server that exits is restarted a few
times. One that does not become healthy in time fails its deployment, with the end of its log. The server of a deleted
row is stopped and its folder removed. Servers that survive a restart of the service are reused. A server requires its
secret, passed in its environment, so that other programs on the machine cannot use it. Time is counted pass by pass,
as in queue.py.
"""

import shutil
import signal
import time
from enum import StrEnum
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.engines.listening import free_port
from pairwright.errors import PairwrightError
from pairwright.jobs import process
from pairwright.service.api_errors import Refusal, already_there, not_found
from pairwright.service.context import Context
from pairwright.service.rows.names import new_id, now
from pairwright.service.rows.schema import Document
from pairwright.service.rows.schema import deployments as rows
from pairwright.service.run.queue import OFFLINE, Quiet
from pairwright.service.settings import Settings

# Maximum number of consecutive starts without a successful health check.
MAX_STARTS = 4
CHECK_SECONDS = 5.0
SECRET = "PAIRWRIGHT_MODEL_SECRET"  # environment variable of a model server
EXTERNAL = 0  # port of a deployment with an external endpoint


class DeploymentState(StrEnum):
    CREATED = "created"
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


class Deployments:
    """Manages the model servers. Used only from the supervisor thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        # Monotonic times by id: of the last health check, and of the first SIGTERM.
        self._checked: dict[str, float] = {}
        self._ending: dict[str, float] = {}
        # How long a server has been starting, by id.
        self._starting: dict[str, Quiet] = {}

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
        # One deadline for all, since they stop in parallel.
        deadline = time.monotonic() + min(10.0, self._settings.stop_seconds)
        for folder in folders:
            process.stop(folder, grace_seconds=deadline - time.monotonic())
        for row in rows_now:
            if row["state"] in (DeploymentState.CREATED, DeploymentState.READY):
                self._move(row, DeploymentState.PENDING, "the service was stopped", starts=0)

    def _rows(self) -> list[RowMapping]:
        # An external endpoint has no server here.
        chosen = sa.select(rows).where(rows.c.port.is_distinct_from(EXTERNAL)).order_by(rows.c.created_at)
        with self._context.database.reading() as connection:
            return list(connection.execute(chosen).mappings())

    def _look_after(self, row: RowMapping) -> None:
        folder = self._settings.deployment_folder(row["id"])
        state, alive = DeploymentState(row["state"]), process.is_alive(folder)
        if state is DeploymentState.FAILED:
            if alive:
                process.send(folder, signal.SIGKILL)
        elif not alive:
            self._start(row)
        elif state is DeploymentState.PENDING:
            if answers(row["port"], self._settings.secret_of(row["id"])):
                # `starts` counts consecutive failures, so an answer resets it.
                self._move(row, DeploymentState.READY, "answers", starts=0)
                self._starting.pop(row["id"], None)
            # Each start has a different `state_at`.
            elif self._starting.setdefault(row["id"], Quiet()).observe(row["state_at"]) > self._settings.start_seconds:
                process.send(folder, signal.SIGKILL)
                self._fail(row, f"did not answer within {self._settings.start_seconds:g} seconds")
        elif time.monotonic() - self._checked.get(row["id"], 0.0) > CHECK_SECONDS:
            self._checked[row["id"]] = time.monotonic()
            if not answers(row["port"], self._settings.secret_of(row["id"])):
                self._move(row, DeploymentState.PENDING, "does not answer")

    def _start(self, row: RowMapping) -> None:
        folder = self._settings.deployment_folder(row["id"])
        if row["starts"] >= MAX_STARTS:
            self._fail(row, f"the model server ended {row['starts']} times")
            return
        port = free_port()
        description = "the model server is starting" if not row["starts"] else "the model server is started again"
        if not self._move(row, DeploymentState.PENDING, description, port=port, starts=row["starts"] + 1):
            return  # deleted a moment ago
        work = row["document"]["work"]
        command = [*self._settings.model_command, work["folder"], "--host", "127.0.0.1", "--port", str(port)]
        command += ["--api-key-env", SECRET, *work["arguments"]]
        try:
            # Passed in the environment, since other users can see the command line.
            process.start(folder, command, environment={**OFFLINE, SECRET: self._settings.secret_of(row["id"])})
        except (OSError, PairwrightError) as error:
            self._fail(row, f"{error}; the model server could not be started")

    def _fail(self, row: RowMapping, message: str) -> None:
        lines = process.log_end(self._settings.deployment_folder(row["id"]), 3)
        description = self._settings.hide_paths("; ".join([*lines[-1:], message, *lines[:-1]]))
        self._move(row, DeploymentState.FAILED, description[:2000])

    def _move(self, row: RowMapping, new: DeploymentState, description: str, **values: Any) -> bool:
        """Record a state; False if the deployment was deleted meanwhile. Only the supervisor thread changes states."""
        values |= {"state": new.value, "description": description, "state_at": now(), "updated_at": now()}
        with self._context.database.writing() as connection:
            return connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(values)).rowcount == 1

    def _end_deleted(self, known: set[str]) -> None:
        if not self._settings.deployments.is_dir():
            return
        for folder in self._settings.deployments.iterdir():
            # A folder without a row belongs to a deleted deployment.
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


def insert(
    connection: Connection, settings: Settings, *, namespace: str, name: str, model: str, document: Document
) -> RowMapping:
    """Insert a deployment. `document["work"]` has the model folder, or the address of an external endpoint."""
    taken = sa.select(rows.c.id).where(rows.c.namespace == namespace, rows.c.name == name)
    if connection.scalar(taken) is not None:
        raise already_there("deployment", f"{namespace}/{name}")
    is_external = "host_url" in document["work"]
    if not is_external and len(served_here(connection)) >= settings.max_deployments:
        raise Refusal(409, "too_many_deployments", f"{settings.max_deployments} models are served: delete one first")
    moment = now()
    row = {
        "id": new_id("deployment"),
        "namespace": namespace,
        "name": name,
        "model": model,
        "state": (DeploymentState.READY if is_external else DeploymentState.CREATED).value,
        "description": "leads to an external endpoint" if is_external else "waiting for its model server",
        "port": EXTERNAL if is_external else None,
        "created_at": moment,
        "updated_at": moment,
        "state_at": moment,
        "document": document,
    }
    connection.execute(sa.insert(rows).values(row))
    return get(connection, namespace, name)


def served_here(connection: Connection) -> list[RowMapping]:
    """Return the deployments that count towards `max_deployments`."""
    live = sa.select(rows).where(rows.c.state != DeploymentState.FAILED, rows.c.port.is_distinct_from(EXTERNAL))
    return list(connection.execute(live).mappings())


def get(connection: Connection, namespace: str, name: str) -> RowMapping:
    chosen = sa.select(rows).where(rows.c.namespace == namespace, rows.c.name == name)
    row = connection.execute(chosen).mappings().first()
    if row is None:
        raise not_found("deployment", f"{namespace}/{name}")
    return row


def deployment_document(row: RowMapping, base_url: str) -> Document:
    """Build the API document of a deployment. `url` is the root of an OpenAI-compatible server (`/v1` below it)."""
    return {
        # `work` has local paths.
        **{key: value for key, value in row["document"].items() if key != "work"},
        "id": row["id"],
        "name": row["name"],
        "namespace": row["namespace"],
        "url": f"{base_url.rstrip('/')}/deployments/{row['namespace']}/{row['name']}",
        "deployed": row["state"] == DeploymentState.READY,
        "status_details": {"status": row["state"], "description": row["description"]},
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def answers(port: int, secret: str) -> bool:
    """Return whether the model server on a local port is up and accepts its secret."""
    url, headers = f"http://127.0.0.1:{port}/v1/models", {"authorization": f"Bearer {secret}"}
    try:
        # Without verification no certificates are loaded, and trust_env=False: loopback is never behind a proxy.
        answer = httpx.get(url, headers=headers, timeout=2, verify=False, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200
