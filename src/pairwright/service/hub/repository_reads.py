"""Hub routes that read a repository, the same for datasets and for the models that jobs made.

`huggingface_hub`, `datasets` and `transformers` list, inspect and download repositories through them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, Response

from pairwright.service.access import CallerIs, Readable, ValidName
from pairwright.service.api_errors import not_found
from pairwright.service.context import ContextIs
from pairwright.service.rows.names import check_path
from pairwright.service.rows.repositories import MAIN, Commit
from pairwright.service.settings import Settings

Document = dict[str, Any]


@dataclass(frozen=True)
class RepositoryKind:
    """The functions that read one kind of repository; an unknown repository or revision raises a 404 refusal."""

    name: str
    # Before the namespace in addresses of files.
    prefix: str
    # All repositories with their newest commit; the files need not be listed.
    list_all: Callable[[sa.Connection], Iterator[tuple[str, str, Commit]]]
    find: Callable[[sa.Connection, Settings, str, str, str], Commit]
    # Commit ids by name: of branches, and of tags.
    references: Callable[[sa.Connection, str, str], tuple[dict[str, str], dict[str, str]]]
    # Further fields of the information about a repository.
    more: Callable[[str], Document] = lambda name: {}


def add_read_routes(router: APIRouter, kind: RepositoryKind) -> None:

    def commit_at(namespace: Readable, name: ValidName, context: ContextIs, revision: str = MAIN) -> Commit:
        with context.database.reading() as connection:
            return kind.find(connection, context.settings, namespace, name, revision)

    CommitIs = Annotated[Commit, Depends(commit_at)]

    every = f"/api/{kind.name}"
    one = every + "/{namespace}/{name}"
    file = kind.prefix + "/{namespace}/{name}/resolve/{revision}/{path:path}"

    @router.get(every)
    def list_repositories(
        caller: CallerIs,
        context: ContextIs,
        author: Annotated[str | None, Query(max_length=200)] = None,
        search: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    ) -> list[Document]:
        """The repositories that the caller may read."""
        with context.database.reading() as connection:
            documents = (
                document(namespace, name, commit)
                for namespace, name, commit in kind.list_all(connection)
                if caller.may(namespace, write=False)
                and author in (None, namespace)
                and (search or "").lower() in f"{namespace}/{name}".lower()
            )
            return list(islice(documents, limit))

    @router.get(one)
    @router.get(one + "/revision/{revision:path}")
    def read_information(namespace: Readable, name: ValidName, commit: CommitIs) -> Document:
        """A revision, by default the newest: its commit and the names of its files."""
        return document(namespace, name, commit)

    @router.get(one + "/refs")
    def read_references(namespace: Readable, name: ValidName, context: ContextIs) -> Document:
        """Branches and tags."""
        with context.database.reading() as connection:
            branches, tags = kind.references(connection, namespace, name)

        def entries(folder: str, references: dict[str, str]) -> list[Document]:
            return [
                {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": oid} for name, oid in references.items()
            ]

        return {
            "branches": entries("heads", branches),
            "tags": entries("tags", tags),
            "converts": [],
            "pullRequests": [],
        }

    @router.get(one + "/tree/{revision}")
    @router.get(one + "/tree/{revision}/{path:path}")
    def read_tree(commit: CommitIs, path: str = "", recursive: bool = False) -> list[Document]:
        """Files and folders, at the top or below a folder."""
        folder = check_path(path.rstrip("/")) + "/" if path else ""
        if folder and not any(file.startswith(folder) for file in commit.tree):
            raise not_found("file", path[:200])
        return list_entries(commit, folder, recursive=recursive)

    @router.post(one + "/paths-info/{revision}")
    async def read_paths(request: Request, commit: CommitIs) -> list[Document]:
        """Entries of some paths; missing ones are left out."""
        form = await request.form(max_fields=10_000)
        everything = {entry["path"]: entry for entry in list_entries(commit, "", recursive=True)}
        return [everything[path] for path in map(str, form.getlist("paths")) if path in everything]

    @router.get(file, response_class=FileResponse)
    @router.head(file, response_class=FileResponse)
    def read_file(path: str, commit: CommitIs, context: ContextIs) -> Response:
        """A file; ranges are served."""
        blob = commit.tree.get(check_path(path))
        if blob is None:
            raise not_found("file", path[:200])
        # Clients cache by etag. Browsers must not run an uploaded HTML file as a page of this service.
        headers = {
            "etag": f'"{blob.git}"',
            "x-repo-commit": commit.oid,
            "accept-ranges": "bytes",
            "x-content-type-options": "nosniff",
            "content-disposition": "attachment",
        }
        location = commit.locations.get(path) or context.blobs.path(blob.sha256)
        return FileResponse(location, headers=headers, media_type="application/octet-stream")

    def document(namespace: str, name: str, commit: Commit) -> Document:
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
            "siblings": [
                {"rfilename": path, "size": blob.size, "blobId": blob.git} for path, blob in commit.tree.items()
            ],
            **kind.more(f"{namespace}/{name}"),
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
