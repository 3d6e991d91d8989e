"""Dataset repositories of immutable commits.

A commit is one row with its complete tree; the newest commit is the head of `main`. Blobs are on disk before the row
is written, so every commit is complete.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from pairwright.service.api_errors import Refusal, already_there, not_found
from pairwright.service.rows import entities
from pairwright.service.rows.names import is_commit, now
from pairwright.service.rows.schema import Tree, commits, references

MAIN = "main"
BRANCH, TAG = "branch", "tag"
MAX_HISTORY = 1000


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    created_at: str
    tree: Tree
    # Locations of files outside the blob store (files of models), by path in the repository.
    locations: dict[str, Path] = field(default_factory=dict)


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


def delete_repository(connection: Connection, namespace: str, name: str) -> set[str]:
    """Delete a repository. Returns the sha256 of its files, some of which may now be unused."""
    _check_there(connection, namespace, name)
    hashes: set[str] = set()
    for tree in connection.scalars(sa.select(commits.c.tree).where(*_of(namespace, name))):
        hashes |= {blob.sha256 for blob in tree.values()}
    entities.delete(connection, entities.REPOSITORY, namespace, name)
    connection.execute(sa.delete(commits).where(*_of(namespace, name)))
    connection.execute(sa.delete(references).where(*_reference(namespace, name)))
    return hashes


def head(connection: Connection, namespace: str, name: str, branch: str = MAIN) -> Commit:
    _check_there(connection, namespace, name)
    oid = connection.scalar(sa.select(references.c.oid).where(*_reference(namespace, name, BRANCH, branch)))
    chosen = sa.select(commits).where(*_of(namespace, name))
    if oid is not None:
        return _commit(connection.execute(chosen.where(commits.c.oid == oid)).mappings().one())
    if branch != MAIN:
        raise _no_revision(namespace, name, branch)
    return _commit(connection.execute(chosen.order_by(commits.c.number.desc()).limit(1)).mappings().one())


def commit_at(connection: Connection, namespace: str, name: str, revision: str) -> Commit:
    """Return the commit of a revision: a branch, a tag, or a commit id of at least seven digits."""
    _check_there(connection, namespace, name)
    plain = revision.removeprefix("refs/heads/")
    if plain == MAIN:
        return head(connection, namespace, name)
    chosen = sa.select(references.c.oid).where(*_reference(namespace, name), references.c.reference == plain)
    oid = connection.scalar(chosen.limit(1))
    revision = oid or revision
    if is_commit(revision):
        # Two matches suffice to detect an ambiguous short id.
        chosen_commits = sa.select(commits).where(*_of(namespace, name), commits.c.oid.startswith(revision)).limit(2)
        matches = connection.execute(chosen_commits).mappings().all()
        if len(matches) == 1:
            return _commit(matches[0])
    raise _no_revision(namespace, name, revision)


def list_references(connection: Connection, namespace: str, name: str, kind: str) -> dict[str, str]:
    """Return the commit ids of the branches or tags of a repository, by name; `main` is always a branch."""
    chosen = sa.select(references.c.reference, references.c.oid).where(*_reference(namespace, name, kind))
    return {row.reference: row.oid for row in connection.execute(chosen.order_by(references.c.reference))}


def create_reference(
    connection: Connection, namespace: str, name: str, *, kind: str, reference: str, oid: str, message: str = ""
) -> None:
    """Create a branch or a tag. Raises a 409 refusal if the name exists."""
    taken = sa.select(references.c.oid).where(*_reference(namespace, name), references.c.reference == reference)
    if reference == MAIN or is_commit(reference) or connection.scalar(taken) is not None:
        raise already_there(kind, reference)
    # Without a reference, main is the newest commit of all: pin it, so that it does not follow the new branch.
    _move_branch(connection, namespace, name, MAIN, head(connection, namespace, name).oid)
    row = {"namespace": namespace, "name": name, "kind": kind, "reference": reference, "oid": oid, "message": message}
    connection.execute(sa.insert(references).values(row))


def delete_reference(connection: Connection, namespace: str, name: str, *, kind: str, reference: str) -> None:
    if reference == MAIN:
        raise Refusal(403, "main_branch", "the branch 'main' cannot be deleted")
    _check_there(connection, namespace, name)
    if not connection.execute(sa.delete(references).where(*_reference(namespace, name, kind, reference))).rowcount:
        raise _no_revision(namespace, name, reference)


def history(connection: Connection, namespace: str, name: str, *, start: str) -> list[Commit]:
    """Return the commits that lead to `start`, newest first, at most MAX_HISTORY."""
    chosen = sa.select(commits).where(*_of(namespace, name)).order_by(commits.c.number.desc())
    line: list[Commit] = []
    # Parents are older than their children, so one pass over the commits finds all ancestors.
    for row in connection.execute(chosen).mappings():
        if row["oid"] == start and len(line) < MAX_HISTORY:
            line.append(_commit(row))
            start = row["parent"]
    return line


def add_commit(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    title: str,
    parent: str | None,
    change: Callable[[Tree], Tree],
    branch: str = MAIN,
) -> str:
    """Commit a change to the tree of a branch. Without changes, returns its head, so that retries add nothing."""
    newest = head(connection, namespace, name, branch)
    tree = change(newest.tree)
    # Checked before the parent: a retried commit finds its own result.
    if tree == newest.tree:
        return newest.oid
    if parent is not None and not newest.oid.startswith(parent):
        raise Refusal(
            412, "parent_moved", f"the head of {namespace}/{name} is {newest.oid}, not {parent[:40]!r}: read it again"
        )
    oid = _insert(connection, namespace, name, parent=newest.oid, title=title, tree=tree)
    _move_branch(connection, namespace, name, branch, oid)
    return oid


def _move_branch(connection: Connection, namespace: str, name: str, branch: str, oid: str) -> None:
    key = _reference(namespace, name, BRANCH, branch)
    if not connection.execute(sa.update(references).where(*key).values(oid=oid)).rowcount:
        row = {"namespace": namespace, "name": name, "kind": BRANCH, "reference": branch, "oid": oid, "message": ""}
        connection.execute(sa.insert(references).values(row))


def _insert(connection: Connection, namespace: str, name: str, *, parent: str | None, title: str, tree: Tree) -> str:
    body, moment = msgspec.json.encode(tree), now()
    # Random bytes make ids unique even for equal trees in the same microsecond.
    parts = (namespace.encode(), name.encode(), (parent or "").encode(), moment.encode(), body, os.urandom(16))
    oid = hashlib.sha1(b"\0".join(parts), usedforsecurity=False).hexdigest()
    row = {
        "namespace": namespace,
        "name": name,
        "oid": oid,
        "parent": parent,
        "title": title[:500],
        "created_at": moment,
        "tree": tree,
    }
    connection.execute(sa.insert(commits).values(row))
    return oid


def blobs_of(connection: Connection, namespace: str | None) -> dict[str, int]:
    """Return the sizes of all files of a namespace (None: of all), in all commits, by sha256."""
    chosen = sa.select(commits.c.tree)
    if namespace is not None:
        chosen = chosen.where(commits.c.namespace == namespace)
    sizes: dict[str, int] = {}
    for tree in connection.scalars(chosen):
        sizes |= {blob.sha256: blob.size for blob in tree.values()}
    for document in entities.every(connection, entities.FILE):
        if namespace in (None, document["namespace"]):
            sizes[document["sha256"]] = document["bytes"]
    return sizes


def _check_there(connection: Connection, namespace: str, name: str) -> None:
    if entities.find(connection, entities.REPOSITORY, namespace, name) is None:
        raise not_found("repository", f"{namespace}/{name}")


def _no_revision(namespace: str, name: str, revision: str) -> Refusal:
    expected = "expected a branch, a tag or the id of a commit"
    return not_found("revision", revision[:80], hint=f"{namespace}/{name}: {expected}")


def _reference(
    namespace: str, name: str, kind: str | None = None, reference: str | None = None
) -> list[sa.ColumnElement[bool]]:
    """Conditions that select references of a repository."""
    where = [references.c.namespace == namespace, references.c.name == name]
    where += [] if kind is None else [references.c.kind == kind]
    return where if reference is None else [*where, references.c.reference == reference]


def _of(namespace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return commits.c.namespace == namespace, commits.c.name == name


def _commit(row: RowMapping) -> Commit:
    return Commit(row["oid"], row["title"], row["created_at"], row["tree"])
