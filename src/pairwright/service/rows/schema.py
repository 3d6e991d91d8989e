"""The tables of the service's database, the same in SQLite and PostgreSQL.

Entities (namespaces, datasets, targets, deployment configs) are a key and a JSON document. Jobs and deployments have
columns for the fields that the queue uses. Dataset files are stored as commits with their complete tree; files are
named by their sha256 in the blob store, so revisions are immutable.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, Text, UniqueConstraint

from pairwright.service.rows.blob_store import Blob

SCHEMA_VERSION = 3  # of the last change; database.py migrates older databases
metadata = MetaData()
Document = dict[str, Any]  # JSON object of the API
Tree = dict[str, Blob]  # the files of a commit by path


class JsonText(sa.TypeDecorator[Any]):
    """A text column with JSON: values are decoded to `kind` on reading."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any = Any) -> None:
        super().__init__()
        self.kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        return msgspec.json.encode(value).decode()

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        return self._decode  # without the layers of `process_result_value`, since lists decode many values


# Key and value: the schema version.
service = Table("service", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

entities = Table(
    "entities",
    metadata,
    Column("kind", String(32), primary_key=True),
    # "" for kinds without a namespace.
    Column("namespace", String(128), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("id", String(64), nullable=False, index=True),
    # Times are ISO 8601 text in all tables, and sort as text.
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("document", JsonText, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("scopes", JsonText, nullable=False),
    Column("created_at", String(32), nullable=False),
)

commits = Table(
    "commits",
    metadata,
    # SQLite autoincrements only INTEGER keys.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(256), nullable=False),
    Column("oid", String(40), nullable=False),
    Column("parent", String(40)),
    Column("title", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("tree", JsonText(Tree), nullable=False),
    UniqueConstraint("namespace", "name", "oid"),
)

# Branches and tags of repositories. Without a row for `main` (version 1), its head is the newest commit.
references = Table(
    "hub_references",
    metadata,
    Column("namespace", String(128), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("kind", String(8), primary_key=True),
    Column("reference", String(128), primary_key=True),
    Column("oid", String(40), nullable=False),
    Column("message", Text, nullable=False, default=""),
)

jobs = Table(
    "jobs",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("namespace", String(128), nullable=False, index=True),
    Column("name", String(128), nullable=False, index=True),
    # "" once the model was deleted.
    Column("output_model", String(512), nullable=False, index=True),
    Column("state", String(16), nullable=False, index=True),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False, index=True),
    Column("started_at", String(32)),
    Column("heartbeat_at", String(32)),
    Column("starts", Integer, nullable=False, default=0),
    # Consecutive starts without progress: the job fails after too many.
    Column("idle_starts", Integer, nullable=False, default=0),
    Column("step", Integer, nullable=False, default=0),
    Column("seconds", Float, nullable=False, default=0.0),
    # Hash of the idempotency key, hash of the body, and the number of the last retry that returned this job.
    Column("request_key", String(300), index=True),
    Column("request_hash", String(64), nullable=False, index=True),
    Column("attempt", Integer, nullable=False, default=0),
    # The document of clients and the worker's input; the newest progress; the log of states.
    Column("document", JsonText, nullable=False),
    Column("progress", JsonText, nullable=False),
    Column("log", JsonText, nullable=False),
    UniqueConstraint("namespace", "name"),
)

deployments = Table(
    "deployments",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("description", Text, nullable=False),
    Column("model", String(512), nullable=False, index=True),
    Column("port", Integer),
    Column("starts", Integer, nullable=False, default=0),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("state_at", String(32), nullable=False),
    Column("document", JsonText, nullable=False),
    UniqueConstraint("namespace", "name"),
)
