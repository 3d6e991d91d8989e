"""Journals: where appended experiences are safe before they are in a Parquet part.

A journal is a file of payloads (codec.py), one for each append, written and synced before the append returns. One
process writes it and holds a lock on it; when the lock can be taken, its writer is gone. A payload that a crash cut
short was never acknowledged: reading stops before it.
"""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import CodecError, ForeignBytes, TableError, TruncatedBytes
from pairwright.paths import Place, list_names, stage_file, sync, write_bytes
from pairwright.records.experience import Experience
from pairwright.store.block import Buffer
from pairwright.store.codec import loads_many, payload_size
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA

SUFFIX = ".journal"


def new_segment_id() -> str:
    """A name that sorts by time and that no other process can choose."""
    # 20 digits of nanoseconds since the epoch: equal widths make the order of texts the order of time.
    return f"{time.time_ns():020d}-{os.getpid():08d}-{os.urandom(4).hex()}"


class JournalWriter:
    """An open journal. It gets its name only once it is locked, so nobody ever finds it without a writer."""

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
        """Append a payload; after a failed write the journal is cut back to what was whole."""
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
    """A descriptor with the journal's lock if its writer is gone, else None. Closing it gives the lock back."""
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
    """The appends of a journal, in order. A torn end is left out; damage before the end is an error."""
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
    """True for what a crash leaves: a payload cut short, one whose blocks never reached the disk, or zeros."""
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


# The marker `table.json`: it says that a folder is an experience table, and of which version.

MARKER = "table.json"
_VERSION = 1


def check_table(folder: Place, *, create: bool) -> None:
    """See that a folder is a table of this version; with `create` one that is empty or not there becomes one."""
    marker = folder / MARKER
    if not marker.exists():
        if folder.is_file():
            raise TableError(f"{folder}: a file, and a table is a folder: choose another name")
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
        write_marker(folder, {"format": "pairwright-experience", "version": _VERSION})
    version = read_marker(folder).get("version")
    if version != _VERSION:
        raise TableError(f"{marker}: version {version!r}, this release reads {_VERSION}: upgrade pairwright")


def read_marker(folder: Place) -> dict[str, Any]:
    """What the marker of a table says."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, OSError) as error:
        raise TableError(f"{folder / MARKER}: cannot be read: {error}") from error


def write_marker(folder: Place, fields: dict[str, Any]) -> None:
    """Put a marker in place of the one that is there, whole and synced."""
    try:
        write_bytes(folder / MARKER, msgspec.json.encode(fields))
    except OSError as error:
        raise TableError(f"{folder}: no table can be made here: {error.strerror or error}") from error


# Parts: Parquet files of a table, each written whole under a hidden name and then given its own in one rename.

ROWS_PER_GROUP = 8192
BYTES_PER_GROUP = 32 * 2**20
# Minimum and maximum a row group, for columns that queries filter by; for long texts they would only take space.
_STATISTICS = ["uid", "tid", "run", "step", "reward", "source"]
Folder = TypeVar("Folder", Path, Place)


def hidden_part(folder: Folder) -> Folder:
    """A name that no reader of the table looks at."""
    return folder / f".{os.getpid()}.{os.urandom(6).hex()}.tmp"


def write_hidden_part(hidden: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows to a hidden name and sync them; returns how many. Nothing is left behind if it fails."""
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
    """Rows as a hidden part of a table, wherever it is, and how many they are."""
    hidden: Place = hidden_part(folder)
    with stage_file(hidden) as written:
        return hidden, write_hidden_part(written, batches)


def _group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Small batches put together into row groups of a few thousand rows or 32 MB, whichever is less."""
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
