"""Push a pairs or experience table to a dataset repository of the Hugging Face Hub, and pull it back byte for byte.

    pairs          pairs.parquet, funnel.json, outcomes.parquet
    experience     table.json, its Parquet parts, exclusions.csv
    both           README.md, the card; pairwright.json, the manifest: kind, rows, and size and SHA-256 of every file

lineage.json is not pushed: it has local paths. Endpoint, token and offline mode are those of huggingface_hub
(HF_ENDPOINT, HF_TOKEN or `hf auth login`, HF_HUB_OFFLINE). A pull writes only files with the names of a table, after
size and hash were checked against the manifest, so that a repository cannot write other files or other places.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.hub_card import make_card
from pairwright.pairs.container import Pairs
from pairwright.pairs.decisions.exclusions import FILE_NAME as EXCLUSIONS
from pairwright.pairs.funnel import FILE_NAME as FUNNEL
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES
from pairwright.pairs.pair_table import FILE_NAME as PAIRS
from pairwright.pairs.pair_table import count_pairs
from pairwright.paths import Place, is_hub_id, local_path, place, publish
from pairwright.store.journal import SUFFIX
from pairwright.store.table import Table
from pairwright.store.table_marker import MARKER

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MANIFEST = "pairwright.json"
CARD = "README.md"
_VERSION = 1
# Maximum bytes: manifest and card are read into memory.
_MAX_MANIFEST = 2**24
_MAX_CARD = 2**20
# Files that a repository may contain, by kind: exact names, or names of parts.
_NAMES = {"pairs": {PAIRS, FUNNEL, OUTCOMES}, "experience": {MARKER, EXCLUSIONS}}
_PART = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,120}\.parquet")
_STAGING = ".pulling"


class HubError(PairwrightError):
    """The Hub refused, cannot be reached, or the repository is not a pairwright table."""


class FileEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Size and hash of a file."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a repository; `rows` is the number of pairs or experiences."""

    kind: Literal["pairs", "experience"]
    rows: int
    files: dict[str, FileEntry]
    version: int = _VERSION


class HubSummary(msgspec.Struct):
    """Result of a push or a pull; `changed` is False if everything was already there.

    >>> import pairwright as pw
    >>> pw.HubSummary("me/pairs", "pairs", rows=4, files=3, bytes=9000, revision="2f1c", changed=True, folder="x").rows
    4
    """

    repo: str
    kind: str
    rows: int
    files: int
    bytes: int
    revision: str
    changed: bool
    folder: str


def push(
    folder: str | Place,
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,
    token: str | None = None,
) -> HubSummary:
    """Push a pairs or experience table to a dataset repository, which is created if it is missing.

    Args:
        folder: Folder of the table, on this machine.
        repo: Id of the repository, such as "me/pairs".
        private: Create the repository as private; an existing public repository is refused.
        revision: Branch to push to, created if it is missing; None: main.
        license: Licence in the card, such as "apache-2.0"; None keeps that of the existing card.
        token: Token of the Hub; None: the token of huggingface_hub.

    >>> import pairwright as pw
    >>> pw.push("runs/first/pairs", "not a repository")
    Traceback (most recent call last):
    pairwright.errors.ConfigError: repository: got 'not a repository', expected an id such as org/name
    """
    _check_repo(repo)
    source = local_path(place(folder))
    if source is None:
        raise HubError(f"{folder}: an address, but tables are pushed from this machine: copy the folder here")
    manifest = describe_folder(source)
    import huggingface_hub as hub

    api = hub.HfApi(token=token)
    with _translate_errors(repo):
        api.create_repo(repo, repo_type="dataset", private=private or None, exist_ok=True)
        if private and not api.dataset_info(repo).private:
            raise HubError(
                f"{repo}: is public, but --private was given: make it private on the Hub, or name another repository"
            )
        if revision is not None:
            api.create_branch(repo, repo_type="dataset", branch=revision, exist_ok=True)
        parent = api.dataset_info(repo, revision=revision).sha
        old = _read_small(api, repo, MANIFEST, parent, _MAX_MANIFEST)
        old_card = _read_small(api, repo, CARD, parent, _MAX_CARD)
        card = make_card(source, msgspec.to_builtins(manifest), old=old_card, license=license)
        content = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"
        is_new = (old, old_card) != (content, card)
        oid = parent
        if is_new:
            # One commit, so that files of two pushes are never mixed. Files that the Hub has are not uploaded again.
            operations: list[Any] = [hub.CommitOperationAdd(name, str(source / name)) for name in manifest.files]
            operations += [hub.CommitOperationAdd(MANIFEST, content), hub.CommitOperationAdd(CARD, card)]
            # Only files of an earlier push are deleted; all other files of the repository are kept.
            gone = _list_files(old).difference(manifest.files)
            operations += [hub.CommitOperationDelete(name) for name in sorted(gone)]
            title = f"{manifest.rows:,} {'pairs' if manifest.kind == 'pairs' else 'experiences'}"
            # With `parent_commit`, a concurrent push makes this one fail instead of overwriting it.
            oid = api.create_commit(
                repo, operations, commit_message=title, repo_type="dataset", revision=revision, parent_commit=parent
            ).oid
    return _summarize(repo, manifest, str(oid), changed=is_new, folder=source)


def describe_folder(source: Path) -> Manifest:
    """Return the manifest of a folder; raises HubError if it has no table or the table is being written."""
    if (source / MARKER).is_file():
        with Table(source, create=False) as table:
            table.compact()
            rows = table.count()
        names = sorted(path.name for path in source.iterdir() if _PART.fullmatch(path.name))
        journals = sorted(source.glob(f"*{SUFFIX}"))
        if journals:
            raise HubError(f"{journals[0]}: another process appends to the table: push when that process has ended")
        names = [MARKER, *names, *([EXCLUSIONS] if (source / EXCLUSIONS).is_file() else [])]
        return Manifest("experience", rows, {name: _describe_file(source / name) for name in names})
    if (source / PAIRS).is_file():
        # Filtered pairs, and pairs made by other tools, have no funnel and outcomes.
        names = [name for name in (PAIRS, FUNNEL, OUTCOMES) if (source / name).is_file()]
        return Manifest("pairs", count_pairs(source), {name: _describe_file(source / name) for name in names})
    raise HubError(f"{source}: neither a pairs table ({PAIRS}) nor an experience table ({MARKER})")


def pull(repo: str, output: str | Place, *, revision: str | None = None, token: str | None = None) -> Pairs | Table:
    """Download a table that `push` wrote, and verify every file.

    An interrupted download resumes when it is started again.

    Args:
        repo: Id of the dataset repository, such as "me/pairs".
        output: Folder for the table: a new folder, or the folder of an interrupted pull.
        revision: Branch, tag or commit; None: main.
        token: Token of the Hub; None: the token of huggingface_hub.

    Returns:
        The pairs or the experience table.

    >>> import pairwright as pw
    >>> pw.pull("not a repository", "runs/pulled")
    Traceback (most recent call last):
    pairwright.errors.ConfigError: repository: got 'not a repository', expected an id such as org/name
    """
    summary = pull_files(repo, output, revision=revision, token=token)
    return Pairs(summary.folder) if summary.kind == "pairs" else Table(summary.folder, create=False)


def pull_files(repo: str, output: str | Place, *, revision: str | None = None, token: str | None = None) -> HubSummary:
    """Download a table like `pull`, but return a summary."""
    _check_repo(repo)
    folder = local_path(place(output))
    if folder is None:
        raise HubError(f"{output}: an address, but tables are pulled to this machine: name a folder here")
    import huggingface_hub as hub

    api = hub.HfApi(token=token)
    with _translate_errors(repo):
        # All files come from one commit, even if somebody pushes during the download.
        commit = str(api.dataset_info(repo, revision=revision).sha)
        content = _read_small(api, repo, MANIFEST, commit, _MAX_MANIFEST)
        manifest = check_manifest(repo, content)
        if folder.is_dir() and all(_is_equal(folder / name, entry) for name, entry in manifest.files.items()):
            return _summarize(repo, manifest, commit, changed=False, folder=folder)
        # The staging folder marks an interrupted pull; any other content is not overwritten.
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if folder.is_file() or (names and _STAGING not in names):
            raise ConfigError(f"{folder}: is not empty: name a new folder for {repo}")
        _download(api, repo, commit, manifest, folder / _STAGING)
    # All files were verified. The file that makes a folder a table is published last: after a crash the folder is not
    # a table yet, and the next pull resumes.
    for name in sorted(manifest.files, key=lambda name: (name in (PAIRS, MARKER), name)):
        publish(folder / _STAGING / name, folder / name)
    shutil.rmtree(folder / _STAGING)
    rows = count_pairs(folder) if manifest.kind == "pairs" else Table(folder, create=False).count()
    if rows != manifest.rows:
        raise HubError(f"{repo}: its manifest says {manifest.rows:,} rows, and its files have {rows:,}")
    return _summarize(repo, manifest, commit, changed=True, folder=folder)


def check_manifest(repo: str, content: bytes | None) -> Manifest:
    """Decode a manifest and check that it names the files of a table and nothing else."""
    if content is None:
        raise HubError(f"{repo}: has no {MANIFEST}: not a table that pairwright pushed; read it with pairwright import")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HubError(f"{repo}: {MANIFEST}: {error}") from None
    if manifest.version != _VERSION:
        raise HubError(f"{repo}: {MANIFEST}: got version {manifest.version}, expected {_VERSION}: update pairwright")
    for name in manifest.files:
        is_part = manifest.kind == "experience" and _PART.fullmatch(name) is not None
        if name not in _NAMES[manifest.kind] and not is_part:
            raise HubError(f"{repo}: {MANIFEST}: {name[:100]!r} is not a file of a table of {manifest.kind}")
    marker = PAIRS if manifest.kind == "pairs" else MARKER
    if marker not in manifest.files:
        raise HubError(f"{repo}: {MANIFEST}: names no {marker}")
    return manifest


def _download(api: "HfApi", repo: str, commit: str, manifest: Manifest, staging: Path) -> None:
    """Download the files of a manifest, check each, and leave them in `staging`."""
    staging.mkdir(parents=True, exist_ok=True)
    sizes = {info.path: getattr(info, "size", None) for info in _list_info(api, repo, list(manifest.files), commit)}
    for name, entry in manifest.files.items():
        # Checked before the download: a file must not be larger than the manifest says.
        if sizes.get(name) != entry.size:
            raise HubError(f"{repo}: {name}: has {sizes.get(name)} bytes, and {MANIFEST} says {entry.size}")
        path = staging / name
        if not _is_equal(path, entry):
            api.hf_hub_download(repo, name, repo_type="dataset", revision=commit, local_dir=staging)
        if not _is_equal(path, entry):
            path.unlink(missing_ok=True)
            raise HubError(
                f"{repo}: {name}: its SHA-256 is not that of {MANIFEST}: changed or damaged; nothing was kept"
            )


def _read_small(api: "HfApi", repo: str, name: str, commit: str | None, most: int) -> bytes | None:
    """Read a small file of a repository; None if it is not there."""
    infos = _list_info(api, repo, [name], commit)
    if not infos:
        return None
    size = getattr(infos[0], "size", None)
    if size is None or size > most:
        raise HubError(f"{repo}: {name}: has {size} bytes, expected a file of at most {most:,}")
    with tempfile.TemporaryDirectory() as temporary:
        path = api.hf_hub_download(repo, name, repo_type="dataset", revision=commit, local_dir=temporary)
        return Path(path).read_bytes()


def _list_info(api: "HfApi", repo: str, names: list[str], commit: str | None) -> list[Any]:
    infos: list[Any] = []
    # 500 paths per request: a table may have thousands of parts.
    for first in range(0, len(names), 500):
        infos += api.get_paths_info(repo, names[first : first + 500], repo_type="dataset", revision=commit)
    return infos


def _list_files(manifest: bytes | None) -> set[str]:
    """Return the file names of the previous manifest, which a push replaces; empty if it cannot be read."""
    try:
        return set(check_manifest("", manifest).files)
    except HubError:
        return set()


def _is_equal(path: Path, entry: FileEntry) -> bool:
    # Size first, since hashing a large file is slow.
    return path.is_file() and path.stat().st_size == entry.size and _describe_file(path) == entry


def _describe_file(path: Path) -> FileEntry:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(file.tell(), digest.hexdigest())


def _summarize(repo: str, manifest: Manifest, revision: str, *, changed: bool, folder: Path) -> HubSummary:
    sizes = sum(entry.size for entry in manifest.files.values())
    return HubSummary(repo, manifest.kind, manifest.rows, len(manifest.files), sizes, revision, changed, str(folder))


def _check_repo(repo: str) -> None:
    if not is_hub_id(repo):
        raise ConfigError(f"repository: got {repo!r}, expected an id such as org/name")


@contextmanager
def _translate_errors(repo: str) -> Iterator[None]:
    """Translate errors of huggingface_hub and of the network to HubError with advice."""
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise HubError(f"{repo}: no such revision: name a branch, tag or commit of the repository") from None
    except (errors.RepositoryNotFoundError, errors.GatedRepoError):
        raise HubError(
            f"{repo}: the Hub has no such dataset for you: check the name, or log in: hf auth login (or HF_TOKEN)"
        ) from None
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        way_out = "; log in with a token that may write: hf auth login (or HF_TOKEN)" if code in (401, 403) else ""
        lines = str(error.server_message or error).strip().splitlines() or [type(error).__name__]
        raise HubError(f"{repo}: the Hub answered {code}: {lines[0]}{way_out}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError):
        raise HubError(f"{repo}: the Hub cannot be reached: HF_HUB_OFFLINE is set, or there is no connection") from None
    except errors.HFValidationError as error:
        raise ConfigError(f"repository: {str(error).splitlines()[0]}") from None
    except httpx.HTTPError as error:
        raise HubError(
            f"{repo}: the Hub cannot be reached: {type(error).__name__}: {error}; the same command goes on"
        ) from None
