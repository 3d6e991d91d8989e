"""Database access: SQLite in WAL mode, or PostgreSQL by URL, through SQLAlchemy Core.

`reading()` and `writing()` open transactions. On SQLite a write transaction takes the write lock when it begins, which
avoids deadlocks between writers. Committed writes are durable.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection

from pairwright.errors import ConfigError, PairwrightError
from pairwright.service.rows import schema


class Database:
    """Connection pool of the service: one per process, shared by all threads."""

    def __init__(self, url: str) -> None:
        """Open the database and create missing tables. Raises ConfigError for a bad URL or a missing driver."""
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError:
            raise ConfigError("--database: expected a URL such as postgresql://user@host/name") from None
        # Bare PostgreSQL URLs get the driver that we install.
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if not self.is_sqlite and parsed.get_backend_name() != "postgresql":
            raise ConfigError(f"--database: got {parsed.drivername!r}, expected a postgresql:// URL (or none: SQLite)")
        # SQLite: seconds to wait for a lock. PostgreSQL: connections that died in the pool are replaced.
        options: dict[str, Any] = {"connect_args": {"timeout": 60}} if self.is_sqlite else {"pool_pre_ping": True}
        try:
            # As many as there are threads for requests (40) and a few: what overflows is opened anew each time.
            self._engine = sa.create_engine(parsed, pool_size=48, max_overflow=32, **options)
        except ImportError as error:
            raise ConfigError(f"--database: {error}; install psycopg, or leave --database out for SQLite") from None
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        # The same pool; `_begin_sqlite` reads the option.
        self._writer = self._engine.execution_options(writes=True)
        if self.is_sqlite and parsed.database:
            # Rows are nobody else's business; the files of the write-ahead log take the mode of this one.
            with contextlib.suppress(OSError):
                os.close(os.open(parsed.database, os.O_CREAT | os.O_RDWR, 0o600))
                os.chmod(parsed.database, 0o600)
        self._create()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self._writer.begin() as connection:
            yield connection

    @contextmanager
    def writing_one_at_a_time(self, what: str) -> Iterator[Connection]:
        """Open a write transaction that excludes others with the same key `what`.

        Uses an advisory lock on PostgreSQL; SQLite has a single writer anyway.
        """
        with self.writing() as connection:
            if not self.is_sqlite:
                # Advisory locks are keyed by a signed 64-bit integer, and end with the transaction.
                key = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big", signed=True)
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _create(self) -> None:
        """Create missing tables and check the schema version."""
        try:
            with self.writing_one_at_a_time("schema") as connection:
                schema.metadata.create_all(connection)
                version = connection.scalar(sa.select(schema.service.c.value).where(schema.service.c.key == "version"))
                if version is None:
                    row = {"key": "version", "value": str(schema.SCHEMA_VERSION)}
                    connection.execute(sa.insert(schema.service).values(row))
                elif int(version) == 1:
                    version = _migrate_to_2(connection)
        except sa.exc.DatabaseError as error:
            raise PairwrightError(f"the service's database cannot be opened: {error.orig}") from None
        if version is not None and int(version) != schema.SCHEMA_VERSION:
            raise PairwrightError(
                f"the service's database has version {version}, this pairwright knows {schema.SCHEMA_VERSION}: "
                "use the pairwright that wrote it, or another --data"
            )


def _migrate_to_2(connection: Connection) -> str:
    """Add what filters and orders of jobs read; the tables themselves were created before. Returns the version."""
    for index in schema.jobs.indexes:
        index.create(connection, checkfirst=True)
    query = sa.select(schema.jobs.c.number, schema.jobs.c.created_at, schema.jobs.c.document)
    for number, created_at, document in connection.execute(query).all():
        row = facets_of(number, created_at, msgspec.json.decode(document))
        connection.execute(sa.insert(schema.job_facets).values(row))
    connection.execute(sa.update(schema.service).where(schema.service.c.key == "version").values(value="2"))
    return "2"


def facets_of(number: int, created_at: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return the row of `job_facets` for the document of a job."""
    knobs, dataset = document["hyperparameters"], document["dataset"]
    return {
        "number": number,
        "created_at": created_at,
        "project": document["project"],
        "base_model": document["config_snapshot"]["base_model"],
        "dataset": dataset["name"],
        "dataset_path": f"{dataset['namespace']}/{dataset['name']}",
        "files_url": dataset["files_url"].partition("@")[0],
        "pinned_url": dataset["files_url"],
        **{name: knobs[name] for name in ("training_type", "finetuning_type", "batch_size", "epochs")},
        "log_every_n_steps": knobs["log_every_n_steps"],
    }


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=60000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    # IMMEDIATE takes the write lock now; a read that turned into a write later could fail as busy.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
