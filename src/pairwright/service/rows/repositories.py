"""Dataset files: a content-addressed blob store, and repositories of immutable commits.

A commit is one row with its complete tree; the newest commit is the head of `main`. Blobs are on disk before the row
is written, so every commit is complete.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.paths import publish, sync
from pairwright.service.api_errors import Refusal, already_there
from pairwright.service.rows import entities
from pairwright.service.rows.entities import is_commit, now
from pairwright.service.rows.schema import commits

# Blob store: content-addressed, immutable files; `blobs/ab/abcd...` is the file with that sha256


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A stored file: sha256, size, and git blob id, which hub clients compare."""

    sha256: str
    size: int
    git: str


class Blobs:
    """The blob store in a data folder."""

    def __init__(self, data: Path) -> None:
        self.folder = data / "blobs"
        self.incoming = data / "incoming"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.incoming.mkdir(parents=True, exist_ok=True)

    def clear_incoming(self) -> int:
        """Remove leftovers of interrupted uploads. Only the server process may call this."""
        left = list(self.incoming.iterdir())
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def new_upload(self) -> Path:
        """Return a unique path for a temporary upload file."""
        return self.incoming / f"{os.getpid()}-{os.urandom(8).hex()}.part"

    def add(self, pieces: Iterable[bytes], size: int) -> Blob:
        """Store a file and return its blob. `size` is needed in advance, because the git id hashes it first."""
        hidden = self.new_upload()
        # The id of a git blob is the SHA-1 of "blob SIZE\0" and the content.
        sha256, git, num_read = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), 0
        try:
            with open(hidden, "xb") as file:
                for piece in pieces:
                    sha256.update(piece)
                    git.update(piece)
                    num_read += len(piece)
                    file.write(piece)
            if num_read != size:
                raise ValueError(f"{num_read} bytes instead of {size}")
            blob = Blob(sha256.hexdigest(), size, git.hexdigest())
            self._name(hidden, self.path(blob.sha256))
        finally:
            hidden.unlink(missing_ok=True)
        return blob

    def _name(self, hidden: Path, path: Path) -> None:
        # Named by content: what is there is the same file.
        if path.exists():
            return
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            # The new folder is on disk before a file in it is.
            sync(self.folder)
        publish(hidden, path)


# Repositories and commits

MAIN = "main"
Tree = dict[str, Blob]
_tree_of = msgspec.json.Decoder(Tree).decode


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    created_at: str
    tree: Tree


def create_repository(connection: Connection, namespace: str, name: str) -> None:
    """Create a repository with an empty initial commit."""
    kinds = (entities.STORE_NAMESPACE, entities.NAMESPACE)
    if all(entities.find(connection, kind, "", namespace) is None for kind in kinds):
        raise Refusal(
            404, "namespace_not_found", f"no namespace {namespace!r}: create it with POST /v1/datastore/namespaces"
        )
    if entities.find(connection, entities.REPOSITORY, namespace, name) is not None:
        raise already_there("repository", f"{namespace}/{name}", extra={"url": f"datasets/{namespace}/{name}"})
    entities.insert(connection, entities.REPOSITORY, namespace, name, {"namespace": namespace, "name": name})
    _insert(connection, namespace, name, parent=None, title="initial commit", tree={})


def delete_repository(connection: Connection, namespace: str, name: str) -> None:
    _check_there(connection, namespace, name)
    entities.delete(connection, entities.REPOSITORY, namespace, name)
    connection.execute(sa.delete(commits).where(*_of(namespace, name)))


def head(connection: Connection, namespace: str, name: str) -> Commit:
    _check_there(connection, namespace, name)
    chosen = sa.select(commits).where(*_of(namespace, name)).order_by(commits.c.number.desc()).limit(1)
    return _commit(connection.execute(chosen).mappings().one())


def commit_at(connection: Connection, namespace: str, name: str, revision: str) -> Commit:
    """Return the commit of a revision: `main`, or a commit id of at least seven digits."""
    if revision in (MAIN, "refs/heads/main"):
        return head(connection, namespace, name)
    _check_there(connection, namespace, name)
    if is_commit(revision):
        # Two are enough to see that a short id is ambiguous.
        chosen = sa.select(commits).where(*_of(namespace, name), commits.c.oid.startswith(revision)).limit(2)
        matches = connection.execute(chosen).mappings().all()
        if len(matches) == 1:
            return _commit(matches[0])
    raise Refusal(
        404,
        "revision_not_found",
        f"{namespace}/{name} has no revision {revision[:80]!r}: expected {MAIN!r} or the id of a commit",
        headers={"x-error-code": "RevisionNotFound"},
    )


def history(connection: Connection, namespace: str, name: str, limit: int = 1000) -> list[Commit]:
    """Return the commits, newest first."""
    _check_there(connection, namespace, name)
    chosen = sa.select(commits).where(*_of(namespace, name)).order_by(commits.c.number.desc()).limit(limit)
    return [_commit(row) for row in connection.execute(chosen).mappings()]


def add_commit(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    title: str,
    parent: str | None,
    change: Callable[[Tree], Tree],
) -> str:
    """Commit a change to the tree of the head. Without changes, returns the head, so that retries add nothing."""
    newest = head(connection, namespace, name)
    tree = change(newest.tree)
    # Before the check of the parent: a commit that is sent again finds its own result.
    if tree == newest.tree:
        return newest.oid
    if parent is not None and not newest.oid.startswith(parent):
        raise Refusal(
            412, "parent_moved", f"the head of {namespace}/{name} is {newest.oid}, not {parent[:40]!r}: read it again"
        )
    return _insert(connection, namespace, name, parent=newest.oid, title=title, tree=tree)


def _insert(connection: Connection, namespace: str, name: str, *, parent: str | None, title: str, tree: Tree) -> str:
    """Insert a commit and return its id."""
    body, moment = msgspec.json.encode(tree), now()
    # Random bytes too: two commits with the same tree in the same microsecond have different ids.
    parts = (namespace.encode(), name.encode(), (parent or "").encode(), moment.encode(), body, os.urandom(16))
    oid = hashlib.sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()
    row = {
        "namespace": namespace,
        "name": name,
        "oid": oid,
        "parent": parent,
        "title": title[:500],
        "created_at": moment,
        "tree": body.decode(),
    }
    connection.execute(sa.insert(commits).values(row))
    return oid


def blobs_in_use(connection: Connection) -> set[str]:
    """Return the sha256 of all files in all commits."""
    hashes: set[str] = set()
    for text in connection.execute(sa.select(commits.c.tree)).scalars():
        hashes |= {blob.sha256 for blob in _tree_of(text).values()}
    return hashes


def _check_there(connection: Connection, namespace: str, name: str) -> None:
    if entities.find(connection, entities.REPOSITORY, namespace, name) is None:
        raise Refusal(
            404,
            "repository_not_found",
            f"no dataset repository {namespace + '/' + name!r}",
            headers={"x-error-code": "RepoNotFound"},
        )


def _of(namespace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return commits.c.namespace == namespace, commits.c.name == name


def _commit(row: RowMapping) -> Commit:
    return Commit(row["oid"], row["title"], row["created_at"], _tree_of(row["tree"]))
