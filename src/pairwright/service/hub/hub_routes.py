"""Hugging Face Hub endpoint at `/v1/hf`: datasets are created, written and read by `huggingface_hub` and `datasets`.

    HfApi(endpoint="http://127.0.0.1:8000/v1/hf", token=...)

Files of any size up to the limit are sent in the commit request (upload mode "regular"), except by clients that always
send them before the commit (large_files.py).
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs
from pairwright.service.hub.commit_body import read_change
from pairwright.service.hub.large_files import needs_large_file, spool_body, was_sent
from pairwright.service.hub.repository_reads import RepositoryKind, add_read_routes
from pairwright.service.rows import entities, repositories
from pairwright.service.rows.names import check_name, check_path
from pairwright.service.rows.repositories import Commit, commit_at
from pairwright.service.rows.schema import Tree
from pairwright.service.run.usage import check_quota, free_blobs

router = APIRouter(prefix="/v1/hf", tags=["datasets on the hub endpoint"])


class RepositoryBody(BaseModel):
    """Names a repository; as in all bodies here, more fields of the hub's own API (visibility, licence) are ignored."""

    name: str = Field(max_length=300)
    organization: str | None = Field(default=None, max_length=128)
    type: str = "model"


class Preupload(BaseModel):
    path: str
    size: int = Field(ge=0)


class PreuploadBody(BaseModel):
    files: list[Preupload] = Field(max_length=10_000)


@router.get("/api/whoami-v2")
def whoami(caller: CallerIs) -> dict[str, Any]:
    """Who the token belongs to."""
    return {"type": "user", "name": caller.name, "fullname": caller.name, "orgs": [], "auth": {"type": "access_token"}}


@router.post("/api/validate-yaml")
def validate_card(caller: CallerIs) -> dict[str, Any]:
    """Accept any dataset card."""
    return {"errors": [], "warnings": []}


@router.post("/api/repos/create")
def create_repository(body: RepositoryBody, caller: CallerIs, context: ContextIs) -> dict[str, str]:
    """Create a dataset repository."""
    namespace, name = _repository(body)
    caller.check(namespace, write=True)
    with context.database.writing() as connection:
        repositories.create_repository(connection, namespace, name)
    return {"url": f"datasets/{namespace}/{name}", "name": f"{namespace}/{name}"}


@router.delete("/api/repos/delete")
def delete_repository(body: RepositoryBody, caller: CallerIs, context: ContextIs) -> dict[str, str]:
    """Delete a dataset repository. Jobs keep the revision that they were given."""
    namespace, name = _repository(body)
    caller.check(namespace, write=True)
    with context.database.writing() as connection:
        hashes = repositories.delete_repository(connection, namespace, name)
    free_blobs(context, hashes)
    return {"deleted": f"{namespace}/{name}"}


@router.post("/api/datasets/{namespace}/{name}/preupload/{revision}")
def preupload(
    namespace: Writable, name: ValidName, revision: str, body: PreuploadBody, request: Request, context: ContextIs
) -> dict[str, Any]:
    """How to send each file: in the commit, or before it. An existing file is returned with its id."""
    with context.database.reading() as connection:
        tree = repositories.commit_at(connection, namespace, name, revision).tree
    files = []
    for file in body.files:
        there = tree.get(check_path(file.path))
        # Git's id of the content, which clients compare with that of their local file.
        oid = None if there is None else there.git
        mode = "lfs" if needs_large_file(file.path, request.headers.get("user-agent", "")) else "regular"
        files.append({"path": file.path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return {"files": files}


@router.post("/api/datasets/{namespace}/{name}/commit/{revision}")
async def commit(
    namespace: Writable, name: ValidName, revision: str, request: Request, context: ContextIs
) -> dict[str, Any]:
    """Commit files: `application/x-ndjson`, a header line, then one line per file."""
    if request.query_params.get("create_pr") in ("1", "true"):
        raise Refusal(422, "no_pull_requests", "commits go to a branch; there are no pull requests")
    branch = revision.removeprefix("refs/heads/")

    def check_branch() -> None:
        with context.database.reading() as connection:
            repositories.head(connection, namespace, name, branch)

    # Repository, branch and rights are checked before the body, which may be gigabytes, is read.
    await run_in_threadpool(check_branch)
    async with spool_body(request, context.blobs) as body:
        oid = await run_in_threadpool(_commit_body, context, namespace, name, body, branch)
    url = f"datasets/{namespace}/{name}/commit/{oid}"
    return {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""}


class BranchBody(BaseModel):
    startingPoint: str | None = Field(default=None, max_length=200)


class TagBody(BaseModel):
    tag: str = Field(max_length=128)
    message: str | None = Field(default=None, max_length=10_000)


@router.post("/api/datasets/{namespace}/{name}/branch/{branch:path}")
def create_branch(
    namespace: Writable, name: ValidName, branch: str, body: BranchBody, context: ContextIs
) -> dict[str, Any]:
    """Create a branch, at the head of `main` or at another revision."""
    check_name(branch, "branch")
    with context.database.writing() as connection:
        start = repositories.commit_at(connection, namespace, name, body.startingPoint or repositories.MAIN)
        repositories.create_reference(
            connection, namespace, name, kind=repositories.BRANCH, reference=branch, oid=start.oid
        )
    return {"name": branch, "targetCommit": start.oid}


@router.delete("/api/datasets/{namespace}/{name}/{kind}/{reference:path}")
def delete_reference(
    namespace: Writable, name: ValidName, kind: Literal["branch", "tag"], reference: str, context: ContextIs
) -> dict[str, Any]:
    """Delete a branch, whose commits stay, or a tag."""
    check_name(reference, kind)
    with context.database.writing() as connection:
        repositories.delete_reference(connection, namespace, name, kind=kind, reference=reference)
    return {"deleted": reference}


@router.post("/api/datasets/{namespace}/{name}/tag/{revision:path}")
def create_tag(
    namespace: Writable, name: ValidName, revision: str, body: TagBody, context: ContextIs
) -> dict[str, Any]:
    """Name a revision."""
    check_name(body.tag, "tag")
    more = {"kind": repositories.TAG, "reference": body.tag, "message": body.message or ""}
    with context.database.writing() as connection:
        commit = repositories.commit_at(connection, namespace, name, revision)
        repositories.create_reference(connection, namespace, name, oid=commit.oid, **more)
    return {"name": body.tag, "targetCommit": commit.oid}


@router.get("/api/datasets/{namespace}/{name}/commits/{revision}")
def commit_list(namespace: Readable, name: ValidName, revision: str, context: ContextIs) -> list[dict[str, Any]]:
    """The commits that lead to a revision, newest first."""
    with context.database.reading() as connection:
        start = repositories.commit_at(connection, namespace, name, revision)
        commits = repositories.history(connection, namespace, name, start=start.oid)
    return [
        {"id": item.oid, "title": item.title, "message": "", "date": item.created_at, "authors": []} for item in commits
    ]


def _repository(body: RepositoryBody) -> tuple[str, str]:
    if body.type != "dataset":
        message = (
            f"type: got {body.type[:40]!r}, expected 'dataset': models are made by jobs, and deleted at /v1/models"
        )
        raise Refusal(422, "only_datasets", message)
    organization, name = body.organization, body.name
    if organization is None and "/" in name:
        # The organization is a separate field, or part of the name.
        organization, _, name = name.partition("/")
    return check_name(organization or "default", "organization"), check_name(name, "name")


def _commit_body(context: Context, namespace: str, name: str, body: Path, branch: str) -> str:
    check_quota(context, namespace, body.stat().st_size * 3 // 4)

    def changed(tree: Tree) -> Tree:
        after = change.apply(tree)
        if len(after) > context.settings.max_files:
            raise Refusal(413, "too_many_files", f"a dataset has at most {context.settings.max_files:,} files")
        folders = {str(folder) for path in after for folder in PurePosixPath(path).parents}
        if clash := sorted(folders & after.keys()):
            raise Refusal(422, "path_is_folder", f"{clash[0]!r} would be a file and a folder")
        return after

    with context.blobs.hold() as held:
        change = read_change(
            body,
            context.blobs,
            max_files=context.settings.max_files,
            held=held,
            was_sent=lambda sha256: was_sent(context, namespace, name, sha256),
        )
        # Serialized per repository: the new tree is derived from the head, which must not move meanwhile.
        with context.database.writing_one_at_a_time(f"repository/{namespace}/{name}") as connection:
            return repositories.add_commit(
                connection, namespace, name, title=change.title, parent=change.parent, change=changed, branch=branch
            )


def _list_all(connection: Connection) -> Iterator[tuple[str, str, Commit]]:
    for item in entities.every(connection, entities.REPOSITORY):
        namespace, name = item["namespace"], item["name"]
        yield namespace, name, repositories.head(connection, namespace, name)


def _references(connection: Connection, namespace: str, name: str) -> tuple[dict[str, str], dict[str, str]]:
    main = {repositories.MAIN: repositories.head(connection, namespace, name).oid}
    branches, tags = (
        repositories.list_references(connection, namespace, name, kind)
        for kind in (repositories.BRANCH, repositories.TAG)
    )
    return main | branches, tags


DATASETS = RepositoryKind(
    "datasets", "/datasets", _list_all, lambda connection, _, *revision: commit_at(connection, *revision), _references
)
add_read_routes(router, DATASETS)


# Has to stay last: routes match in the order in which they were added.
@router.api_route("/{rest:path}", methods=["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"], include_in_schema=False)
def nothing_else(rest: str, caller: CallerIs) -> JSONResponse:
    """Refuse calls of the hub's API that this endpoint does not support."""
    raise Refusal(404, "unknown_route", f"/v1/hf/{rest[:200]}: this endpoint has no such call")
