"""Killed a hundred times at random moments of a mixed workload, the service loses, doubles and sticks on nothing.

`FAULT_RUN_KILLS` is the number of kills (100). Whatever a client was told must be there at the end, once.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import threading
import time

import httpx
import pytest
from postgres_server import run_postgres
from service_process import ROW, Service, job_body, plain_model, until

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("FAULT_RUN_KILLS", "100"))
HALF_OPEN = 1200
MAX_JOBS = min(30, KILLS)


class Workload:
    """Clients that submit, upload, cancel, delete and ask, and repeat what was not answered."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.is_over = threading.Event()
        self.jobs: dict[str, str] = {}  # idempotency key -> job
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
        while not self.is_over.is_set():
            try:
                with httpx.Client(base_url=self.service.url, timeout=30, trust_env=False) as http:
                    step(http, next(self._numbers))
            except httpx.TransportError:
                time.sleep(0.05)  # the service is being killed
            except AssertionError as error:
                self.problems.append(str(error))
            time.sleep(0.05)

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
            assert answer.status_code == 503, answer.text

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
            elif http.delete(f"/v1/customization/jobs/{job}").status_code in (200, 404):
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


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nothing_is_lost_doubled_or_stuck(tmp_path, kind):
    random.seed(1)
    with database(kind) as url, Service(tmp_path / "data", database_url=url, max_running=3) as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        with Workload(service) as workload:
            for number in range(KILLS):
                time.sleep(random.uniform(0.0, 1.5))
                if number % 10 == 5:
                    with contextlib.suppress(ValueError):
                        suspend_somebody(service)
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
        remaining = [job for job in workload.jobs.values() if job not in workload.deleted]
        final = ("completed", "cancelled", "failed")
        states = {job: until(lambda job=job: service.status(job)["status"] in final and service.status(job)["status"]) for job in remaining}  # fmt: skip
        # Workers go on while the service is killed, and none of them fails here.
        assert set(states.values()) <= {"completed", "cancelled"}, states
        listed = service.get("/v1/customization/jobs", params={"page_size": 1000})["data"]
        identities = [job["id"] for job in listed]
        assert len(identities) == len(set(identities))
        assert set(remaining) <= set(identities)
        # A job that is listed and that no client knows was submitted when the answer was lost, and then repeated:
        # its key led back to it. So there is none.
        assert set(identities) - set(workload.jobs.values()) == set()
        for path, content in workload.commits.items():
            got = service.http.get(f"/v1/hf/datasets/default/pairs/resolve/main/{path}")
            assert got.content == content, path
        for identity, content in workload.files.items():
            assert service.http.get(f"/v1/files/{identity}/content").content == content
        print(
            f"{kind}: {KILLS} kills, {len(workload.jobs)} jobs, {len(workload.commits)} commits, {len(workload.files)} files"
        )
