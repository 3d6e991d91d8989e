"""The files of datasets: repositories of commits. A commit has its whole tree and is never changed.

The head of `main` is the newest commit. Files are blobs, named by content, so a commit is one row, written after its
blobs are on disk: a commit that exists is complete.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.service import entities
from pairwright.service.blobs import Blob
from pairwright.service.names import is_commit, now
from pairwright.service.refusals import Refusal, already_there
from pairwright.service.schema import commits

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
    """A repository with one commit that has no files."""
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
    """The commit of a revision: `main`, or a commit's id of at least seven digits."""
    if revision in (MAIN, "refs/heads/main"):
        return head(connection, namespace, name)
    _check_there(connection, namespace, name)
    if is_commit(revision):
        chosen = sa.select(commits).where(*_of(namespace, name), commits.c.oid.startswith(revision)).limit(2)
        found = connection.execute(chosen).mappings().all()
        if len(found) == 1:
            return _commit(found[0])
    raise Refusal(
        404,
        "revision_not_found",
        f"{namespace}/{name} has no revision {revision[:80]!r}: expected {MAIN!r} or the id of a commit",
        headers={"x-error-code": "RevisionNotFound"},
    )


def history(connection: Connection, namespace: str, name: str, limit: int = 1000) -> list[Commit]:
    """The commits, newest first."""
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
    """Commit a change of the head's tree. A commit that changes nothing is the head itself: a repeat adds nothing."""
    newest = head(connection, namespace, name)
    tree = change(newest.tree)
    if tree == newest.tree:
        return newest.oid
    if parent is not None and not newest.oid.startswith(parent):
        raise Refusal(
            412, "parent_moved", f"the head of {namespace}/{name} is {newest.oid}, not {parent[:40]!r}: read it again"
        )
    return _insert(connection, namespace, name, parent=newest.oid, title=title, tree=tree)


def _insert(connection: Connection, namespace: str, name: str, *, parent: str | None, title: str, tree: Tree) -> str:
    body, moment = msgspec.json.encode(tree), now()
    parts = (namespace.encode(), name.encode(), (parent or "").encode(), moment.encode(), body, os.urandom(16))
    oid = hashlib.sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()
    row = {
        "namespace": namespace, "name": name, "oid": oid, "parent": parent, "title": title[:500],
        "created_at": moment, "tree": body.decode(),
    }  # fmt: skip
    connection.execute(sa.insert(commits).values(row))
    return oid


def used_blobs(connection: Connection) -> set[str]:
    """The content hashes of all files of all commits."""
    found: set[str] = set()
    for text in connection.execute(sa.select(commits.c.tree)).scalars():
        found |= {blob.sha256 for blob in _tree_of(text).values()}
    return found


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
