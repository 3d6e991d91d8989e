"""A real PostgreSQL for tests, where one can be started."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_process import until


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


@contextmanager
def run_postgres() -> Iterator[str]:
    """Start PostgreSQL in a new folder; yields the URL of its database."""
    pytest.importorskip("psycopg")
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
