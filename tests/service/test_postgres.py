"""The same service on a real PostgreSQL, where one can be started."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from service_process import Service, job_body, kill_process, plain_model, until, worker_of

pytest.importorskip("psycopg")


def program(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next((str(place / name) for place in places if (place / name).exists()), None)


def as_somebody() -> dict[str, int]:
    """PostgreSQL refuses to run as root: then as the user that its package made."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("running as root, and there is no user postgres to start PostgreSQL as")
    return {"user": found.pw_uid, "group": found.pw_gid}


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("no initdb and postgres on this machine")
    who = as_somebody()
    folder = Path(tempfile.mkdtemp(prefix="pw-postgres-"))
    if who:
        os.chown(folder, who["user"], who["group"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": folder,
        "extra_groups": [] if who else None,
    }
    subprocess.run([initdb, "-D", folder / "db", "-U", "pairwright", "-A", "trust"], check=True, **who, **quiet)
    options = ["-D", folder / "db", "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1"]
    running = subprocess.Popen([server, *map(str, options)], **who, **quiet)
    try:
        url = f"postgresql://pairwright@127.0.0.1:{port}/postgres"
        until(lambda: can_connect(url))
        yield url
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def can_connect(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.slow
def test_jobs_survive_kills_on_postgresql(database_url, tmp_path):
    with Service(tmp_path / "data", database_url=database_url, max_running=2) as service:
        service.add_target(plain_model(tmp_path / "model"))
        service.upload()
        service.hold()
        first = service.job(steps=5)
        until(lambda: service.status(first)["steps_completed"] == 3)

        def send(number: int) -> tuple[int, str]:
            with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
                answer = http.post("/v1/customization/jobs", json=job_body(name=f"job-{number % 20}"))
                return answer.status_code, answer.json().get("id", answer.json().get("code"))

        with ThreadPoolExecutor(10) as pool:  # each name is sent twice, at about the same moment
            answers = list(pool.map(send, range(40)))
        assert sorted(status for status, _ in answers) == [200] * 20 + [409] * 20
        service.kill()
        kill_process(worker_of(service, first))
        service.release()
        service.start()
        service.wait_for(first, "completed")
        for status, job in answers:
            if status == 200:
                service.wait_for(job, "completed")
        assert service.get("/v1/customization/jobs")["pagination"]["total_results"] == 21
        assert (
            service.get("/v1/customization/jobs", params={"filter[status]": "completed"})["pagination"]["total_results"]
            == 21
        )
