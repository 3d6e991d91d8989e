"""Files of an experience table: journals of appends, the marker `table.json` with the labels of imported
files, and Parquet parts.

A journal is a write-ahead log: a file of payloads (store/codec.py), one for each append, written and synced before the
append returns. Its writer holds a lock on it; if the lock is free, the writer is gone. A payload truncated by a crash
was never acknowledged, and reading stops before it.
"""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import CodecError, ForeignBytes, TableError, TruncatedBytes
from pairwright.paths import Place, list_names, publish, stage_file, sync, write_bytes
from pairwright.paths.paths import parquet_batches
from pairwright.records.experience import Experience
from pairwright.store.codec import loads_many, payload_size
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA
from pairwright.store.packed_arrays import Buffer

if TYPE_CHECKING:
    from pairwright.store.table import Table
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from pairwright.paths import is_address

SUFFIX = ".journal"


def new_segment_id() -> str:
    """Return a unique segment id that sorts by creation time."""
    # 20 digits of nanoseconds since the epoch: equal widths make the order of texts the order of time.
    return f"{time.time_ns():020d}-{os.getpid():08d}-{os.urandom(4).hex()}"


class JournalWriter:
    """An open journal. It is locked before it is renamed into place, so other processes never see it unlocked."""

    def __init__(self, folder: Path) -> None:
        self.id = new_segment_id()
        self.path = folder / f"{self.id}{SUFFIX}"
        self.size = 0
        self.pid = os.getpid()
        hidden = folder / f".{self.id}.tmp"
        self._fd = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        hidden.rename(self.path)
        # A new name is durable only when its folder is synced, too.
        sync(folder)

    def write(self, pieces: Sequence[Buffer], *, durable: bool) -> None:
        """Append a payload; on failure, truncate the journal to the last complete payload and raise TableError."""
        size = sum(map(len, pieces))
        try:
            written = os.writev(self._fd, pieces)
            if written < size:  # a short write: the rest in one piece
                rest = memoryview(b"".join(pieces))[written:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            if durable:
                os.fdatasync(self._fd)
        except OSError as error:
            # Cut back to the last whole payload: what follows must not be appended to a torn one.
            os.ftruncate(self._fd, self.size)
            raise TableError(f"{self.path}: {error.strerror}; nothing of this append was kept") from error
        self.size += size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def try_lock(path: Path) -> int | None:
    """Lock a journal whose writer is gone; returns its file descriptor, which releases the lock on close, or None."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # flock is released by the kernel when its owner dies, however that happens.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def read_journal(data: bytes, name: str) -> Iterator[list[Experience]]:
    """Yield the appends of a journal, in order; ignores a torn end and raises TableError for damage before it."""
    view, offset = memoryview(data), 0
    while offset < len(view):
        rest = view[offset:]
        try:
            size = payload_size(rest)
            experiences = loads_many(rest[:size])
        except CodecError as error:
            if _is_torn_end(rest, error):
                return
            raise TableError(f"{name}: damaged at byte {offset}: {error}") from error
        yield experiences
        offset += size


def _is_torn_end(rest: memoryview, error: CodecError) -> bool:
    """Return whether `rest` is what a crash leaves: a truncated payload, unwritten blocks of the last one, or zeros."""
    if isinstance(error, TruncatedBytes):
        return True
    # Some file systems leave zeros where a file grew and its data never arrived.
    if isinstance(error, ForeignBytes):
        return not any(rest)
    try:
        # A wrong checksum is a torn end only in the last payload; before it, data were damaged later.
        return payload_size(rest) == len(rest)
    except CodecError:
        return False


# The marker `table.json`: identifies an experience table and its version

MARKER = "table.json"
_VERSION = 1


def check_table(folder: Place, *, create: bool) -> None:
    """Raise TableError unless a folder is a table of this version.

    With `create`, an empty or missing folder becomes a new table.
    """
    marker = folder / MARKER
    if not marker.exists():
        if folder.is_file():
            raise TableError(
                f"{folder}: a file, and a table is a folder: choose another name"
                if create
                else f"{folder}: a file, not an experience table; import it first: pairwright import {folder} -o DIR"
            )
        names = list_names(folder, missing_ok=True)
        if not create:
            if "pairs.parquet" in names:
                raise TableError(
                    f"{folder}: a pairs table, and an experience table is expected here; next with pairs: pairwright "
                    f"tokens {folder} --tokenizer MODEL -o DIR, or pairwright export {folder} --to trl -o FILE"
                )
            raise TableError(f"{folder}: no experience table here; make one with `pairwright import ... -o {folder}`")
        if any(not name.startswith(".") for name in names):
            raise TableError(f"{folder}: not empty and not an experience table: choose another folder")
        # The time is what templates that print a date are given for records without one of their own.
        now = datetime.now(UTC).replace(microsecond=0, tzinfo=None).isoformat()
        write_marker(folder, {"format": "pairwright-experience", "version": _VERSION, "created": now})
    version = read_marker(folder).get("version")
    if version != _VERSION:
        raise TableError(f"{marker}: version {version!r}, this release reads {_VERSION}: upgrade pairwright")


def read_marker(folder: Place) -> dict[str, Any]:
    """Read the marker of a table."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, OSError) as error:
        raise TableError(f"{folder / MARKER}: cannot be read: {error}") from error


def write_marker(folder: Place, fields: dict[str, Any]) -> None:
    """Write or replace the marker of a table atomically."""
    try:
        write_bytes(folder / MARKER, msgspec.json.encode(fields))
    except OSError as error:
        raise TableError(f"{folder}: no table can be made here: {error.strerror or error}") from error


# Parts: Parquet files, written under a hidden name and published with one rename

ROWS_PER_GROUP = 8192
BYTES_PER_GROUP = 32 * 2**20
# Minimum and maximum a row group, for columns that queries filter by; for long texts they would only take space.
_STATISTICS = ["uid", "tid", "run", "step", "reward", "source"]
Folder = TypeVar("Folder", Path, Place)


def hidden_part(folder: Folder) -> Folder:
    """Return a new hidden file name, which readers of the table ignore."""
    return folder / f".{os.getpid()}.{os.urandom(6).hex()}.tmp"


def write_hidden_part(hidden: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows to a Parquet file and sync it; returns the number of rows. On failure the file is removed."""
    num_rows = 0
    try:
        with pq.ParquetWriter(
            hidden,
            SCHEMA,
            compression="lz4",
            use_dictionary=list(DICTIONARY_NAMES),
            write_statistics=_STATISTICS,
        ) as writer:
            for group in _group_batches(batches):
                writer.write_table(group, row_group_size=group.num_rows)
                num_rows += group.num_rows
        sync(hidden)
    # BaseException: also on Ctrl-C no hidden file is left.
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TableError(f"{hidden.parent}: {error.strerror or error}; no part was written") from error
        raise
    return num_rows


def put_hidden_part(folder: Place, batches: Iterable[pa.RecordBatch]) -> tuple[Place, int]:
    """Write rows as a hidden part of a local or remote table; returns its path and the number of rows."""
    hidden: Place = hidden_part(folder)
    with stage_file(hidden) as written:
        return hidden, write_hidden_part(written, batches)


def _group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into row groups of about 8,192 rows or 32 MB, whichever is reached first."""
    pending: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        pending.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows >= ROWS_PER_GROUP or num_bytes >= BYTES_PER_GROUP:
            yield pa.Table.from_batches(pending)
            pending, num_rows, num_bytes = [], 0, 0
    if num_rows:
        yield pa.Table.from_batches(pending)


# Merging: many small imports or appends do not stay many small files. A merged part takes the place of consecutive
# parts, and its rows have their order. Each step is atomic:
#
#     <id>.merged      names the parts that <id>.parquet replaces; has no effect until that part exists
#     <id>.parquet     appears: from here on readers ignore the parts that it replaces
#     the old parts, then <id>.merged, are deleted; after a crash the next merge does it
#
# A command that is reading the table in another process may find that a part is gone, and says so.

MERGED = ".merged"
MIN_PARTS = 64  # so many small parts in a row are merged
SMALL_BYTES = 2**20
_LOCK = ".merge.lock"
_PARQUET = ".parquet"


def replaced_parts(folder: Place, names: Sequence[str]) -> set[str]:
    """Return the names of parts that a merged part replaces, given the names of all files of the table."""
    replaced: set[str] = set()
    for name in names:
        if name.endswith(MERGED) and name.removesuffix(MERGED) + _PARQUET in names:
            try:
                replaced.update(msgspec.json.decode((folder / name).read_bytes(), type=list[str]))
            except FileNotFoundError:  # deleted since the folder was listed, after the parts that it names
                continue
            except msgspec.MsgspecError as error:
                raise TableError(f"{folder / name}: cannot be read: {error}") from error
    return replaced


@contextmanager
def lock_parts(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of those who replace parts; yields whether it was free (always true with `wait`)."""
    fd = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def merge_small_parts(folder: Path) -> int:
    """Merge runs of small parts; returns how many parts were replaced. Does nothing while another process merges."""
    names = sorted(path.name for path in folder.iterdir())
    # The usual case costs one listing: nothing to clean up, and not enough parts to merge.
    if not any(name.endswith(MERGED) for name in names) and len(names) < MIN_PARTS:
        return 0
    with lock_parts(folder, wait=False) as is_free:
        if not is_free:
            return 0
        _clean_up(folder)
        return sum(_merge(folder, run) for run in _small_runs(folder))


def _clean_up(folder: Path) -> None:
    """Finish what a killed merge left: delete the parts that were replaced, or forget a merge that never happened."""
    for note in folder.glob(f"*{MERGED}"):
        if note.with_suffix(_PARQUET).exists():
            for name in replaced_parts(folder, [note.name, note.with_suffix(_PARQUET).name]):
                # Only parts of this folder, whatever the file says.
                (folder / Path(name).name).with_suffix(_PARQUET).unlink(missing_ok=True)
        note.unlink()


def _small_runs(folder: Path) -> list[list[Path]]:
    """Runs of at least `MIN_PARTS` consecutive small parts, in the order of their rows."""
    runs: list[list[Path]] = [[]]
    segments = [path for path in sorted(folder.iterdir()) if path.suffix in (_PARQUET, ".journal")]
    for path in segments:
        if path.suffix == _PARQUET and path.stat().st_size < SMALL_BYTES:
            runs[-1].append(path)
        else:  # a large part or a journal stays where it is, and so does the order of rows
            runs.append([])
    return [run for run in runs if len(run) >= MIN_PARTS]


def _merge(folder: Path, parts: list[Path]) -> int:
    # The name sorts directly after the last part that it replaces, and before any later one.
    merged = parts[-1].with_name(f"{parts[-1].stem}m{_PARQUET}")
    hidden, _ = put_hidden_part(folder, _rows_of(parts))
    write_bytes(merged.with_suffix(MERGED), msgspec.json.encode([part.name for part in parts]))
    publish(hidden, merged)
    _clean_up(folder)
    return len(parts)


def _rows_of(parts: list[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from parquet_batches(part, SCHEMA.names, ROWS_PER_GROUP)


# Labels of imported files, which are part of the ids of their records.
#
#     DIR/table.json    {..., "files": {"/absolute/path/of/a/rollouts.jsonl": "a/rollouts.jsonl"}}
#
# A label is the path of the file relative to the imported folder or the root of the glob; for a single file, its
# name. If labels of one import collide, parent folders are prepended until they are unique, so that equal rows of two
# files are two runs. A file keeps its label permanently, however its path is spelled later, so that importing it
# again adds nothing. A moved or copied folder gets the same labels, so that its records are not imported twice.


_FIELD = "files"  # of the marker
_MAPS = "maps"  # of the marker: field maps by file


class Labels(NamedTuple):
    """Labels by file; `same_as` maps a new file to an existing file that already has the same label."""

    by_file: dict[Place, str]
    same_as: dict[Place, str]


def label_files(names: Mapping[Place, str], table: "Table") -> Labels:
    """Return the labels of files; new labels are stored in the table before any file is read.

    Files of a table from a release without labels keep their file names as labels.

    Args:
        names: Relative path of each file.
        table: The table to import into.
    """
    known = read_labels(table.path)
    is_unlabelled = known is None
    if known is None:
        known = _labels_of_rows(table)
    keys = {file: key_of(str(file)) for file in names}
    new = {file: _text(name) for file, name in names.items() if keys[file] not in known}
    taken = {known[key] for key in keys.values() if key in known}  # by files that are read again beside them
    # Each round puts one more folder before the names that are not unique; whole paths are, so the loop ends.
    while repeated := taken.intersection(new.values()) | {name for name, n in Counter(new.values()).items() if n > 1}:
        new = {file: _longer(name, keys[file]) if name in repeated else name for file, name in new.items()}
    # Label -> the file that has it and still exists; one that is gone may be the new file before it was moved.
    holders = {label: key for key, label in known.items() if is_address(key) or os.path.exists(key)} if new else {}
    known |= {keys[file]: name for file, name in new.items()}
    if new or (is_unlabelled and known):
        _write(table.path, known)
    same_as = {file: holders[name] for file, name in new.items() if name in holders}
    return Labels({file: known[key] for file, key in keys.items()}, same_as)


def read_labels(folder: Place) -> dict[str, str] | None:
    """Read the labels of a table by absolute path; None if it has none."""
    content = read_marker(folder)
    try:
        return msgspec.convert(content[_FIELD], dict[str, str]) if _FIELD in content else None
    except msgspec.ValidationError as error:
        raise TableError(f"{folder}: the labels of imported files cannot be read: {error}") from error


def copy_labels(source: Place, target: Place) -> None:
    """Copy the labels of a table to another table that has rows of it."""
    labels = read_labels(source)
    if labels:
        _write(target, labels)


def read_maps(folder: Place) -> dict[str, str]:
    """Read the field maps that files of a table were imported with, by absolute path."""
    try:
        return msgspec.convert(read_marker(folder).get(_MAPS, {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise TableError(f"{folder}: the maps of imported files cannot be read: {error}") from error


def write_maps(folder: Place, maps: Mapping[str, str]) -> None:
    """Add the field maps of files to those that a table has."""
    write_marker(folder, {**read_marker(folder), _MAPS: {**read_maps(folder), **maps}})


def _labels_of_rows(table: "Table") -> dict[str, str]:
    """Return labels for the files of a table from a release without labels: their names."""
    if not table.segments():
        return {}
    sources = {file for batch in table.scan(columns=["source"]) for file in batch[0].unique().to_pylist()}
    return {key_of(file): file.rpartition("/")[2] for file in sorted(sources - {None})}


@lru_cache(maxsize=2**16)
def key_of(file: str) -> str:
    """Return the canonical key of a file, independent of how its path is spelled: resolved path, or address."""
    return file if is_address(file) else _text(os.path.realpath(file))


def _text(path: str) -> str:
    """Return a path as valid Unicode for JSON; bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _longer(name: str, key: str) -> str:
    """Prepend one more parent folder to a name; returns the whole key if there is none left."""
    parts = key.strip("/").split("/")
    num_parts = name.count("/") + 2
    return "/".join(parts[-num_parts:]) if num_parts < len(parts) else key


def _write(folder: Place, labels: Mapping[str, str]) -> None:
    write_marker(folder, {**read_marker(folder), _FIELD: dict(labels)})
