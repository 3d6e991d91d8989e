"""Models as repositories of the Hub API: the routes that `huggingface_hub` and `transformers` use for downloads."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query
from sqlalchemy.engine import Connection, RowMapping
from starlette.responses import FileResponse, Response

from pairwright.jobs.job import JobState
from pairwright.jobs.local import result_folder
from pairwright.paths import write_bytes
from pairwright.service.access import CallerIs, Readable, ValidName
from pairwright.service.api_errors import Refusal
from pairwright.service.context import ContextIs
from pairwright.service.hub.hub_routes import file_answer, list_entries, no_entry, repository_document
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.blob_store import Blob
from pairwright.service.rows.database import jobs as rows
from pairwright.service.rows.names import check_name, check_path
from pairwright.service.rows.repositories import Commit
from pairwright.service.settings import Settings

# Models made by jobs are repositories of the hub endpoint: `snapshot_download("shop/llama-tickets-lora")`.
#
# The model NAMESPACE/NAME@VERSION is the revision VERSION of the repository NAMESPACE/NAME; `main` is the newest. Its
# files are those of the model's folder. In files that contain the local folder of the base model, clients get its name
# instead.


_INDEX = "hub-files.json"  # in the run folder: hashes of the model's files
_COPIES = "hub-copies"  # in the run folder: files in which a path was replaced
_SMALL = 2**20
_PIECE = 2**20


class _File(msgspec.Struct, array_like=True):
    """A file of a model: location, modification time when it was hashed, and hashes."""

    location: str
    modified_ns: int
    blob: Blob


@dataclass(frozen=True)
class ModelRevision(Commit):
    """A model as a commit; its title is the version, `locations` maps its files to local paths."""

    locations: dict[str, Path]


def find_revision(
    connection: Connection, settings: Settings, namespace: str, name: str, revision: str
) -> ModelRevision:
    """Return a revision of a model repository. Raises a 404 refusal if there is none."""
    versions = list_versions(connection, namespace, name)
    if not versions:
        message = f"no model repository {namespace + '/' + name!r}"
        raise Refusal(404, "repository_not_found", message, headers={"x-error-code": "RepoNotFound"})
    wanted = revision.removeprefix("refs/heads/")
    for version, row in versions.items():
        if wanted in ("main", version) or (len(wanted) >= 7 and commit_id(row).startswith(wanted)):
            return _read_revision(row, version, settings)
    message = (
        f"{namespace}/{name} has no revision {revision[:80]!r}: expected main, or one of {', '.join(versions)[:500]}"
    )
    raise Refusal(404, "revision_not_found", message, headers={"x-error-code": "RevisionNotFound"})


def list_versions(connection: Connection, namespace: str, name: str) -> dict[str, RowMapping]:
    """Return the versions of a model with the jobs that made them, newest first."""
    full = f"{namespace}/{name}"
    is_named = sa.or_(rows.c.output_model == full, rows.c.output_model.startswith(f"{full}@", autoescape=True))
    chosen = sa.select(rows).where(is_named, rows.c.state == JobState.COMPLETED).order_by(rows.c.number.desc())
    return {row["output_model"].partition("@")[2] or "main": row for row in connection.execute(chosen).mappings()}


def list_repositories(connection: Connection, namespaces: list[str] | None) -> list[tuple[str, RowMapping]]:
    """Return the model repositories with the job of their newest version; None: of all namespaces."""
    where = [rows.c.state == JobState.COMPLETED, rows.c.output_model != ""]
    if namespaces is not None:
        where.append(rows.c.namespace.in_(namespaces))
    repositories: dict[str, RowMapping] = {}
    for row in connection.execute(sa.select(rows).where(*where).order_by(rows.c.number.desc())).mappings():
        repositories.setdefault(row["output_model"].partition("@")[0], row)
    return list(repositories.items())


def commit_id(row: RowMapping) -> str:
    """Return the commit id of a model, derived from the job id: files of a completed job do not change."""
    return hashlib.sha1(row["id"].encode(), usedforsecurity=False).hexdigest()


def _read_revision(row: RowMapping, version: str, settings: Settings) -> ModelRevision:
    run = settings.run_folder(row["id"])
    folder = result_folder(run)
    if not folder.is_dir():
        raise Refusal(404, "model_gone", f"the files of {row['output_model']!r} are not there any more")
    files = _index_files(run, folder, row)
    return ModelRevision(
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
            index[name] = _File(location.relative_to(run).as_posix(), modified_ns, _hash_file(location))
    if index != known:
        write_bytes(run / _INDEX, msgspec.json.encode(index))
    return index


def _without_paths(path: Path, run: Path, row: RowMapping) -> Path:
    """Return the file itself, or a copy in which the folder of the base model is replaced by its name."""
    if path.suffix not in (".json", ".md", ".txt", ".jinja") or path.stat().st_size > _SMALL:
        return path
    document = msgspec.json.decode(row["document"])
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    base, model = document["config_snapshot"]["base_model"], jobs.work_of(row)["model"]
    # Replaces only whole paths: a quote, a slash, white space or the end must follow.
    clean = re.sub(re.escape(model) + r"(?=[\"'/\s]|$)", lambda _: base, text)
    if clean == text:
        return path
    copy = run / _COPIES / path.name
    write_bytes(copy, clean.encode("utf-8", "surrogateescape"))
    return copy


def _hash_file(path: Path) -> Blob:
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
            git.update(piece)
    return Blob(sha256.hexdigest(), size, git.hexdigest())


def to_list_entry(repository: str, row: RowMapping) -> dict[str, Any]:
    """Build the entry of a model in a list of the Hub API."""
    return {
        "_id": commit_id(row)[:24],
        "id": repository,
        "modelId": repository,
        "author": repository.partition("/")[0],
        "sha": commit_id(row),
        "lastModified": row["updated_at"][:23] + "Z",
        "createdAt": row["created_at"][:23] + "Z",
        "private": False,
        "tags": ["pairwright"],
        "downloads": 0,
        "likes": 0,
    }


router = APIRouter(prefix="/v1/hf", tags=["models on the hub endpoint"])


def _revision_at(namespace: Readable, name: ValidName, revision: str, context: ContextIs) -> ModelRevision:
    with context.database.reading() as connection:
        return find_revision(connection, context.settings, namespace, name, revision)


RevisionIs = Annotated[ModelRevision, Depends(_revision_at)]  # of the revision in the path


@router.get("/api/models")
def list_models(
    caller: CallerIs,
    context: ContextIs,
    author: Annotated[str | None, Query(max_length=200)] = None,
    search: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> list[dict[str, Any]]:
    """The model repositories that the caller may read, newest first."""
    namespaces = caller.namespaces
    if author is not None:
        caller.check(check_name(author, "author"), write=False)
        namespaces = [author]
    with context.database.reading() as connection:
        repositories = list_repositories(connection, namespaces)
    matching = [(name, row) for name, row in repositories if (search or "").lower() in name.lower()]
    return [to_list_entry(name, row) for name, row in matching[:limit]]


@router.get("/api/models/{namespace}/{name}")
def model_information(namespace: Readable, name: ValidName, context: ContextIs) -> dict[str, Any]:
    """The newest version of a model."""
    return _document(namespace, name, _revision_at(namespace, name, "main", context))


@router.get("/api/models/{namespace}/{name}/revision/{revision:path}")
def model_revision(namespace: Readable, name: ValidName, version: RevisionIs) -> dict[str, Any]:
    """A version of a model: its commit and the names of its files."""
    return _document(namespace, name, version)


@router.get("/api/models/{namespace}/{name}/refs")
def model_references(namespace: Readable, name: ValidName, context: ContextIs) -> dict[str, Any]:
    """The versions, as tags; `main` is the newest."""
    newest = _revision_at(namespace, name, "main", context)
    with context.database.reading() as connection:
        versions = list_versions(connection, namespace, name)
    tags = [
        {"name": version, "ref": f"refs/tags/{version}", "targetCommit": commit_id(row)}
        for version, row in versions.items()
    ]
    main = {"name": "main", "ref": "refs/heads/main", "targetCommit": newest.oid}
    return {"branches": [main], "tags": tags, "converts": [], "pullRequests": []}


@router.get("/api/models/{namespace}/{name}/tree/{revision}")
def model_tree(version: RevisionIs, recursive: bool = False) -> list[dict[str, Any]]:
    """Files and folders of a version."""
    return list_entries(version, "", recursive=recursive)


@router.get("/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
@router.head("/{namespace}/{name}/resolve/{revision}/{path:path}", response_class=FileResponse)
def resolve_model_file(namespace: Readable, name: ValidName, path: str, version: RevisionIs) -> Response:
    """A file of a version; ranges are served."""
    blob = version.tree.get(check_path(path))
    if blob is None:
        raise no_entry(namespace, name, path)
    return file_answer(version.locations[path], blob, version.oid)


def _document(namespace: str, name: str, revision: ModelRevision) -> dict[str, Any]:
    document = repository_document(namespace, name, revision)
    return {**document, "modelId": document["id"], "tags": ["pairwright"]}
