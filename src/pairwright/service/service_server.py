"""The server process: one per data folder."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from pairwright.engines.listening import listen, serve_app, url_of
from pairwright.errors import ConfigError, PairwrightError
from pairwright.service.access import check_binding
from pairwright.service.context import Context
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import count_tokens
from pairwright.service.rows.blob_store import Blobs
from pairwright.service.rows.database import Database
from pairwright.service.rows.schema import jobs
from pairwright.service.run.usage import used_blobs
from pairwright.service.settings import Settings


def serve(settings: Settings, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Run the service until a signal stops it."""
    from pairwright.service.api.app import create_app

    # Applies to all files of this process, its workers and its model servers.
    os.umask(0o077)
    # Held for the life of the process; the kernel releases it even after a crash.
    lock = lock_data(settings.data)
    # Uploads are received in temporary files: in the data folder, since /tmp may be in memory.
    settings.incoming.mkdir(exist_ok=True, mode=0o700)
    before, tempfile.tempdir = tempfile.tempdir, str(settings.incoming)
    try:
        with contextlib.closing(Database(settings.url)) as database:
            # Counted in the database, since another command creates tokens.
            num_tokens = count_tokens(database)
            check_binding(host, num_tokens)
            context = Context(settings, database, Blobs(settings.data), needs_token=num_tokens > 0)
            tidy(context)
            listener = listen(host, port)
            say(f"jobs are served on {url_of(listener)} from {settings.data} (Ctrl-C saves checkpoints and stops)")
            serve_app(create_app(context), listener, timeout_keep_alive=30)
    finally:
        tempfile.tempdir = before
        os.close(lock)


def lock_data(data: Path) -> int:
    """Lock the data folder for this process. Raises if another service holds it."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Earlier versions created the folder readable by others.
        data.chmod(0o700)
        fd = os.open(data / "service.lock", os.O_RDWR | os.O_CREAT, 0o600)
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
    """Prepare the data folder: create the default namespace, remove partial uploads and unreferenced blobs."""
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
        used = used_blobs(context, connection)
        known = set(connection.scalars(sa.select(jobs.c.id)).all())
    context.blobs.remove({path.name for path in context.blobs.folder.glob("??/*")} - used)
    # Jobs that were deleted while the service was being stopped.
    for folder in context.settings.jobs.glob("*"):
        if folder.name not in known:
            shutil.rmtree(folder, ignore_errors=True)
