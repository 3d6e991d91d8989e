"""Routes of entities that are a name in a namespace: list, read, update and delete, the same for every kind.

`add_routes` adds the routes without a body. Routes with one are written where their body is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from pairwright.service.access import CallerIs
from pairwright.service.api.paging import FILTERED, Getter, PagingIs, page_of
from pairwright.service.context import Context, context_of
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name, now

ContextIs = Annotated[Context, Depends(context_of)]
Document = dict[str, Any]


def fields_by_name(*names: str) -> dict[str, Getter]:
    """Filters of a list by fields of its documents."""
    # The default binds each name; a closure would see the last one.
    return {name: lambda document, name=name: document.get(name) for name in names}  # type: ignore[misc]


def deletion_document(identity: str) -> Document:
    return {"id": identity, "deleted_at": now(), "message": "deleted"}


@dataclass(frozen=True)
class EntityRoutes:
    """Routes of one kind below `path`. `filters` are the fields that a list can be filtered by."""

    path: str
    kind: str
    filters: Sequence[str]
    # The document as clients see it.
    show: Callable[[Document], Document] = field(default=lambda document: document)

    def update(self, changes: Document, namespace: str, name: str, caller: Caller, context: Context) -> Document:
        caller.check(check_name(namespace, "namespace"), write=True)
        check_name(name, "name")
        with context.database.writing() as connection:
            return self.show(entities.update(connection, self.kind, namespace, name, changes))

    def add_routes(self, router: APIRouter) -> None:
        """Add the routes without a body: list, read and delete."""

        def list_all(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
            with context.database.reading() as connection:
                documents = entities.every(connection, self.kind)
            mine = [self.show(document) for document in documents if caller.may(document["namespace"], write=False)]
            return page_of(mine, asked, fields_by_name(*self.filters))

        def read_one(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
            caller.check(check_name(namespace, "namespace"), write=False)
            with context.database.reading() as connection:
                return self.show(entities.get(connection, self.kind, namespace, check_name(name, "name")))

        def delete_one(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
            caller.check(check_name(namespace, "namespace"), write=True)
            with context.database.writing() as connection:
                gone = entities.delete(connection, self.kind, namespace, check_name(name, "name"))
            return deletion_document(gone["id"])

        one, words = self.path + "/{namespace}/{name}", f"{self.kind}s that the caller may read."
        noun = self.kind.replace(" ", "_")
        router.get(self.path, name=f"list_{noun}s", description=words.capitalize(), openapi_extra=FILTERED)(list_all)
        router.get(one, name=f"read_{noun}", description=f"One {self.kind}.")(read_one)
        router.delete(one, name=f"delete_{noun}", description=f"Delete the entry of a {self.kind}.")(delete_one)
