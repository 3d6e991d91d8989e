"""Models made by jobs as repositories of the Hub API: `snapshot_download("shop/llama-tickets-lora")`.

The model NAMESPACE/NAME@VERSION is the revision VERSION of the repository NAMESPACE/NAME; `main` is the newest. Its
files are those of the folder of the model. Where they name the local folder of the base model, clients get its name.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter
from sqlalchemy.engine import Connection, RowMapping

from pairwright.jobs.job import JobState
from pairwright.jobs.local import result_folder
from pairwright.paths import write_bytes
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.hub.repository_reads import RepositoryKind, add_read_routes
from pairwright.service.rows.blob_store import Blob, hash_file
from pairwright.service.rows.repositories import MAIN, Commit
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.settings import Settings

_INDEX = "hub-files.json"  # in the run folder: hashes of the model's files
_COPIES = "hub-copies"  # in the run folder: files in which a path was replaced
_SMALL = 2**20


class _File(msgspec.Struct, array_like=True):
    """A file of a model: location, modification time when it was hashed, and hashes."""

    location: str
    modified_ns: int
    blob: Blob


def _find(connection: Connection, settings: Settings, namespace: str, name: str, revision: str) -> Commit:
    versions = _versions(connection, namespace, name)
    wanted = revision.removeprefix("refs/heads/")
    for version, row in versions.items():
        if wanted in (MAIN, version) or (len(wanted) >= 7 and commit_id(row).startswith(wanted)):
            return _read_revision(row, version, settings)
    hint = f"{namespace}/{name}: expected main, or one of {', '.join(versions)[:500]}"
    raise not_found("revision", revision[:80], hint=hint)


def _versions(connection: Connection, namespace: str, name: str) -> dict[str, RowMapping]:
    full = f"{namespace}/{name}"
    is_named = sa.or_(rows.c.output_model == full, rows.c.output_model.startswith(f"{full}@", autoescape=True))
    chosen = sa.select(rows).where(is_named, rows.c.state == JobState.COMPLETED).order_by(rows.c.number.desc())
    versions = {row["output_model"].partition("@")[2] or MAIN: row for row in connection.execute(chosen).mappings()}
    if not versions:
        raise not_found("repository", full)
    return versions


def _references(connection: Connection, namespace: str, name: str) -> tuple[dict[str, str], dict[str, str]]:
    tags = {version: commit_id(row) for version, row in _versions(connection, namespace, name).items()}
    return {MAIN: next(iter(tags.values()))}, tags


def _list_all(connection: Connection) -> Iterator[tuple[str, str, Commit]]:
    known: set[str] = set()
    chosen = sa.select(rows).where(rows.c.state == JobState.COMPLETED, rows.c.output_model != "")
    for row in connection.execute(chosen.order_by(rows.c.number.desc())).mappings():
        repository, _, version = row["output_model"].partition("@")
        if repository not in known:
            known.add(repository)
            namespace, _, name = repository.partition("/")
            yield namespace, name, Commit(commit_id(row), version, row["updated_at"], {})


def commit_id(row: RowMapping) -> str:
    """Return the commit id of a model, derived from the job id: files of a completed job do not change."""
    return hashlib.sha1(row["id"].encode(), usedforsecurity=False).hexdigest()


def _read_revision(row: RowMapping, version: str, settings: Settings) -> Commit:
    run = settings.run_folder(row["id"])
    folder = result_folder(run)
    if not folder.is_dir():
        raise Refusal(404, "model_gone", f"the files of {row['output_model']!r} are not there any more")
    files = _index_files(run, folder, row)
    return Commit(
        oid=commit_id(row),
        title=version,
        created_at=row["updated_at"],
        tree={path: file.blob for path, file in files.items()},
        locations={path: run / file.location for path, file in files.items()},
    )


def _index_files(run: Path, folder: Path, row: RowMapping) -> dict[str, _File]:
    """Return the files of a model with their hashes, which are computed once and kept."""
    try:
        known = msgspec.json.decode((run / _INDEX).read_bytes(), type=dict[str, _File])
    except (OSError, msgspec.MsgspecError):
        known = {}
    index: dict[str, _File] = {}
    for path in sorted(item for item in folder.rglob("*") if item.is_file() and not item.is_symlink()):
        name, modified_ns = path.relative_to(folder).as_posix(), path.stat().st_mtime_ns
        before = known.get(name)
        if before is not None and before.modified_ns == modified_ns and (run / before.location).is_file():
            index[name] = before
        else:
            location = _without_paths(path, run, row)
            index[name] = _File(location.relative_to(run).as_posix(), modified_ns, hash_file(location))
    if index != known:
        write_bytes(run / _INDEX, msgspec.json.encode(index))
    return index


def _without_paths(path: Path, run: Path, row: RowMapping) -> Path:
    """Return the file itself, or a copy in which the folder of the base model is replaced by its name."""
    if path.suffix not in (".json", ".md", ".txt", ".jinja") or path.stat().st_size > _SMALL:
        return path
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    document = row["document"]
    base, model = document["config_snapshot"]["base_model"], document["work"]["model"]
    # Replaces only whole paths: a quote, a slash, white space or the end must follow.
    clean = re.sub(re.escape(model) + r"(?=[\"'/\s]|$)", lambda _: base, text)
    if clean == text:
        return path
    copy = run / _COPIES / path.name
    write_bytes(copy, clean.encode("utf-8", "surrogateescape"))
    return copy


router = APIRouter(prefix="/v1/hf", tags=["models on the hub endpoint"])
MODELS = RepositoryKind(
    "models", "", _list_all, _find, _references, more=lambda name: {"modelId": name, "tags": ["pairwright"]}
)
add_read_routes(router, MODELS)
