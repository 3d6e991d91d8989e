"""List, read and delete routes, shared by all kinds of entities that have a namespace and a name.

Routes with a body are in the module of their kind.
"""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import Response

from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api.paging import FILTERED, Getter, PagingIs, page_of
from pairwright.service.context import ContextIs, Document
from pairwright.service.rows import entities
from pairwright.service.rows.names import now


def fields_by_name(*names: str) -> dict[str, Getter]:
    """Return list filters on fields of the documents."""
    # The default binds each name; a closure would see the last one.
    return {name: lambda document, name=name: document.get(name) for name in names}  # type: ignore[misc]


def deletion_document(identity: str) -> Document:
    return {"id": identity, "deleted_at": now(), "message": "deleted"}


def add_entity_routes(
    router: APIRouter,
    path: str,
    kind: str,
    filters: tuple[str, ...],
    show: Callable[[Document], Document] = lambda document: document,
) -> None:
    """Add the routes without a body for one kind below `path`.

    `filters` are the fields that a list can be filtered by; `show` returns the document that clients see.
    """

    def list_all(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
        with context.database.reading() as connection:
            documents = entities.every(connection, kind)
        mine = [show(document) for document in documents if caller.may(document["namespace"], write=False)]
        return page_of(mine, asked, fields_by_name(*filters))

    def read_one(namespace: Readable, name: ValidName, context: ContextIs) -> Document:
        with context.database.reading() as connection:
            return show(entities.get(connection, kind, namespace, name))

    def delete_one(namespace: Writable, name: ValidName, context: ContextIs) -> Document:
        with context.database.writing() as connection:
            return deletion_document(entities.delete(connection, kind, namespace, name)["id"])

    one, words, noun = path + "/{namespace}/{name}", f"{kind}s that the caller may read.", kind.replace(" ", "_")
    router.get(path, name=f"list_{noun}s", description=words.capitalize(), openapi_extra=FILTERED)(list_all)
    router.get(one, name=f"read_{noun}", description=f"One {kind}.")(read_one)
    router.delete(one, name=f"delete_{noun}", description=f"Delete the entry of a {kind}.")(delete_one)
