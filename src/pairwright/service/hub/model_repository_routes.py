"""Routes of the Hub API for models: what `huggingface_hub` and `transformers` ask to download one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import FileResponse, Response

from pairwright.service.access import CallerIs
from pairwright.service.hub import model_repositories
from pairwright.service.hub.hub_routes import file_answer, list_entries, no_entry, repository_document
from pairwright.service.hub.model_repositories import ModelRevision
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.entities import check_name, check_path
from pairwright.service.settings import Context, context_of

router = APIRouter(prefix="/v1/hf", tags=["models on the hub endpoint"])
ContextIs = Annotated[Context, Depends(context_of)]


@router.get("/api/models")
def list_models(
    caller: CallerIs,
    context: ContextIs,
    author: Annotated[str | None, Query(max_length=200)] = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> list[dict[str, Any]]:
    """The model repositories that the caller may read, newest first."""
    namespaces = None if caller.is_everywhere else {scope.partition(":")[0] for scope in caller.scopes}
    if author is not None:
        caller.check(check_name(author, "author"), write=False)
        namespaces = {author}
    with context.database.reading() as connection:
        repositories = model_repositories.list_repositories(connection, namespaces)
    matching = [(name, row) for name, row in repositories if (search or "").lower() in name.lower()]
    return [model_repositories.to_list_entry(name, row) for name, row in matching[:limit]]


@router.get("/api/models/{namespace}/{name}")
def model_information(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """The newest version of a model."""
    return _document(namespace, name, _revision(context, caller, namespace, name, "main"))


@router.get("/api/models/{namespace}/{name}/revision/{revision:path}")
def model_revision(namespace: str, name: str, revision: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """A version of a model: its commit and the names of its files."""
    return _document(namespace, name, _revision(context, caller, namespace, name, revision))


@router.get("/api/models/{namespace}/{name}/refs")
def model_references(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """The versions, as tags; `main` is the newest."""
    newest = _revision(context, caller, namespace, name, "main")
    with context.database.reading() as connection:
        versions = model_repositories.list_versions(connection, namespace, name)
    tags = [
        {"name": version, "ref": f"refs/tags/{version}", "targetCommit": model_repositories.commit_id(row)}
        for version, row in versions.items()
    ]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": newest.oid}
    return {"branches": [main], "tags": tags, "converts": [], "pullRequests": []}


@router.get("/api/models/{namespace}/{name}/tree/{revision}")
def model_tree(
    namespace: str, name: str, revision: str, caller: CallerIs, context: ContextIs, recursive: bool = False
) -> list[dict[str, Any]]:
    """Files and folders of a version."""
    version = _revision(context, caller, namespace, name, revision)
    return list_entries(version.oid, version.tree, "", recursive=recursive)


@router.get("/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
@router.head("/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
def resolve_model_file(
    namespace: str, name: str, revision: str, path: str, caller: CallerIs, context: ContextIs
) -> Response:
    """A file of a version; ranges are served."""
    version = _revision(context, caller, namespace, name, revision)
    blob = version.tree.get(check_path(path))
    if blob is None:
        raise no_entry(namespace, name, path)
    return file_answer(version.locations[path], blob, version.oid)


def _revision(context: Context, caller: Caller, namespace: str, name: str, revision: str) -> ModelRevision:
    caller.check(check_name(namespace, "namespace"), write=False)
    check_name(name, "name")
    with context.database.reading() as connection:
        return model_repositories.find_revision(connection, context.settings, namespace, name, revision)


def _document(namespace: str, name: str, revision: ModelRevision) -> dict[str, Any]:
    document = repository_document(namespace, name, revision.oid, revision.created_at, revision.tree)
    return {**document, "modelId": document["id"], "tags": ["pairwright"]}
