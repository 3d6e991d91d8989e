"""Database tables, the same in SQLite and PostgreSQL. `SCHEMA_VERSION` counts changes; migrations are numbered.

Entities (namespaces, datasets, targets, deployment configs) are a key and a JSON document. Jobs and deployments have
columns for the fields that the queue uses. Dataset files are stored as commits with their complete tree; files are
named by their sha256 in the blob store, so revisions are immutable.
"""

from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table, Text, UniqueConstraint

SCHEMA_VERSION = 2
metadata = MetaData()

# Key and value: the schema version.
service = Table("service", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

entities = Table(
    "entities",
    metadata,
    Column("kind", String(32), primary_key=True),
    # "" for kinds that lie in no namespace.
    Column("namespace", String(128), primary_key=True),
    Column("name", String(256), primary_key=True),
    Column("id", String(64), nullable=False, index=True),
    # Times are ISO 8601 text in all tables, and sort as text.
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("document", Text, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
)

commits = Table(
    "commits",
    metadata,
    # SQLite increments INTEGER keys only.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("namespace", String(128), nullable=False),
    Column("name", String(256), nullable=False),
    Column("oid", String(40), nullable=False),
    Column("parent", String(40)),
    Column("title", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("tree", Text, nullable=False),
    UniqueConstraint("namespace", "name", "oid"),
)

# Branches and tags of repositories. Without a row for `main`, as in version 1, the newest commit is its head.
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
    # Starts in a row without a step forward: a job that never gets anywhere is given up.
    Column("idle_starts", Integer, nullable=False, default=0),
    Column("step", Integer, nullable=False, default=0),
    Column("seconds", Float, nullable=False, default=0.0),
    Column("owner", String(64)),
    # Hash of the idempotency key, hash of the body, and the last repeat that this job answered.
    Column("request_key", String(300), index=True),
    Column("request_hash", String(64), nullable=False, index=True),
    Column("attempt", Integer, nullable=False, default=0),
    # JSON: what clients see with the worker's orders; the newest progress; the log of states.
    Column("document", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("log", Text, nullable=False),
    UniqueConstraint("namespace", "name"),
)

# What jobs are filtered by, beside columns of `jobs`: narrow rows, so that a filter reads no documents.
job_facets = Table(
    "job_facets",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("created_at", String(32), nullable=False),
    Column("project", String(300)),
    Column("base_model", String(512), nullable=False),
    Column("dataset", String(128), nullable=False),
    # NAMESPACE/NAME of the dataset, its URL without a commit, and with the commit that the job was given.
    Column("dataset_path", String(300), nullable=False),
    Column("files_url", String(600), nullable=False),
    Column("pinned_url", String(600), nullable=False),
    Column("training_type", String(32), nullable=False),
    Column("finetuning_type", String(32), nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("log_every_n_steps", BigInteger, nullable=False),
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
    Column("document", Text, nullable=False),
    UniqueConstraint("namespace", "name"),
)
