"""The process that serves: one for a data folder, on a socket that is bound before anything is said."""

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

from pairwright.errors import ConfigError, PairwrightError
from pairwright.service import entities, jobs, repositories
from pairwright.service.access import check_binding
from pairwright.service.blobs import Blobs
from pairwright.service.context import Context
from pairwright.service.database import Database
from pairwright.service.settings import Settings
from pairwright.service.states import WAITING, WITH_WORKER
from pairwright.service.tokens import count_tokens


def serve(settings: Settings, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it."""
    lock = lock_data(settings.data)
    try:
        _serve(settings, host, port, say)
    finally:
        os.close(lock)


def _serve(settings: Settings, host: str, port: int, say: Callable[[str], None]) -> None:
    import uvicorn

    from pairwright.service.app import create_app

    database = Database(settings.url)
    try:
        check_binding(host, count_tokens(database))
        context = Context(settings, database, Blobs(settings.data), needs_token=count_tokens(database) > 0)
        tidy(context)
        bound = bind(host, port)
        address = bound.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        config = uvicorn.Config(
            create_app(context), log_level="warning", access_log=False, timeout_graceful_shutdown=5,
            timeout_keep_alive=30, server_header=False, h11_max_incomplete_event_size=65_536,
        )  # fmt: skip
        say(f"jobs are served on http://{shown}:{address[1]} from {settings.data} (Ctrl-C saves checkpoints and stops)")
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        database.close()


def lock_data(data: Path) -> int:
    """Take the data folder for this process; refused if another service has it."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        fd = os.open(data / "service.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--data {data}: {error.strerror or error}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise PairwrightError(
            f"--data {data}: another service serves it: stop that one, or use another folder"
        ) from None
    return fd


def tidy(context: Context) -> None:
    """What a start does once: the default namespace, and away with uploads and files that nothing refers to."""
    context.blobs.clear_incoming()
    with context.database.writing() as connection:
        for kind in (entities.NAMESPACE, entities.STORE_NAMESPACE):
            if entities.find(connection, kind, "", "default") is None:
                document = {
                    "id": "default",
                    "namespace": "default",
                    "description": "where things without a namespace go",
                }
                entities.insert(connection, kind, "", "default", document)
        used = repositories.used_blobs(connection)
        for row in jobs.in_states(connection, (*WAITING, *WITH_WORKER)):
            used |= {file["sha256"] for file in jobs.work_of(row)["files"]}
    for path in context.blobs.folder.glob("??/*"):
        if path.name not in used:
            path.unlink(missing_ok=True)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise PairwrightError(f"--host {host} --port {port}: {error.strerror or error}: choose another port") from None
    return bound
