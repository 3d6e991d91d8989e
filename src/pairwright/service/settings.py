"""Settings of a service, and the layout of its data folder.

DATA/state.sqlite3     database (unless PostgreSQL is used)       DATA/blobs/   files by their sha256
DATA/jobs/<id>/        one job: data, run folder, log             DATA/deployments/<id>/   one model server: log
DATA/incoming/         uploads in progress                        DATA/service.lock        held while serving
DATA/secret            key of the model servers' secrets

Only the operator's user has access (0700, 0600).
"""

import hashlib
import hmac
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pairwright.paths import write_bytes

MEGABYTE = 2**20
# An absolute path with at least one folder, and its last part. URLs do not match: a colon or a slash precedes.
_PATH = re.compile(r"(?<![\w:/.~-])~?/(?:[^\s'\"`:;,()<>|/]+/)+([^\s'\"`:;,()<>|/]*)")
WORK_FILE = "work.json"  # input of the worker, in the job's folder


@dataclass(frozen=True, kw_only=True)
class Settings:
    data: Path
    database_url: str | None = None
    max_running: int = 1
    max_deployments: int = 8
    # Limit of request bodies; file uploads have a separate limit.
    max_body_bytes: int = 2 * MEGABYTE
    max_upload_bytes: int = 2048 * MEGABYTE
    max_files: int = 10_000
    read_timeout_seconds: float = 30.0
    # Bytes of a dataset that are checked when a job is submitted; its worker reads the rest.
    check_bytes: int = 32 * MEGABYTE
    # Disk quota of a namespace: uploaded files, and the folders of its jobs. None: no limit.
    quota_bytes: int | None = None
    # Keep the trainer's checkpoints when a job is completed or cancelled.
    keep_checkpoints: bool = False
    # Hosts that are allowed as external_endpoint of deployments, such as https://models.example.
    external_endpoints: tuple[str, ...] = ()
    # Time limits: of a worker without activity, of a stopping process, and of a model server that is loading.
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

    def secret_of(self, identity: str) -> str:
        """Return the secret of a deployment's model server; it is stable across restarts of the service."""
        path = self.data / "secret"
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = os.urandom(32)
            write_bytes(path, key)
            path.chmod(0o600)
        return hmac.new(key, identity.encode(), hashlib.sha256).hexdigest()

    def hide_paths(self, text: str) -> str:
        """Return text for clients: paths of this machine become their last part.

        >>> Settings(data=Path("/srv/pw")).hide_paths("/srv/pw/jobs/a/run: no space; see /home/ada/models/tiny")
        'run: no space; see tiny'
        """
        # Roots first, since they may contain spaces.
        for root in (str(self.data), str(Path.cwd()), str(Path.home()), sys.prefix, sys.base_prefix):
            if len(root) > 1:
                text = text.replace(root + "/", "/./")
        return _PATH.sub(lambda match: match[1] or ".", text)
