"""Routes of namespaces, projects and datasets: create, read, list, update, delete."""

from typing import Annotated

from fastapi import APIRouter, Form
from starlette.responses import Response

from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api.entity_crud import add_entity_routes, deletion_document, fields_by_name
from pairwright.service.api.paging import FILTERED, PagingIs, page_of
from pairwright.service.api_errors import Refusal
from pairwright.service.context import ContextIs, Document
from pairwright.service.request_models import (
    DatasetBody,
    DatasetUpdate,
    NamespaceBody,
    NamespaceUpdate,
    ProjectBody,
)
from pairwright.service.rows import entities
from pairwright.service.rows.names import check_name
from pairwright.service.run.submitting import check_files_url

router = APIRouter(prefix="/v1", tags=["namespaces and datasets"])
add_entity_routes(router, "/datasets", entities.DATASET, ("namespace", "project", "name"))
add_entity_routes(router, "/projects", entities.PROJECT, ("namespace", "name", "project"))


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
    return page_of(mine, asked, fields_by_name("id", "project"))


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


@router.get("/datastore/namespaces/{namespace}")
def read_store_namespace(namespace: Readable, context: ContextIs) -> Document:
    """A namespace for files."""
    with context.database.reading() as connection:
        return entities.get(connection, entities.STORE_NAMESPACE, "", namespace)


@router.post("/datasets")
def create_dataset(body: DatasetBody, caller: CallerIs, context: ContextIs) -> Document:
    """Register a dataset, whose files are in a repository of the hub endpoint."""
    check_name(body.name, "name")
    check_name(body.namespace, "namespace")
    caller.check(body.namespace, write=True)
    # The files may be in another namespace, which the caller must be allowed to read.
    source, _, _ = check_files_url(body.files_url, "files_url")
    caller.check(source, write=False)
    with context.database.writing() as connection:
        if entities.find(connection, entities.NAMESPACE, "", body.namespace) is None:
            raise Refusal(
                422, "namespace_not_found", f"no namespace {body.namespace!r}: create it with POST /v1/namespaces"
            )
        return entities.insert(connection, entities.DATASET, body.namespace, body.name, body.model_dump())


@router.patch("/datasets/{namespace}/{name}")
def update_dataset(
    namespace: Writable, name: ValidName, body: DatasetUpdate, caller: CallerIs, context: ContextIs
) -> Document:
    """Change the entry of a dataset."""
    if body.files_url is not None:
        source, _, _ = check_files_url(body.files_url, "files_url")
        caller.check(source, write=False)
    with context.database.writing() as connection:
        return entities.update(connection, entities.DATASET, namespace, name, body.model_dump(exclude_unset=True))


@router.post("/projects")
def create_project(body: ProjectBody, caller: CallerIs, context: ContextIs) -> Document:
    """Create a project: a name that other entities refer to."""
    check_name(body.namespace, "namespace")
    check_name(body.name, "name")
    caller.check(body.namespace, write=True)
    with context.database.writing() as connection:
        return entities.insert(connection, entities.PROJECT, body.namespace, body.name, body.model_dump())


@router.patch("/projects/{namespace}/{name}")
def update_project(namespace: Writable, name: ValidName, body: NamespaceUpdate, context: ContextIs) -> Document:
    """Change a project."""
    with context.database.writing() as connection:
        return entities.update(connection, entities.PROJECT, namespace, name, body.model_dump(exclude_unset=True))
