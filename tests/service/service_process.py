"""A service in a separate process, with methods to start, kill, restart and query it."""

import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from pairwright.jobs import process

HERE = Path(__file__).parent
CONFIG = "meta/llama-3.2-1b-instruct@v1.0.0+A100"
ROW = {"prompt": "Where is my order?", "chosen_response": "It has been shipped.", "rejected_response": "No idea."}
PATIENCE = 300.0


class Service:
    """`options` are fields of Settings; `command` is what serves, by default with the stand-ins."""

    def __init__(
        self, data: Path, *, command: list[str] | None = None, token: str | None = None, **options: Any
    ) -> None:
        self.data = data
        # The same address after a restart, as a real service has.
        self._options = {"data": str(data), "port": lasting_port(), **options}
        self._command = command
        self._log = data.parent / f"{data.name}.service.log"
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http = httpx.Client(timeout=PATIENCE, headers=headers, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Service":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.http.close()

    def start(self) -> "Service":
        command = self._command or [sys.executable, str(HERE / "service_with_standins.py"), json.dumps(self._options)]
        offset = self._log.stat().st_size if self._log.exists() else 0
        self.process = self._spawn(command)
        match = until(lambda: re.search(r"http://\S+:(\d+)", self.log()[offset:]) or self._check_alive())
        self.url = match[0].rstrip(".")
        self.http.base_url = self.url
        until(self._answers)
        return self

    def _spawn(self, command: list[str]) -> Any:
        with open(self._log, "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """As `kill -9` does; workers and model servers live on."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As Ctrl-C does; whatever is left below the data folder afterwards is ended too."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        for lock in [*self.data.glob("jobs/*/run/process/lock"), *self.data.glob("deployments/*/lock")]:
            kill_process(lock.parent)

    def hold(self) -> None:
        """Let the stand-in trainer wait after step 3."""
        (self.data / "hold").touch()

    def release(self) -> None:
        (self.data / "hold").unlink()

    def get(self, path: str, **options: Any) -> Any:
        answer = self.http.get(path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def status(self, job: str) -> dict[str, Any]:
        return self.get(f"/v1/customization/jobs/{job}/status")

    def wait_for(self, job: str, *states: str) -> dict[str, Any]:
        """The status of a job once it is in one of the states."""

        def reached() -> Any:
            details = self.status(job)
            assert isinstance(details["percentage_done"], int | float)
            if details["status"] in states:
                return details
            assert details["status"] not in ("completed", "failed", "cancelled"), details
            return None

        return until(reached)

    def add_target(self, folder: Path, name: str = CONFIG) -> None:
        from pairwright.service.rows.database import Database
        from pairwright.service.run.base_models import add_target

        database = Database(self._options.get("database_url") or f"sqlite:///{self.data / 'state.sqlite3'}")
        with database.writing() as connection:
            add_target(connection, name, folder)
        database.close()

    def upload(
        self, namespace: str = "default", name: str = "pairs", rows: list[Any] | None = None, **more: bytes
    ) -> str:
        """A dataset, sent as hub clients send it; returns the commit."""
        import base64

        self.post("/v1/hf/api/repos/create", {"name": name, "organization": namespace, "type": "dataset"})
        training = "".join(json.dumps(row) + "\n" for row in (rows or [ROW, {**ROW, "prompt": "And when?"}])).encode()
        files = {"training/training_file.jsonl": training, **more}
        lines = [{"key": "header", "value": {"summary": "data"}}]
        for path, content in files.items():
            value = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
            lines.append({"key": "file", "value": value})
        body = "".join(json.dumps(line) + "\n" for line in lines)
        answer = self.http.post(f"/v1/hf/api/datasets/{namespace}/{name}/commit/main", content=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["commitOid"]

    def submit(self, *, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        return self.post("/v1/customization/jobs", job_body(**changes), headers=headers or {})

    def job(self, **changes: Any) -> str:
        answer = self.submit(**changes)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    def _check_alive(self) -> None:
        assert self.process.poll() is None, self.log()

    def _answers(self) -> bool:
        self._check_alive()
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False


def lasting_port() -> int:
    """A free port below the range from which the system gives ports to clients: none takes it during a restart."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def job_body(*, seed: int = 0, steps: int = 4, **changes: Any) -> dict[str, Any]:
    """A job for the stand-in trainer."""
    knobs = {"training_type": "dpo", "finetuning_type": "all_weights", "seed": seed, "max_steps": steps}
    return {"config": CONFIG, "dataset": {"name": "pairs", "namespace": "default"}, "hyperparameters": knobs} | changes


def until(found: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What `found` returns once it is true; the wait is bounded so that a failure ends."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.05)
    raise AssertionError(f"not reached in {patience} seconds")


def plain_model(folder: Path) -> Path:
    """Write the files that `serve targets add` checks, without a model: sufficient for the stand-in trainer."""
    import numpy as np
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 128}')
    (folder / "tokenizer.json").write_text("{}")
    save_file({"weight": np.zeros((3, 4), np.float32)}, folder / "model.safetensors")
    return folder


def worker_of(service: Service, job: str) -> Path:
    """The folder of a job's process."""
    return service.data / "jobs" / job / "run" / "process"


def process_of(folder: Path) -> int:
    return int(until(lambda: process.process_id(folder)))


def kill_process(folder: Path) -> None:
    """As when the machine goes down: the process and all that it started."""
    process.send(folder, signal.SIGKILL)
