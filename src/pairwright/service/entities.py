"""Namespaces, datasets, base models and deployment configs: a key, times, and a JSON document each."""

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.service.names import new_id, now
from pairwright.service.refusals import already_there, not_found
from pairwright.service.schema import entities

NAMESPACE = "namespace"
STORE_NAMESPACE = "datastore namespace"
DATASET = "dataset"
REPOSITORY = "repository"
TARGET = "target"
DEPLOYMENT_CONFIG = "deployment config"
PREFIXES = {
    NAMESPACE: "ns", STORE_NAMESPACE: "ns", DATASET: "dataset", REPOSITORY: "repo", TARGET: "cust-target",
    DEPLOYMENT_CONFIG: "deployment-config",
}  # fmt: skip

Document = dict[str, Any]


def insert(connection: Connection, kind: str, namespace: str, name: str, document: Document) -> Document:
    """Add one; refused with 409 if its key is taken."""
    if row_of(connection, kind, namespace, name) is not None:
        raise already_there(kind, f"{namespace}/{name}" if namespace else name)
    moment = now()
    row = {
        "kind": kind, "namespace": namespace, "name": name, "id": new_id(PREFIXES[kind]), "created_at": moment,
        "updated_at": moment, "document": msgspec.json.encode(document).decode(),
    }  # fmt: skip
    connection.execute(sa.insert(entities).values(row))
    return _document(row)


def update(connection: Connection, kind: str, namespace: str, name: str, changes: Document) -> Document:
    """Change some fields of one."""
    document = get(connection, kind, namespace, name)
    document.update(changes)
    document["updated_at"] = now()
    body = {key: value for key, value in document.items() if key not in ("created_at", "updated_at")}
    connection.execute(
        sa.update(entities)
        .where(*_key(kind, namespace, name))
        .values(document=msgspec.json.encode(body).decode(), updated_at=document["updated_at"])
    )
    return document


def delete(connection: Connection, kind: str, namespace: str, name: str) -> Document:
    """Remove one; returns what it was."""
    document = get(connection, kind, namespace, name)
    connection.execute(sa.delete(entities).where(*_key(kind, namespace, name)))
    return document


def get(connection: Connection, kind: str, namespace: str, name: str, *, hint: str = "") -> Document:
    """One of them; refused with 404 if there is none."""
    row = row_of(connection, kind, namespace, name)
    if row is None:
        raise not_found(kind, f"{namespace}/{name}" if namespace else name, hint=hint)
    return _document(row)


def find(connection: Connection, kind: str, namespace: str, name: str) -> Document | None:
    row = row_of(connection, kind, namespace, name)
    return None if row is None else _document(row)


def every(connection: Connection, kind: str) -> list[Document]:
    """All of a kind, oldest first."""
    chosen = sa.select(entities).where(entities.c.kind == kind).order_by(entities.c.created_at, entities.c.name)
    return [_document(row) for row in connection.execute(chosen).mappings()]


def row_of(connection: Connection, kind: str, namespace: str, name: str) -> RowMapping | None:
    return connection.execute(sa.select(entities).where(*_key(kind, namespace, name))).mappings().first()


def _key(kind: str, namespace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return entities.c.kind == kind, entities.c.namespace == namespace, entities.c.name == name


def _document(row: Any) -> Document:
    document: Document = {"id": row["id"], **msgspec.json.decode(row["document"])}
    return {**document, "created_at": row["created_at"], "updated_at": row["updated_at"]}
