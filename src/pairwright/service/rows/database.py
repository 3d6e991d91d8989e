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

import sqlalchemy as sa
from sqlalchemy import Text, event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from pairwright.errors import ConfigError, PairwrightError
from pairwright.service.rows.schema import SCHEMA_VERSION, jobs, metadata, service


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
            # The 40 request threads and a few more: overflow connections are reopened each time.
            self._engine = sa.create_engine(parsed, pool_size=48, max_overflow=32, **options)
        except ImportError as error:
            raise ConfigError(f"--database: {error}; install psycopg, or leave --database out for SQLite") from None
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        # The same pool; `_begin_sqlite` reads the option.
        self._writer = self._engine.execution_options(writes=True)
        if self.is_sqlite and parsed.database:
            # Only the owner may read the rows; the write-ahead log gets the same file mode.
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
        """Open a write transaction that excludes others with the same key `what`. SQLite has one writer anyway."""
        with self.writing() as connection:
            if not self.is_sqlite:
                # Advisory locks are keyed by a signed 64-bit integer, and end with the transaction.
                key = int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big", signed=True)
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    def _create(self) -> None:
        try:
            with self.writing_one_at_a_time("schema") as connection:
                metadata.create_all(connection)
                version = connection.scalar(sa.select(service.c.value).where(service.c.key == "version"))
                if version is None:
                    row = {"key": "version", "value": str(SCHEMA_VERSION)}
                    connection.execute(sa.insert(service).values(row))
                elif int(version) < SCHEMA_VERSION:
                    version = _migrate_to_3(connection)
        except sa.exc.DatabaseError as error:
            raise PairwrightError(f"the service's database cannot be opened: {error.orig}") from None
        if version is not None and int(version) != SCHEMA_VERSION:
            raise PairwrightError(
                f"the service's database has version {version}, this pairwright knows {SCHEMA_VERSION}: "
                "use the pairwright that wrote it, or another --data"
            )


def _migrate_to_3(connection: Connection) -> str:
    """Add indexes that version 1 lacks; filters no longer read the table of version 2. Returns the version."""
    for index in jobs.indexes:
        index.create(connection, checkfirst=True)
    connection.execute(sa.text("DROP TABLE IF EXISTS job_facets"))
    connection.execute(sa.update(service).where(service.c.key == "version").values(value="3"))
    return "3"


class JsonField(FunctionElement[str]):
    """A field of a JSON document as text: `JsonField(jobs.c.document, "hyperparameters.epochs")`."""

    type = Text()
    inherit_cache = True


@compiles(JsonField, "sqlite")
def _field_in_sqlite(element: JsonField, compiler: Any, **options: Any) -> str:
    document, path = (compiler.process(clause, **options) for clause in element.clauses)
    return f"CAST(json_extract({document}, '$.' || {path}) AS TEXT)"


@compiles(JsonField, "postgresql")
def _field_in_postgresql(element: JsonField, compiler: Any, **options: Any) -> str:
    document, path = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract_path_text(CAST({document} AS JSON), VARIADIC string_to_array({path}, '.'))"


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` emits BEGIN
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=60000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    # IMMEDIATE takes the write lock now; upgrading a read to a write later could fail as busy.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
