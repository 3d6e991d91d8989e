"""Kills the service a hundred times during a mixed workload: nothing is lost, duplicated or stuck.

Between the kills workers are suspended, the disk is filled (a small tmpfs, if it can be mounted), and 1,200
connections are left half open. `FAULT_RUN_KILLS` is the number of kills (100). At the end, everything that was
acknowledged to a client must exist exactly once.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
from postgres_server import run_postgres
from service_process import ROW, Service, job_body, plain_model, until

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("FAULT_RUN_KILLS", "100"))
HALF_OPEN = 1200
MAX_JOBS = min(30, KILLS)


class ForkedService(Service):
    """A service whose processes are forked from one that has loaded its modules: a start costs little."""

    def _spawn(self, command: list[str]) -> Any:
        child = _FORKS.Process(target=serve_forked, args=(json.loads(command[-1]), str(self._log)))
        child.start()
        child.wait, child.poll = child.join, lambda: child.exitcode  # as subprocess.Popen has them
        child.send_signal = lambda number: os.kill(child.pid, number)
        return child


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pairwright.service.service_server", "pairwright.service.api.app"])


def serve_forked(options: dict[str, Any], log: str) -> None:
    from service_with_standins import serve_with_standins

    os.setsid()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    serve_with_standins(options)


class Workload:
    """Clients that submit, upload, cancel, delete and ask, and repeat what was not answered."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.is_over = threading.Event()
        self.jobs: dict[str, str] = {}  # idempotency key -> job
        self.to_delete: set[str] = set()  # asked for; whether it was done is known only with an answer
        self.deleted: set[str] = set()
        self.commits: dict[str, bytes] = {}  # path -> content
        self.files: dict[str, bytes] = {}  # id -> content
        self.problems: list[str] = []
        self.num_kills = 0
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), daemon=True)
            for step in (self._submit, self._submit, self._commit, self._upload, self._end, self._ask)
        ]

    def __enter__(self) -> "Workload":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(120)

    def _repeat(self, step) -> None:
        # One client for a thread: each new one reads all certificates.
        with httpx.Client(base_url=self.service.url, timeout=30, trust_env=False) as http:
            while not self.is_over.is_set():
                try:
                    step(http, next(self._numbers))
                except httpx.TransportError:
                    time.sleep(0.05)  # the service is being killed
                except AssertionError as error:
                    self.problems.append(str(error))
                time.sleep(0.1)

    def _send(self, http: httpx.Client, method: str, path: str, **options) -> httpx.Response:
        """Send until there is an answer, as a client with retries does."""
        while True:
            try:
                answer = http.request(method, path, **options)
            except httpx.TransportError:
                if self.is_over.is_set():
                    raise
                time.sleep(0.05)
                continue
            if answer.status_code < 500:
                return answer
            assert answer.status_code in (503, 507), answer.text  # the database is busy, or the disk is full
            time.sleep(0.05)

    def _submit(self, http: httpx.Client, number: int) -> None:
        # Spread over the whole run, and no more than its workers can train afterwards.
        if len(self.jobs) >= 4 + MAX_JOBS * self.num_kills / KILLS:
            return
        key = f"key-{number}"
        answer = self._send(
            http, "POST", "/v1/customization/jobs", json=job_body(steps=2), headers={"idempotency-key": key}
        )
        assert answer.status_code == 200, answer.text
        self.jobs[key] = answer.json()["id"]

    def _commit(self, http: httpx.Client, number: int) -> None:
        import base64

        path, content = f"more/{number}.txt", os.urandom(2000)
        lines = [
            {"key": "header", "value": {"summary": "more"}},
            {"key": "file", "value": {"path": path, "content": base64.b64encode(content).decode()}},
        ]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        answer = self._send(http, "POST", "/v1/hf/api/datasets/default/pairs/commit/main", content=body)
        assert answer.status_code == 200, answer.text
        self.commits[path] = content

    def _upload(self, http: httpx.Client, number: int) -> None:
        content = json.dumps({**ROW, "prompt": f"{number}?"}).encode()
        form = {"file": (f"{number}.jsonl", content), "purpose": (None, "fine-tune")}
        answer = http.post("/v1/files", files=form)
        if answer.status_code == 200:
            self.files[answer.json()["id"]] = content

    def _end(self, http: httpx.Client, number: int) -> None:
        """Cancel some jobs, delete others."""
        time.sleep(1)
        for job in random.sample(sorted(self.jobs.values()), min(2, len(self.jobs))):
            if number % 2:
                http.post(f"/v1/customization/jobs/{job}/cancel")
            else:
                self.to_delete.add(job)
                if http.delete(f"/v1/customization/jobs/{job}").status_code in (200, 404):
                    self.deleted.add(job)

    def _ask(self, http: httpx.Client, number: int) -> None:
        answer = self._send(http, "GET", "/v1/customization/jobs", params={"page_size": 5})
        assert answer.status_code == 200, answer.text


@contextlib.contextmanager
def database(kind: str):
    if kind == "sqlite":
        yield None
    else:
        with run_postgres() as url:
            yield url


@contextlib.contextmanager
def small_disk(folder: Path):
    """Mount a separate small disk for a folder, which can be filled; yields whether this succeeded."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    if not is_mounted:
        warnings.warn("no tmpfs can be mounted here: the run goes without a full disk", stacklevel=2)
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(folder: Path, seconds: float) -> None:
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    time.sleep(seconds)
    ballast.unlink()


def suspend_somebody(service: Service) -> None:
    """Stop a worker for a moment, as a machine that sleeps does."""
    for lock in random.sample(sorted(service.data.glob("jobs/*/run/process/lock")), 1):
        with contextlib.suppress(ValueError, OSError):
            group = int(lock.read_text())
            os.killpg(group, signal.SIGSTOP)
            time.sleep(0.3)
            os.killpg(group, signal.SIGCONT)


def open_half(url: str) -> list[socket.socket]:
    """Connections that send the start of a request and nothing more."""
    host, port = url.removeprefix("http://").split(":")
    connections = []
    for _ in range(HALF_OPEN):
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection((host, int(port)), timeout=5))
            connections[-1].sendall(b"POST /v1/customization/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    return connections


def final_status(service: Service, job: str) -> dict[str, Any]:
    def final() -> dict[str, Any] | None:
        status = service.status(job)
        return status if status["status"] in ("completed", "cancelled", "failed") else None

    return until(final)


def resume_after_full_disk(service: Service, job: str) -> bool:
    """Resume a job whose worker could not write, which its status must say; whether there was a need."""
    status = final_status(service, job)
    if status["status"] != "failed":
        return False
    assert "No space left on device" in json.dumps(status["status_logs"]), status
    answer = service.post(f"/v1/customization/jobs/{job}/resume")
    assert answer.status_code == 200, answer.text
    return True


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_is_lost_doubled_or_stuck(tmp_path, kind):
    random.seed(1)
    disk = tmp_path / "disk"
    with (
        database(kind) as url,
        small_disk(disk) as is_small,
        ForkedService(disk / "data", database_url=url, max_running=3) as service,
    ):
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        with Workload(service) as workload:
            for number in range(KILLS):
                time.sleep(random.uniform(0.0, 1.5))
                if number % 10 == 5:
                    with contextlib.suppress(ValueError):
                        suspend_somebody(service)
                if number % 20 == 2 and is_small:
                    fill_disk(disk, random.uniform(0.2, 1.5))
                half = open_half(service.url) if number == KILLS // 2 else []
                if half:
                    assert service.get("/v1/customization/jobs")["object"] == "list"
                service.kill()
                for connection in half:
                    connection.close()
                service.start()
                workload.num_kills = number + 1
        assert not workload.problems, workload.problems[:3]
        assert len(workload.jobs) >= 4
        # Killed between a deletion and its answer: the client cannot know, so it looks. No other job may be gone.
        for job in workload.to_delete - workload.deleted:
            if service.http.get(f"/v1/customization/jobs/{job}").status_code == 404:
                workload.deleted.add(job)
        remaining = [job for job in workload.jobs.values() if job not in workload.deleted]
        num_resumed = sum(resume_after_full_disk(service, job) for job in remaining)
        states = {job: final_status(service, job)["status"] for job in remaining}
        # Workers continue while the service is killed, and none of them fails here.
        assert set(states.values()) <= {"completed", "cancelled"}, states
        listed = service.get("/v1/customization/jobs", params={"page_size": 1000})["data"]
        identities = [job["id"] for job in listed]
        assert len(identities) == len(set(identities))
        assert set(remaining) <= set(identities)
        # If the response to a submission is lost, the client repeats it with the same key and gets the same job. So every
        # listed job is known to a client.
        assert set(identities) - set(workload.jobs.values()) == set()
        for path, content in workload.commits.items():
            got = service.http.get(f"/v1/hf/datasets/default/pairs/resolve/main/{path}")
            assert got.content == content, path
        for identity, content in workload.files.items():
            assert service.http.get(f"/v1/files/{identity}/content").content == content
        counts = f"{len(workload.jobs)} jobs, {len(workload.commits)} commits, {len(workload.files)} files"
        print(f"{kind}: {KILLS} kills, {counts}, {num_resumed} jobs resumed after a full disk")
