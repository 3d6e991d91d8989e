"""Entities (namespaces, datasets, base models, deployment configs) as JSON documents.

An entity is a key, timestamps and a JSON document.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from pairwright.service.api_errors import already_there, not_found
from pairwright.service.rows.names import new_id, now
from pairwright.service.rows.schema import Document, entities

NAMESPACE = "namespace"
STORE_NAMESPACE = "datastore namespace"
DATASET = "dataset"
REPOSITORY = "repository"
TARGET = "target"
DEPLOYMENT_CONFIG = "deployment config"
PROJECT = "project"
MODEL = "model"
FILE = "file"  # of OpenAI's files API
PREFIXES = {
    NAMESPACE: "ns",
    STORE_NAMESPACE: "ns",
    DATASET: "dataset",
    REPOSITORY: "repo",
    TARGET: "cust-target",
    DEPLOYMENT_CONFIG: "deployment-config",
    PROJECT: "project",
    MODEL: "model",
    FILE: "file",
}


def insert(connection: Connection, kind: str, namespace: str, name: str, document: Document) -> Document:
    """Insert an entity. Raises a 409 refusal if the key exists."""
    if find(connection, kind, namespace, name) is not None:
        raise already_there(kind, f"{namespace}/{name}" if namespace else name)
    moment = now()
    row = {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "id": new_id(PREFIXES[kind]),
        "created_at": moment,
        "updated_at": moment,
        "document": document,
    }
    connection.execute(sa.insert(entities).values(row))
    return _document(row)


def update(connection: Connection, kind: str, namespace: str, name: str, changes: Document) -> Document:
    document = get(connection, kind, namespace, name)
    document.update(changes)
    document["updated_at"] = now()
    body = {key: value for key, value in document.items() if key not in ("created_at", "updated_at")}
    connection.execute(
        sa.update(entities).where(*_key(kind, namespace, name)).values(document=body, updated_at=document["updated_at"])
    )
    return document


def delete(connection: Connection, kind: str, namespace: str, name: str) -> Document:
    document = get(connection, kind, namespace, name)
    connection.execute(sa.delete(entities).where(*_key(kind, namespace, name)))
    return document


def get(connection: Connection, kind: str, namespace: str, name: str) -> Document:
    """Return an entity. Raises a 404 refusal if there is none."""
    document = find(connection, kind, namespace, name)
    if document is None:
        raise not_found(kind, f"{namespace}/{name}" if namespace else name)
    return document


def find(connection: Connection, kind: str, namespace: str, name: str) -> Document | None:
    row = connection.execute(sa.select(entities).where(*_key(kind, namespace, name))).mappings().first()
    return None if row is None else _document(row)


def find_by_name(connection: Connection, kind: str, name: str) -> Document | None:
    """Return an entity whose name is unique in all namespaces, or None."""
    chosen = sa.select(entities).where(entities.c.kind == kind, entities.c.name == name)
    row = connection.execute(chosen).mappings().first()
    return None if row is None else _document(row)


def every(connection: Connection, kind: str) -> list[Document]:
    """Return all entities of a kind, oldest first."""
    chosen = sa.select(entities).where(entities.c.kind == kind).order_by(entities.c.created_at, entities.c.name)
    return [_document(row) for row in connection.execute(chosen).mappings()]


def _key(kind: str, namespace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return entities.c.kind == kind, entities.c.namespace == namespace, entities.c.name == name


def _document(row: Any) -> Document:
    times = {"created_at": row["created_at"], "updated_at": row["updated_at"]}
    return {"id": row["id"], **row["document"], **times}
