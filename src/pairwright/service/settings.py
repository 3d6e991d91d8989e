"""Settings of a service, the layout of its data folder, and the context shared by all routes.

DATA/state.sqlite3     database (unless PostgreSQL is used)       DATA/blobs/   files by their sha256
DATA/jobs/<id>/        one job: data, run folder, log             DATA/deployments/<id>/   one model server: log
DATA/incoming/         uploads in progress                        DATA/service.lock        held while serving
"""

import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request

from pairwright.service.rows.database import Database
from pairwright.service.rows.repositories import Blobs

MEGABYTE = 2**20
WORK_FILE = "work.json"  # what the worker of a job is to do, in the job's folder


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Paths, limits and commands of a service."""

    data: Path
    database_url: str | None = None
    max_running: int = 1
    max_deployments: int = 8
    # Of requests; uploads of files have a limit of their own.
    max_body_bytes: int = 2 * MEGABYTE
    max_upload_bytes: int = 2048 * MEGABYTE
    max_files: int = 10_000
    read_timeout_seconds: float = 30.0
    # How long a worker may give no sign; how long it may take to save and stop; how long a model may take to load.
    stall_seconds: float = 3600.0
    stop_seconds: float = 30.0
    start_seconds: float = 600.0
    tick_seconds: float = 0.5
    worker_command: tuple[str, ...] = (sys.executable, "-m", "pairwright.service.run.worker")
    model_command: tuple[str, ...] = (sys.executable, "-m", "pairwright.cli", "serve", "model")

    @property
    def jobs(self) -> Path:
        return self.data / "jobs"

    @property
    def deployments(self) -> Path:
        return self.data / "deployments"

    @property
    def incoming(self) -> Path:
        return self.data / "incoming"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        if self.database_url is None:
            return f"sqlite:///{self.data / 'state.sqlite3'}"
        return self.database_url

    def job_folder(self, identity: str) -> Path:
        return self.jobs / identity

    def run_folder(self, identity: str) -> Path:
        """Run folder of a job, which is a local job of `pairwright jobs`."""
        return self.jobs / identity / "run"

    def deployment_folder(self, identity: str) -> Path:
        return self.deployments / identity


# Shared state of the routes: settings, database, blob store, and the event that wakes the supervisor


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    blobs: Blobs
    needs_token: bool = False
    wake: threading.Event = field(default_factory=threading.Event)


def context_of(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context
