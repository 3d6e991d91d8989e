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
from pairwright.service.api_errors import Refusal
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
    """Add the routes that read repositories of a kind."""

    def commit_at(namespace: Readable, name: ValidName, context: ContextIs, revision: str = MAIN) -> Commit:
        with context.database.reading() as connection:
            return kind.find(connection, context.settings, namespace, name, revision)

    CommitIs = Annotated[Commit, Depends(commit_at)]

    def list_repositories(
        caller: CallerIs,
        context: ContextIs,
        author: Annotated[str | None, Query(max_length=200)] = None,
        search: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    ) -> list[Document]:
        with context.database.reading() as connection:
            documents = (
                document(namespace, name, commit)
                for namespace, name, commit in kind.list_all(connection)
                if caller.may(namespace, write=False)
                and author in (None, namespace)
                and (search or "").lower() in f"{namespace}/{name}".lower()
            )
            return list(islice(documents, limit))

    def read_information(namespace: Readable, name: ValidName, commit: CommitIs) -> Document:
        return document(namespace, name, commit)

    def read_references(namespace: Readable, name: ValidName, context: ContextIs) -> Document:
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

    def read_tree(commit: CommitIs, path: str = "", recursive: bool = False) -> list[Document]:
        folder = check_path(path.rstrip("/")) + "/" if path else ""
        if folder and not any(file.startswith(folder) for file in commit.tree):
            raise no_entry(path)
        return list_entries(commit, folder, recursive=recursive)

    async def read_paths(request: Request, commit: CommitIs) -> list[Document]:
        # Hub clients send a form with one field `paths` per path.
        form = await request.form(max_fields=10_000)
        everything = {entry["path"]: entry for entry in list_entries(commit, "", recursive=True)}
        return [everything[path] for path in map(str, form.getlist("paths")) if path in everything]

    def read_file(path: str, commit: CommitIs, context: ContextIs) -> Response:
        blob = commit.tree.get(check_path(path))
        if blob is None:
            raise no_entry(path)
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
        return {**repository_document(namespace, name, commit), **kind.more(f"{namespace}/{name}")}

    noun, every = kind.name.removesuffix("s"), f"/api/{kind.name}"
    one = every + "/{namespace}/{name}"
    file = kind.prefix + "/{namespace}/{name}/resolve/{revision}/{path:path}"
    resolved = f"A file of a {noun}; ranges are served."
    routes: tuple[tuple[str, str, Callable[..., Any], str], ...] = (
        ("GET", every, list_repositories, f"The {noun} repositories that the caller may read."),
        ("GET", one, read_information, f"The newest commit of a {noun}."),
        (
            "GET",
            one + "/revision/{revision:path}",
            read_information,
            "A revision: its commit and the names of its files.",
        ),
        ("GET", one + "/refs", read_references, "Branches and tags."),
        ("GET", one + "/tree/{revision}", read_tree, "Files and folders at the top."),
        ("GET", one + "/tree/{revision}/{path:path}", read_tree, "Files and folders below a folder."),
        ("POST", one + "/paths-info/{revision}", read_paths, "Entries of some paths; missing ones are left out."),
        ("GET", file, read_file, resolved),
        ("HEAD", file, read_file, resolved),
    )
    for method, path, endpoint, description in routes:
        name = f"{endpoint.__name__}_of_{kind.name}"
        is_file: Document = {"response_class": FileResponse} if endpoint is read_file else {}
        router.add_api_route(path, endpoint, methods=[method], name=name, description=description, **is_file)


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


def no_entry(path: str) -> Refusal:
    # Clients raise the exception that this header names.
    return Refusal(
        404, "file_not_found", f"the repository has no {path[:200]!r}", headers={"x-error-code": "EntryNotFound"}
    )
