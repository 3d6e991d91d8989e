"""Routes of namespaces, projects and datasets: create, read, list, update, delete."""

from typing import Annotated

from fastapi import APIRouter, Form
from sqlalchemy.engine import Connection
from starlette.responses import Response

from pairwright.service.access import CallerIs, Readable, Writable
from pairwright.service.api.entity_crud import EntityKind, add_entity_routes, deletion_document
from pairwright.service.api.paging import FILTERED, PagingIs, page_of
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.request_models import DatasetBody, DatasetUpdate, NamespaceBody, NamespaceUpdate, ProjectBody
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name
from pairwright.service.run.submitting import check_files_url

router = APIRouter(prefix="/v1", tags=["namespaces and datasets"])


@router.post("/namespaces")
def create_namespace(body: NamespaceBody, caller: CallerIs, context: ContextIs) -> Document:
    """Create a namespace."""
    check_name(body.id, "id")
    caller.check(body.id, write=True)
    with context.database.writing() as connection:
        # Namespaces have no namespace themselves: the key has "" instead.
        return entities.insert(connection, entities.NAMESPACE, "", body.id, body.model_dump())


@router.get("/namespaces", openapi_extra=FILTERED)
def list_namespaces(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
    """Namespaces that the caller may read."""
    with context.database.reading() as connection:
        namespaces = entities.every(connection, entities.NAMESPACE)
    mine = [document for document in namespaces if caller.may(document["id"], write=False)]
    return page_of(mine, asked, "id", "project")


@router.get("/namespaces/{namespace}")
def read_namespace(namespace: Readable, context: ContextIs) -> Document:
    """One namespace."""
    with context.database.reading() as connection:
        return entities.get(connection, entities.NAMESPACE, "", namespace)


@router.patch("/namespaces/{namespace}")
def update_namespace(namespace: Writable, body: NamespaceUpdate, context: ContextIs) -> Document:
    """Change a namespace."""
    with context.database.writing() as connection:
        return entities.update(connection, entities.NAMESPACE, "", namespace, body.model_dump(exclude_unset=True))


@router.delete("/namespaces/{namespace}")
def delete_namespace(namespace: Writable, context: ContextIs) -> Document:
    """Delete an empty namespace."""
    with context.database.writing() as connection:
        for kind in (entities.DATASET, entities.REPOSITORY, entities.DEPLOYMENT_CONFIG):
            left = [item for item in entities.every(connection, kind) if item["namespace"] == namespace]
            if left:
                raise Refusal(409, "namespace_in_use", f"{namespace!r} has the {kind} {left[0]['name']!r}")
        gone = entities.delete(connection, entities.NAMESPACE, "", namespace)
    return deletion_document(gone["id"])


@router.post("/datastore/namespaces", status_code=201)
def create_store_namespace(
    caller: CallerIs, context: ContextIs, namespace: Annotated[list[str] | None, Form()] = None
) -> Document:
    """Create a namespace for files; form-encoded `namespace=NAME`."""
    if namespace is None or len(namespace) != 1:
        raise Refusal(422, "no_namespace", "expected the form field namespace=NAME, once")
    name = check_name(namespace[0], "namespace")
    caller.check(name, write=True)
    with context.database.writing() as connection:
        return entities.insert(connection, entities.STORE_NAMESPACE, "", name, {"id": name, "namespace": name})


def _check_dataset(connection: Connection, body: DatasetBody | DatasetUpdate, caller: Caller, context: Context) -> None:
    """Raise a refusal unless the caller may read the files of a dataset, and the namespace of a new one exists."""
    if body.files_url is not None:
        # The files may be in another namespace.
        source, _, _ = check_files_url(body.files_url, "files_url")
        caller.check(source, write=False)
    if isinstance(body, DatasetBody) and entities.find(connection, entities.NAMESPACE, "", body.namespace) is None:
        message = f"no namespace {body.namespace!r}: create it with POST /v1/namespaces"
        raise Refusal(422, "namespace_not_found", message)


_NAMES = ("namespace", "name", "project")
# The files of a dataset are in a repository of the hub endpoint. A project is only a name that entities refer to.
DATASET = EntityKind(entities.DATASET, DatasetBody, DatasetUpdate, _NAMES, _check_dataset)
PROJECT = EntityKind(entities.PROJECT, ProjectBody, NamespaceUpdate, _NAMES)
add_entity_routes(router, "/datasets", DATASET)
add_entity_routes(router, "/projects", PROJECT)
