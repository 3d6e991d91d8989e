"""Places: text parsed to a local path or an address, the operations that work on both, globs, temporary folders, and
Parquet."""

import contextlib
import glob
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import PairwrightError, PlaceError
from pairwright.paths.addresses import Remote

if TYPE_CHECKING:
    import polars as pl

# Temporary local folders (scratch), and files that are staged in them before an upload.
#
# They lie in the system's temporary folder (TMPDIR), which has to hold the largest file that is written to an
# address.


_PREFIX = ".build."


@contextmanager
def scratch(within: Path | None = None) -> Iterator[Path]:
    """A temporary local folder; with `within` it is a hidden one inside that folder."""
    if within is not None:
        within.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pairwright-" if within is None else ".fetched-", dir=within))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stage_file(target: "Path | Remote") -> Iterator[Path]:
    """Yield a local path to write, and upload it to the target afterwards. A local target is written directly.

    If anything fails, nothing is uploaded, and a previous file at the address stays.
    """
    if isinstance(target, Path):
        yield target
        return
    with scratch() as folder:
        written = folder / target.name
        try:
            yield written
        except OSError as error:
            raise PlaceError(f"{target}: while it was written in {folder.parent}: {error.strerror or error}") from error
        target.put(written)


def workspace_of(folder: "Path | Remote", *, owner: object) -> Path:
    """The folder itself, or for an address a temporary local folder, removed when `owner` is garbage-collected."""
    if isinstance(folder, Path):
        return folder
    path = Path(tempfile.mkdtemp(prefix="pairwright-"))
    # finalize, not __del__: it also runs when the interpreter exits
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return path


@contextmanager
def build_folder(output: "Path | Remote", *, shared: bool = False) -> "Iterator[Path | Remote]":
    """A temporary hidden folder in `output`; folders left by builds that died are removed, too.

    For an output at an address it is a local folder, unless it is `shared` with workers on other machines.
    """
    folder = output / f"{_PREFIX}{os.getpid()}.{os.urandom(4).hex()}"
    if isinstance(folder, Remote):
        with _remote_folder(folder) if shared else scratch() as path:
            yield path
        return
    try:
        folder.mkdir(parents=True)
        for other in folder.parent.glob(f"{_PREFIX}*"):
            if not _is_alive(int(other.name.split(".")[2])):  # .build.<pid>.<random>
                shutil.rmtree(other, ignore_errors=True)
        yield folder
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _remote_folder(folder: Remote) -> Iterator[Remote]:
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(PairwrightError):  # the first error is the one to report
            folder.remove_tree()
        raise
    folder.remove_tree()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends no signal, only checks that the process exists
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


Place = Path | Remote
# The scheme has two characters at least: `C://` would be a Windows drive
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.S)


def is_address(text: object) -> bool:
    """Whether a text is an address (`scheme://...`) and not a local path."""
    return isinstance(text, Remote) or _ADDRESS.fullmatch(str(text)) is not None


def place(text: str | os.PathLike[str] | Remote) -> Place:
    """Parse a text to a place.

    >>> str(place("s3://key:secret@bucket/runs/first/?region=eu-west-1"))
    's3://bucket/runs/first'
    >>> place("file:///data/runs")
    PosixPath('/data/runs')
    >>> str(place("s3://bucket/part-?.jsonl"))
    's3://bucket/part-?.jsonl'
    """
    if isinstance(text, Path | Remote):
        return text
    text = os.fspath(text)
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    rest, query = _split_query(rest)
    authority, _, key = rest.partition("/")
    login, at, host = authority.rpartition("@")
    if at and scheme.startswith("abfs") and ":" not in login:  # Azure: container@account, no credentials
        login, host = "", authority
    if not host:
        raise PlaceError(f"{scheme}://: expected an address such as {scheme}://bucket/folder")
    # empty components are dropped: `s3://bucket//a/` and `s3://bucket/a` are the same place
    return Remote(scheme, host, "/".join(part for part in key.split("/") if part), login, query)


def size_of(there: Place) -> int:
    return there.size() if isinstance(there, Remote) else there.stat().st_size


def stamp_of(there: Place) -> tuple[int, int]:
    """Size and modification time in nanoseconds: a different stamp means a different file."""
    if isinstance(there, Remote):
        return there.stamp()
    status = there.stat()
    return status.st_size, status.st_mtime_ns


def local_path(there: Place) -> Path | None:
    """The path of a place on this machine; None for an address."""
    return None if isinstance(there, Remote) else there


def list_names(folder: Place, *, missing_ok: bool = False) -> list[str]:
    """The names in a folder, sorted. At an address a missing folder is empty, and a missing bucket is an error."""
    if isinstance(folder, Remote):
        return folder.names()
    return [] if missing_ok and not folder.exists() else sorted(os.listdir(folder))


@contextmanager
def local_workspace(folder: Place) -> Iterator[Path]:
    """Where to write files of a folder: the folder itself, or a temporary one for an address. See `deliver`."""
    if isinstance(folder, Path):
        yield folder
        return
    with scratch() as path:
        yield path


def deliver(file: Place, folder: Place) -> Place:
    """The final place of a file of `local_workspace(folder)`: unchanged, or uploaded to the address."""
    if isinstance(folder, Path) or isinstance(file, Remote):
        return file
    (folder / file.name).put(file)
    return folder / file.name


@contextmanager
def arrow_input(there: Place) -> Iterator[Any]:
    """Open as an Arrow file for random access."""
    import pyarrow as pa

    if isinstance(there, Path):
        with pa.OSFile(str(there)) as file:
            yield file
        return
    with there.translate_errors(), there.open_input() as file:
        yield file


def open_binary(there: Place, buffering: int = -1) -> IO[bytes]:
    """Open a file to read bytes."""
    return there.open() if isinstance(there, Remote) else open(there, "rb", buffering=buffering)


@contextmanager
def local_copy(there: Place) -> Iterator[Path]:
    """A local file: the file itself, or a temporary copy of a remote one."""
    if isinstance(there, Path):
        yield there
        return
    with scratch() as folder:
        there.fetch(folder / there.name)
        yield folder / there.name


@contextmanager
def local_folder(there: Place, within: Path | None = None) -> Iterator[Path]:
    """A local folder (or file): itself, or a temporary copy of a remote one. `within` is the folder for the copy, if
    other machines have to see it."""
    if isinstance(there, Path):
        yield there
        return
    with scratch(within) as folder:
        if there.is_file():
            there.fetch(folder / there.name)
            yield folder / there.name
            return
        files = [child for child, is_folder in there.entries() if not is_folder and not child.name.startswith(".")]
        if not files:
            raise PlaceError(f"{there}: no file there")
        for file in files:
            file.fetch(folder / file.name)
        yield folder


def _split_query(rest: str) -> tuple[str, str]:
    """Split off the query, which has a key and a value; any other ? is a wildcard."""
    path, mark, query = rest.rpartition("?")
    return (path, query) if mark and "=" in query else (rest, "")


# Files of a path or an address: a file, all files of a folder, or a glob, in the same order for both

# Characters that start a wildcard, the same set as `glob.has_magic`
_MAGIC = re.compile(r"[*?\[]")


def list_files(
    text: str, *, skipped: Collection[str] = (), on_error: Callable[[OSError], None] | None = None
) -> list[tuple[Place, str]]:
    """List the files of a path, folder or glob, each with its path relative to the folder or to the root of the glob.
    In folders, files with the skipped names are left out. `on_error` is called for folders that cannot be listed."""
    there = place(text) if is_address(text) else None
    if isinstance(there, Remote):
        root = root_of(there).key
        return [(file, _below(file.key, root)) for file in remote_files(there, skipped=skipped)]
    path = text if there is None else str(there)
    return [(file, _below(str(file), root)) for file, root in _local_files(path, skipped, on_error)]


def root_of(there: Remote) -> Remote:
    """The part of an address before its first wildcard component; the address itself if it has none."""
    parts = there.key.split("/") if there.key else []
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return there.at("/".join(parts[:plain]))


def remote_files(there: Remote, *, skipped: Collection[str] = ()) -> list[Remote]:
    """List the files of an address, a folder or a glob; in folders the skipped names are left out."""
    start = root_of(there)
    pattern = there.key.removeprefix(start.key).strip("/")
    if pattern:
        matches = sorted(_matching(start, pattern.split("/")), key=lambda match: match[0].key)
    else:
        matches = [(there, there.is_dir())]
    files = [file for match, is_folder in matches for file in _files_at(match, is_folder, skipped)]
    if not files:
        start.entries()  # raises if the bucket does not exist
    return files


def _local_files(
    path: str, skipped: Collection[str], on_error: Callable[[OSError], None] | None
) -> Iterator[tuple[Path, str]]:
    """List the files of a path or glob, each with the folder that its name is relative to."""
    if os.path.exists(path):
        yield from ((file, str(Path(path))) for file in _files_below(Path(path), skipped, on_error))
        return
    parts = Path(path).parts
    # `parts[:num_fixed]` is the root of the glob: the components before the first wildcard
    num_fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root = str(Path(*parts[:num_fixed])) if num_fixed else "."
    for match in sorted(glob.glob(path, recursive=True)):
        yield from ((file, root) for file in _files_below(Path(match), skipped, on_error))


def _below(file: str, root: str) -> str:
    """The path of a file below a root; its name alone where the root is the file itself."""
    if root in (".", ""):
        return file
    return file.removeprefix(root).strip("/") or file.rpartition("/")[2]


def _files_below(
    path: Path, skipped: Collection[str], on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path, onerror=on_error):
        # assigned in place: os.walk then visits these folders only, and in this order
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name not in skipped:
                yield Path(folder, name)


def _files_at(there: Remote, is_folder: bool, skipped: Collection[str]) -> Iterator[Remote]:
    if not is_folder:
        # a size from a listing proves that the file exists, which saves a request
        if there.known_size is not None or there.is_file():
            yield there
        return
    below = [child for child, is_inner in there.entries(recursive=True) if not is_inner]
    # the components of each key below the folder, the file name last
    names = {child: child.key.removeprefix(there.key).strip("/").split("/") for child in below}
    visible = [child for child in below if not any(name.startswith(".") for name in names[child])]
    # in the order of os.walk: the files of a folder, then its folders
    visible.sort(key=lambda child: [*((1, name) for name in names[child][:-1]), (0, names[child][-1])])
    yield from (child for child in visible if child.name not in skipped)


def _matching(folder: Remote, parts: list[str]) -> Iterator[tuple[Remote, bool]]:
    """Entries below a folder that match the components of a glob, each with whether it is a folder."""
    first, rest = parts[0], parts[1:]
    entries = folder.entries()
    if first == "**":  # matches no folder at all, or any number of them
        yield from _matching(folder, rest) if rest else iter([(folder, True)])
        for child, is_folder in entries:
            if child.name.startswith("."):
                continue
            if is_folder:
                yield from _matching(child, parts)
            elif not rest:
                yield child, False
        return
    for child, is_folder in entries:
        # as in a shell, a wildcard matches a hidden name only if the pattern starts with a dot, too
        is_visible = not child.name.startswith(".") or first.startswith(".")
        if is_visible and fnmatchcase(child.name, first):
            if not rest:
                yield child, is_folder
            elif is_folder:
                yield from _matching(child, rest)


# Parquet files at any place: reading, footers, and lazy frames. Only the requested columns are read.
#
# Local files are read by the libraries directly. A remote file is read one row group at a time, and the byte ranges
# of its columns are requested together.


# Concurrent requests, with results in order

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 16
_AHEAD = 4 * _THREADS  # upper bound of the results held in memory


def at_once(function: Callable[[T], R], tasks: Sequence[T], *, waits: bool) -> Iterator[R]:
    """Map a function over tasks, results in order: sequentially, or on threads if each call `waits` for a network."""
    if not waits or len(tasks) < 2:
        yield from map(function, tasks)
        return
    with ThreadPoolExecutor(min(_THREADS, len(tasks))) as threads:
        for start in range(0, len(tasks), _AHEAD):
            yield from threads.map(function, tasks[start : start + _AHEAD])


# Parquet files


@contextmanager
def parquet_file(there: Place, read_dictionary: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file. At an address, read errors are translated to PlaceError."""
    names = list(read_dictionary)
    if not isinstance(there, Remote):
        with pq.ParquetFile(there, read_dictionary=names, pre_buffer=False) as file:
            yield file
        return
    with (
        there.translate_errors(),
        there.open_input() as source,
        pq.ParquetFile(source, read_dictionary=names, pre_buffer=True) as file,
    ):
        yield file


def footers_of(files: Sequence[Place]) -> Iterator[pq.FileMetaData]:
    """The footers of files, in order; remote ones are read concurrently."""
    return at_once(parquet_metadata, files, waits=any(map(is_address, files)))


def parquet_metadata(there: Place) -> pq.FileMetaData:
    """The footer of a file."""
    if not isinstance(there, Remote):
        return pq.read_metadata(there)
    with parquet_file(there) as file:
        return file.metadata


def parquet_batches(there: Place, columns: list[str] | None, num_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, at most `num_rows` at a time; at an address a row group at a time, whatever its size."""
    with parquet_file(there) as file:
        if not isinstance(there, Remote):  # without read-ahead and threads: half the memory
            yield from file.iter_batches(num_rows, columns=columns, use_threads=False)
            return
        for number in range(file.num_row_groups):
            yield from file.read_row_group(number, columns=columns).combine_chunks().to_batches()


def read_parquet(there: Place, columns: list[str] | None = None) -> pa.Table:
    """All rows of a file."""
    with parquet_file(there) as file:
        return file.read(columns=columns)


def scan_parquet(there: Place, schema: pa.Schema | None = None) -> "pl.LazyFrame":
    """A file as a lazy frame. At an address the footer is read for the schema, unless it is passed."""
    import polars as pl

    if not isinstance(there, Remote):
        return pl.scan_parquet(there, glob=False)
    from polars.io.plugins import register_io_source

    remote = there
    known = parquet_metadata(remote).schema.to_arrow_schema() if schema is None else schema

    def read(
        columns: list[str] | None, where: "pl.Expr | None", num_rows: int | None, _: int | None
    ) -> Iterator["pl.DataFrame"]:
        left = num_rows  # rows that the query still needs; None: all
        for batch in parquet_batches(remote, columns, 0):
            frame: Any = pl.from_arrow(batch)
            frame = frame if left is None else frame.head(left)
            left = None if left is None else left - frame.height
            yield frame if where is None else frame.filter(where)
            if left == 0:
                return

    return register_io_source(read, schema=pl.DataFrame(pa.Table.from_batches([], schema=known)).schema)
