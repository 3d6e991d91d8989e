"""Create, list, read, update and delete routes, shared by all kinds of entities that have a namespace and a name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from sqlalchemy.engine import Connection
from starlette.responses import Response

from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api.paging import FILTERED, PagingIs, page_of
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.request_models import Body
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name, new_id, now


def deletion_document(identity: str) -> Document:
    return {"id": identity, "deleted_at": now(), "message": "deleted"}


@dataclass(frozen=True)
class EntityKind:
    """A kind of entities: its name in the database, and what differs between kinds."""

    name: str
    # Bodies of create and update requests; the former has `namespace` and `name`.
    new: type[Body]
    changed: type[Body]
    # Fields that a list can be filtered by.
    filters: tuple[str, ...]
    # Raises a refusal for a body that refers to something missing or forbidden.
    check: Callable[[Connection, Any, Caller, Context], None] = lambda connection, body, caller, context: None
    # Returns the document that clients see.
    show: Callable[[Document], Document] = lambda document: document


def add_entity_routes(router: APIRouter, path: str, kind: EntityKind) -> None:

    def create(body: kind.new, caller: CallerIs, context: ContextIs) -> Document:  # type: ignore[name-defined]
        namespace = check_name(body.namespace, "namespace")
        name = new_id("config") if body.name is None else check_name(body.name, "name")
        caller.check(namespace, write=True)
        with context.database.writing() as connection:
            kind.check(connection, body, caller, context)
            document = {**body.model_dump(), "name": name}
            return kind.show(entities.insert(connection, kind.name, namespace, name, document))

    def list_all(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
        with context.database.reading() as connection:
            documents = entities.every(connection, kind.name)
        mine = [kind.show(document) for document in documents if caller.may(document["namespace"], write=False)]
        return page_of(mine, asked, *kind.filters)

    def read_one(namespace: Readable, name: ValidName, context: ContextIs) -> Document:
        with context.database.reading() as connection:
            return kind.show(entities.get(connection, kind.name, namespace, name))

    def update(
        namespace: Writable,
        name: ValidName,
        body: kind.changed,  # type: ignore[name-defined]
        caller: CallerIs,
        context: ContextIs,
    ) -> Document:
        with context.database.writing() as connection:
            kind.check(connection, body, caller, context)
            changes = body.model_dump(exclude_unset=True)
            return kind.show(entities.update(connection, kind.name, namespace, name, changes))

    def delete_one(namespace: Writable, name: ValidName, context: ContextIs) -> Document:
        with context.database.writing() as connection:
            return deletion_document(entities.delete(connection, kind.name, namespace, name)["id"])

    one, noun = path + "/{namespace}/{name}", kind.name.replace(" ", "_")
    words = f"{kind.name}s that the caller may read."
    router.post(path, name=f"create_{noun}", description=f"Create a {kind.name}.")(create)
    router.get(path, name=f"list_{noun}s", description=words.capitalize(), openapi_extra=FILTERED)(list_all)
    router.get(one, name=f"read_{noun}", description=f"One {kind.name}.")(read_one)
    router.patch(one, name=f"update_{noun}", description=f"Change the entry of a {kind.name}.")(update)
    router.delete(one, name=f"delete_{noun}", description=f"Delete the entry of a {kind.name}.")(delete_one)
