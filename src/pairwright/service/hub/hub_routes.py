"""Hugging Face Hub endpoint at `/v1/hf`: the dataset routes used by `huggingface_hub` and `datasets`.

    HfApi(endpoint="http://127.0.0.1:8000/v1/hf", token=...)

Files of any size up to the limit are sent in the commit request (upload mode "regular"), except by clients that always
send them before it (large_files.py).
"""

from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, Response

from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs
from pairwright.service.hub.commit_body import read_change
from pairwright.service.hub.large_files import needs_large_file, was_sent
from pairwright.service.hub.spooling import spool_body
from pairwright.service.rows import entities, repositories
from pairwright.service.rows.blob_store import Blob
from pairwright.service.rows.names import check_name, check_path
from pairwright.service.rows.repositories import Commit, Tree
from pairwright.service.run.usage import check_quota, free_blobs

router = APIRouter(prefix="/v1/hf", tags=["datasets on the hub endpoint"])


def _commit_at(namespace: Readable, name: ValidName, revision: str, context: ContextIs) -> Commit:
    with context.database.reading() as connection:
        return repositories.commit_at(connection, namespace, name, revision)


CommitIs = Annotated[Commit, Depends(_commit_at)]  # of the revision in the path


class RepositoryBody(BaseModel):
    """Names a repository; other fields of the hub's own API (visibility, licence) are ignored."""

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
    """How to send files: in the commit, if the client can. Existing files have their id, and are not sent again."""
    tree = _commit_at(namespace, name, revision, context).tree
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
    """Commit files: `application/x-ndjson`, a header line, then one line a file."""
    if request.query_params.get("create_pr") in ("1", "true"):
        raise Refusal(422, "no_pull_requests", "commits go to a branch; there are no pull requests")
    # Repository, branch and rights are checked before the body, which may be gigabytes, is read.
    branch = revision.removeprefix("refs/heads/")
    await run_in_threadpool(_check_branch, context, namespace, name, branch)
    async with spool_body(request, context.blobs) as body:
        oid = await run_in_threadpool(_commit_body, context, namespace, name, body, branch)
    url = f"datasets/{namespace}/{name}/commit/{oid}"
    return {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""}


@router.get("/api/datasets/{namespace}/{name}")
def repository_information(namespace: Readable, name: ValidName, context: ContextIs) -> dict[str, Any]:
    """The head of a repository."""
    return repository_document(namespace, name, _commit_at(namespace, name, repositories.MAIN, context))


@router.get("/api/datasets/{namespace}/{name}/revision/{revision:path}")
def revision_information(namespace: Readable, name: ValidName, commit: CommitIs) -> dict[str, Any]:
    """A revision of a repository: its commit and the names of its files."""
    return repository_document(namespace, name, commit)


@router.get("/api/datasets/{namespace}/{name}/refs")
def read_references(namespace: Readable, name: ValidName, context: ContextIs) -> dict[str, Any]:
    """Branches and tags."""
    with context.database.reading() as connection:
        newest = repositories.head(connection, namespace, name)
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


@router.delete("/api/datasets/{namespace}/{name}/branch/{branch:path}")
def delete_branch(namespace: Writable, name: ValidName, branch: str, context: ContextIs) -> dict[str, Any]:
    """Delete a branch; its commits stay."""
    _delete_reference(context, namespace, name, repositories.BRANCH, branch)
    return {"deleted": branch}


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


@router.delete("/api/datasets/{namespace}/{name}/tag/{tag:path}")
def delete_tag(namespace: Writable, name: ValidName, tag: str, context: ContextIs) -> dict[str, Any]:
    """Delete a tag."""
    _delete_reference(context, namespace, name, repositories.TAG, tag)
    return {"deleted": tag}


@router.get("/api/datasets/{namespace}/{name}/commits/{revision}")
def commit_list(namespace: Readable, name: ValidName, start: CommitIs, context: ContextIs) -> list[dict[str, Any]]:
    """The commits that lead to a revision, newest first."""
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
        places = [(item["namespace"], item["name"]) for item in mine]
        return [repository_document(*place, repositories.head(connection, *place)) for place in places]


@router.get("/api/datasets/{namespace}/{name}/tree/{revision}")
def tree_at_top(commit: CommitIs, recursive: bool = False) -> list[dict[str, Any]]:
    """Files and folders at the top."""
    return list_entries(commit, "", recursive=recursive)


@router.get("/api/datasets/{namespace}/{name}/tree/{revision}/{path:path}")
def tree_below(
    namespace: Readable, name: ValidName, path: str, commit: CommitIs, recursive: bool = False
) -> list[dict[str, Any]]:
    """Files and folders below a folder."""
    folder = check_path(path.rstrip("/")) + "/"
    if not any(file.startswith(folder) for file in commit.tree):
        raise no_entry(namespace, name, path)
    return list_entries(commit, folder, recursive=recursive)


@router.post("/api/datasets/{namespace}/{name}/paths-info/{revision}")
async def paths_information(request: Request, commit: CommitIs) -> list[dict[str, Any]]:
    """Entries of some paths; missing paths are left out, as on the hub."""
    # Hub clients send a form with one field `paths` per path.
    form = await request.form(max_fields=10_000)
    everything = {entry["path"]: entry for entry in list_entries(commit, "", recursive=True)}
    return [everything[path] for path in map(str, form.getlist("paths")) if path in everything]


@router.get("/datasets/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
@router.head("/datasets/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
def resolve(namespace: Readable, name: ValidName, path: str, commit: CommitIs, context: ContextIs) -> Response:
    """A file of a revision; ranges are served."""
    blob = commit.tree.get(check_path(path))
    if blob is None:
        raise no_entry(namespace, name, path)
    return file_answer(context.blobs.path(blob.sha256), blob, commit.oid)


def file_answer(path: Path, blob: Blob, oid: str) -> Response:
    """Build the response with a file of a commit."""
    # Clients cache by etag. Browsers must not run an uploaded HTML file as a page of this service.
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
        # The organization is a separate field, or part of the name.
        organization, _, name = name.partition("/")
    return check_name(organization or "default", "organization"), check_name(name, "name")


def _check_branch(context: Context, namespace: str, name: str, branch: str) -> None:
    """Raise a 404 refusal unless there is such a branch to commit to."""
    with context.database.reading() as connection:
        repositories.head(connection, namespace, name, branch)


def _delete_reference(context: Context, namespace: str, name: str, kind: str, reference: str) -> None:
    check_name(reference, kind)
    with context.database.writing() as connection:
        repositories.delete_reference(connection, namespace, name, kind=kind, reference=reference)


def _commit_body(context: Context, namespace: str, name: str, body: Path, branch: str) -> str:
    """Apply the body of a commit request to the head of a branch. Returns the commit id."""
    check_quota(context, namespace, body.stat().st_size * 3 // 4)

    def changed(tree: Tree) -> Tree:
        after = change.apply(tree)
        if len(after) > context.settings.max_files:
            raise Refusal(413, "too_many_files", f"a dataset has at most {context.settings.max_files:,} files")
        # All parent folders of all files.
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


def repository_document(namespace: str, name: str, commit: Commit) -> dict[str, Any]:
    """Build the repository info of the Hub API."""
    moment = commit.created_at[:23] + "Z"  # milliseconds, as the hub writes times
    return {
        "_id": commit.oid[:24],
        "id": f"{namespace}/{name}",
        "author": namespace,
        "sha": commit.oid,
        "lastModified": moment,
        "createdAt": moment,
        "private": True,  # visible only with a token of the namespace
        "gated": False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "siblings": [{"rfilename": path, "size": blob.size, "blobId": blob.git} for path, blob in commit.tree.items()],
    }


def list_entries(commit: Commit, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """List the files and folders below `folder`, which is empty or ends with a slash."""
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in commit.tree.items():
        if not path.startswith(folder):
            continue
        parts = path[len(folder) :].split("/")
        # Parent folders of the file; without `recursive` only the first level.
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            name = folder + "/".join(parts[:depth])
            entries.setdefault(name, {"type": "directory", "oid": commit.oid, "size": 0, "path": name})
        if recursive or len(parts) == 1:
            entries[path] = {"type": "file", "oid": blob.git, "size": blob.size, "path": path}
    return [entries[path] for path in sorted(entries)]


def no_entry(namespace: str, name: str, path: str) -> Refusal:
    return Refusal(
        # Clients raise the exception that this header names.
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
