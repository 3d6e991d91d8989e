"""Hugging Face Hub endpoint at `/v1/hf`: the dataset routes used by `huggingface_hub` and `datasets`.

    HfApi(endpoint="http://127.0.0.1:8000/v1/hf", token=...)

Files of any size up to the limit are sent in the commit request (upload mode "regular"), but for clients that send them
before it in any case (large_files.py).
"""

from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, Response

from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, context_of
from pairwright.service.hub.commit_body import read_change
from pairwright.service.hub.large_files import needs_large_file, was_sent
from pairwright.service.hub.spooling import spool_body
from pairwright.service.rows import entities, repositories
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.blob_store import Blob
from pairwright.service.rows.names import check_name, check_path
from pairwright.service.rows.repositories import Commit, Tree
from pairwright.service.run.usage import check_quota, free_blobs

router = APIRouter(prefix="/v1/hf", tags=["datasets on the hub endpoint"])
ContextIs = Annotated[Context, Depends(context_of)]


class RepositoryBody(BaseModel):
    """Which repository; other fields of the hub's own API (visibility, licence) say nothing here."""

    model_config = ConfigDict(extra="ignore")
    name: str = Field(max_length=300)
    organization: str | None = Field(default=None, max_length=128)
    type: str = "model"


class Preupload(BaseModel):
    model_config = ConfigDict(extra="ignore")
    path: str
    size: int = Field(ge=0)


class PreuploadBody(BaseModel):
    model_config = ConfigDict(extra="ignore")
    files: list[Preupload] = Field(max_length=10_000)


@router.get("/api/whoami-v2")
def whoami(caller: CallerIs) -> dict[str, Any]:
    """Who the token belongs to."""
    return {"type": "user", "name": caller.name, "fullname": caller.name, "orgs": [], "auth": {"type": "access_token"}}


@router.post("/api/validate-yaml")
def validate_card(caller: CallerIs) -> dict[str, Any]:
    """Dataset cards are kept as they are."""
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
    namespace: str,
    name: str,
    revision: str,
    body: PreuploadBody,
    request: Request,
    caller: CallerIs,
    context: ContextIs,
) -> dict[str, Any]:
    """How to send files: in the commit, where the client can. Files that are there carry their id, and are not sent."""
    tree = _commit(context, caller, namespace, name, revision, write=True).tree
    files = []
    for file in body.files:
        there = tree.get(check_path(file.path))
        # The id that git gives the content: clients compare it with that of their local file.
        oid = None if there is None else there.git
        mode = "lfs" if needs_large_file(file.path, request.headers.get("user-agent", "")) else "regular"
        files.append({"path": file.path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return {"files": files}


@router.post("/api/datasets/{namespace}/{name}/commit/{revision}")
async def commit(
    namespace: str, name: str, revision: str, request: Request, caller: CallerIs, context: ContextIs
) -> dict[str, Any]:
    """Commit files: `application/x-ndjson`, a header line, then one line a file."""
    if request.query_params.get("create_pr") in ("1", "true"):
        raise Refusal(422, "no_pull_requests", "commits go to a branch; there are no pull requests")
    # Repository, branch and rights are checked before the body, which may be gigabytes, is read.
    branch = await run_in_threadpool(_branch, context, caller, namespace, name, revision)
    async with spool_body(request, context.blobs) as body:
        oid = await run_in_threadpool(_commit_body, context, namespace, name, body, branch)
    url = f"datasets/{namespace}/{name}/commit/{oid}"
    return {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""}


@router.get("/api/datasets/{namespace}/{name}")
def repository_information(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """The head of a repository."""
    return _information(namespace, name, _commit(context, caller, namespace, name, repositories.MAIN))


@router.get("/api/datasets/{namespace}/{name}/revision/{revision:path}")
def revision_information(
    namespace: str, name: str, revision: str, caller: CallerIs, context: ContextIs
) -> dict[str, Any]:
    """A revision of a repository: its commit and the names of its files."""
    return _information(namespace, name, _commit(context, caller, namespace, name, revision))


@router.get("/api/datasets/{namespace}/{name}/refs")
def read_references(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """Branches and tags."""
    newest = _commit(context, caller, namespace, name, repositories.MAIN)
    with context.database.reading() as connection:
        branches = repositories.list_references(connection, namespace, name, repositories.BRANCH)
        tags = repositories.list_references(connection, namespace, name, repositories.TAG)
    heads = {repositories.MAIN: newest.oid} | {row["reference"]: row["oid"] for row in branches}
    return {
        "branches": [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in heads.items()],
        "tags": [
            {"name": row["reference"], "ref": f"refs/tags/{row['reference']}", "targetCommit": row["oid"]}
            for row in tags
        ],
        "converts": [],
        "pullRequests": [],
    }


class BranchBody(BaseModel):
    model_config = ConfigDict(extra="ignore")
    startingPoint: str | None = Field(default=None, max_length=200)


class TagBody(BaseModel):
    model_config = ConfigDict(extra="ignore")
    tag: str = Field(max_length=128)
    message: str | None = Field(default=None, max_length=10_000)


@router.post("/api/datasets/{namespace}/{name}/branch/{branch:path}")
def create_branch(
    namespace: str, name: str, branch: str, body: BranchBody, caller: CallerIs, context: ContextIs
) -> dict[str, Any]:
    """Create a branch, at the head of `main` or at another revision."""
    check_name(branch, "branch")
    start = _commit(context, caller, namespace, name, body.startingPoint or repositories.MAIN, write=True)
    with context.database.writing() as connection:
        repositories.create_reference(
            connection, namespace, name, kind=repositories.BRANCH, reference=branch, oid=start.oid
        )
    return {"name": branch, "targetCommit": start.oid}


@router.delete("/api/datasets/{namespace}/{name}/branch/{branch:path}")
def delete_branch(namespace: str, name: str, branch: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """Delete a branch; its commits stay."""
    _delete_reference(context, caller, namespace, name, repositories.BRANCH, branch)
    return {"deleted": branch}


@router.post("/api/datasets/{namespace}/{name}/tag/{revision:path}")
def create_tag(
    namespace: str, name: str, revision: str, body: TagBody, caller: CallerIs, context: ContextIs
) -> dict[str, Any]:
    """Name a revision."""
    check_name(body.tag, "tag")
    commit = _commit(context, caller, namespace, name, revision, write=True)
    with context.database.writing() as connection:
        repositories.create_reference(
            connection,
            namespace,
            name,
            kind=repositories.TAG,
            reference=body.tag,
            oid=commit.oid,
            message=body.message or "",
        )
    return {"name": body.tag, "targetCommit": commit.oid}


@router.delete("/api/datasets/{namespace}/{name}/tag/{tag:path}")
def delete_tag(namespace: str, name: str, tag: str, caller: CallerIs, context: ContextIs) -> dict[str, Any]:
    """Delete a tag."""
    _delete_reference(context, caller, namespace, name, repositories.TAG, tag)
    return {"deleted": tag}


@router.get("/api/datasets/{namespace}/{name}/commits/{revision}")
def commit_list(namespace: str, name: str, revision: str, caller: CallerIs, context: ContextIs) -> list[dict[str, Any]]:
    """The commits that lead to a revision, newest first."""
    start = _commit(context, caller, namespace, name, revision)
    with context.database.reading() as connection:
        commits = repositories.history(connection, namespace, name, start=start.oid)
    return [
        {"id": item.oid, "title": item.title, "message": "", "date": item.created_at, "authors": []} for item in commits
    ]


@router.get("/api/datasets")
def list_repositories(
    caller: CallerIs,
    context: ContextIs,
    author: Annotated[str | None, Query(max_length=200)] = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> list[dict[str, Any]]:
    """The dataset repositories that the caller may read."""
    with context.database.reading() as connection:
        everything = entities.every(connection, entities.REPOSITORY)
        mine = [
            item
            for item in everything
            if caller.may(item["namespace"], write=False)
            and author in (None, item["namespace"])
            and (search or "").lower() in f"{item['namespace']}/{item['name']}".lower()
        ][:limit]
        return [
            _information(
                item["namespace"], item["name"], repositories.head(connection, item["namespace"], item["name"])
            )
            for item in mine
        ]


@router.get("/api/datasets/{namespace}/{name}/tree/{revision}")
def tree_at_top(
    namespace: str, name: str, revision: str, caller: CallerIs, context: ContextIs, recursive: bool = False
) -> list[dict[str, Any]]:
    """Files and folders at the top."""
    commit = _commit(context, caller, namespace, name, revision)
    return _entries(commit, "", recursive=recursive)


@router.get("/api/datasets/{namespace}/{name}/tree/{revision}/{path:path}")
def tree_below(
    namespace: str, name: str, revision: str, path: str, caller: CallerIs, context: ContextIs, recursive: bool = False
) -> list[dict[str, Any]]:
    """Files and folders below a folder."""
    commit = _commit(context, caller, namespace, name, revision)
    folder = check_path(path.rstrip("/")) + "/"
    if not any(file.startswith(folder) for file in commit.tree):
        raise no_entry(namespace, name, path)
    return _entries(commit, folder, recursive=recursive)


@router.post("/api/datasets/{namespace}/{name}/paths-info/{revision}")
async def paths_information(
    namespace: str, name: str, revision: str, request: Request, caller: CallerIs, context: ContextIs
) -> list[dict[str, Any]]:
    """What some paths are; those that are not there are left out, as on the hub."""
    commit = await run_in_threadpool(_commit, context, caller, namespace, name, revision)
    # A form, as hub clients send it, with `paths` once for each path.
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10_000)
    everything = {entry["path"]: entry for entry in _entries(commit, "", recursive=True)}
    return [everything[path] for path in fields.get("paths", []) if path in everything]


@router.get("/datasets/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
@router.head("/datasets/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
def resolve(
    namespace: str, name: str, revision: str, path: str, request: Request, caller: CallerIs, context: ContextIs
) -> Response:
    """A file of a revision; ranges are served."""
    commit = _commit(context, caller, namespace, name, revision)
    blob = commit.tree.get(check_path(path))
    if blob is None:
        raise no_entry(namespace, name, path)
    return file_answer(context.blobs.path(blob.sha256), blob, commit.oid)


def file_answer(path: Path, blob: Blob, oid: str) -> Response:
    """Build the response with a file of a commit."""
    # Clients cache by etag. An uploaded HTML file must not run in a browser as a page of this service.
    headers = {
        "etag": f'"{blob.git}"',
        "x-repo-commit": oid,
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "content-disposition": "attachment",
    }
    return FileResponse(path, headers=headers, media_type="application/octet-stream")


def _repository(body: RepositoryBody) -> tuple[str, str]:
    if body.type != "dataset":
        message = (
            f"type: got {body.type[:40]!r}, expected 'dataset': models are made by jobs, and deleted at /v1/models"
        )
        raise Refusal(422, "only_datasets", message)
    organization, name = body.organization, body.name
    if organization is None and "/" in name:
        # The organization comes in a field of its own, or as part of the name.
        organization, _, name = name.partition("/")
    return check_name(organization or "default", "organization"), check_name(name, "name")


def _commit(
    context: Context, caller: Caller, namespace: str, name: str, revision: str, *, write: bool = False
) -> Commit:
    check_name(namespace, "namespace")
    check_name(name, "name")
    caller.check(namespace, write=write)
    with context.database.reading() as connection:
        return repositories.commit_at(connection, namespace, name, revision)


def _branch(context: Context, caller: Caller, namespace: str, name: str, revision: str) -> str:
    """Return the branch that a commit goes to. Raises a refusal if there is none, or the caller may not write."""
    branch = revision.removeprefix("refs/heads/")
    caller.check(check_name(namespace, "namespace"), write=True)
    with context.database.reading() as connection:
        repositories.head(connection, namespace, check_name(name, "name"), branch)
    return branch


def _delete_reference(context: Context, caller: Caller, namespace: str, name: str, kind: str, reference: str) -> None:
    caller.check(check_name(namespace, "namespace"), write=True)
    check_name(reference, kind)
    with context.database.writing() as connection:
        repositories.delete_reference(connection, namespace, check_name(name, "name"), kind=kind, reference=reference)


def _commit_body(context: Context, namespace: str, name: str, body: Path, branch: str) -> str:
    """Apply the body of a commit request to the head of a branch. Returns the commit id."""
    check_quota(context, namespace, body.stat().st_size * 3 // 4)

    def changed(tree: Tree) -> Tree:
        after = change.apply(tree)
        if len(after) > context.settings.max_files:
            raise Refusal(413, "too_many_files", f"a dataset has at most {context.settings.max_files:,} files")
        # Every folder on the way to some file.
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
        # Serialized for each repository: the new tree is made from the head, which must not move meanwhile.
        with context.database.writing_one_at_a_time(f"repository/{namespace}/{name}") as connection:
            return repositories.add_commit(
                connection, namespace, name, title=change.title, parent=change.parent, change=changed, branch=branch
            )


def _information(namespace: str, name: str, commit: Commit) -> dict[str, Any]:
    return repository_document(namespace, name, commit.oid, commit.created_at, commit.tree)


def repository_document(namespace: str, name: str, oid: str, created_at: str, tree: Tree) -> dict[str, Any]:
    """Build the repository info of the Hub API."""
    return {
        "_id": oid[:24],
        "id": f"{namespace}/{name}",
        "author": namespace,
        "sha": oid,
        # Milliseconds, as the hub writes times.
        "lastModified": created_at[:23] + "Z",
        "createdAt": created_at[:23] + "Z",
        "private": True,  # only those with a token of the namespace see it
        "gated": False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "siblings": [{"rfilename": path, "size": blob.size, "blobId": blob.git} for path, blob in tree.items()],
    }


def _entries(commit: Commit, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    return list_entries(commit.oid, commit.tree, folder, recursive=recursive)


def list_entries(oid: str, tree: Tree, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """List the files and folders below `folder`, which is empty or ends with a slash."""
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in tree.items():
        if not path.startswith(folder):
            continue
        parts = path[len(folder) :].split("/")
        # Folders on the way to the file; without `recursive` only the first level.
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            name = folder + "/".join(parts[:depth])
            entries.setdefault(name, {"type": "directory", "oid": oid, "size": 0, "path": name})
        if recursive or len(parts) == 1:
            entries[path] = {"type": "file", "oid": blob.git, "size": blob.size, "path": path}
    return [entries[path] for path in sorted(entries)]


def no_entry(namespace: str, name: str, path: str) -> Refusal:
    return Refusal(
        # Clients turn this header into the exception of that name.
        404,
        "file_not_found",
        f"{namespace}/{name} has no {path[:200]!r}",
        headers={"x-error-code": "EntryNotFound"},
    )


# Has to stay last: routes match in the order in which they were added.
@router.api_route("/{rest:path}", methods=["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"], include_in_schema=False)
def nothing_else(rest: str, caller: CallerIs) -> JSONResponse:
    """Calls of the hub's API that this endpoint does not have."""
    raise Refusal(404, "unknown_route", f"/v1/hf/{rest[:200]}: this endpoint has no such call")
