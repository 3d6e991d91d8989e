"""Parts of a table: Parquet files, written under a hidden name, published with one rename, merged if many are small.

A merged part replaces consecutive parts and keeps the order of their rows. Each step is atomic:

    <id>.merged      names the parts that <id>.parquet replaces; has no effect until that part exists
    <id>.parquet     appears: from now on readers ignore the parts that it replaces
    the old parts, then <id>.merged, are deleted; after a crash, by the next merge

A process that reads the table meanwhile may find a part missing and reports it.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import TableError
from pairwright.paths import Place, publish, stage_file, sync, write_bytes
from pairwright.paths.parquet_files import parquet_batches
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA

ROWS_PER_GROUP = 8192
BYTES_PER_GROUP = 32 * 2**20
# Columns with minimum and maximum per row group, used by filters; for long texts, statistics would waste space.
_STATISTICS = ["uid", "tid", "run", "step", "reward", "source"]
MERGED = ".merged"
MIN_PARTS = 64  # minimum number of consecutive small parts to merge
SMALL_BYTES = 2**20
_LOCK = ".merge.lock"
_PARQUET = ".parquet"
Folder = TypeVar("Folder", Path, Place)


def hidden_part(folder: Folder) -> Folder:
    """Return a new hidden file name, which readers of the table ignore."""
    return folder / f".{os.getpid()}.{os.urandom(6).hex()}.tmp"


class PartWriter:
    """Writes batches to a Parquet file, in row groups of about 8,192 rows or 32 MB, whichever is reached first."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.num_rows = 0
        self._writer = writer
        self._pending: list[pa.RecordBatch] = []
        self._num_pending = self._num_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._num_pending += batch.num_rows
        self._num_bytes += batch.nbytes
        if self._num_pending >= ROWS_PER_GROUP or self._num_bytes >= BYTES_PER_GROUP:
            self.end_group()

    def end_group(self) -> None:
        if self._num_pending:
            self._writer.write_table(pa.Table.from_batches(self._pending), row_group_size=self._num_pending)
            self.num_rows += self._num_pending
        self._pending, self._num_pending, self._num_bytes = [], 0, 0


@contextmanager
def open_part(hidden: Path) -> Iterator[PartWriter]:
    """Open a hidden part for writing. It is synced when the block ends; on failure the file is removed."""
    try:
        with pq.ParquetWriter(
            hidden,
            SCHEMA,
            compression="lz4",
            use_dictionary=list(DICTIONARY_NAMES),
            write_statistics=_STATISTICS,
        ) as file:
            writer = PartWriter(file)
            yield writer
            writer.end_group()
        sync(hidden)
    # BaseException, so that Ctrl-C leaves no hidden file either.
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TableError(f"{hidden.parent}: {error.strerror or error}; no part was written") from error
        raise


def put_hidden_part(folder: Place, batches: Iterable[pa.RecordBatch]) -> tuple[Place, int]:
    """Write rows as a hidden part of a local or remote table; returns its path and the number of rows."""
    hidden: Place = hidden_part(folder)
    with stage_file(hidden) as written, open_part(written) as writer:
        for batch in batches:
            writer.write(batch)
    return hidden, writer.num_rows


def replaced_parts(folder: Place, names: Sequence[str]) -> set[str]:
    """Return the names of parts that a merged part replaces, given the names of all files of the table."""
    replaced: set[str] = set()
    for name in names:
        if name.endswith(MERGED) and name.removesuffix(MERGED) + _PARQUET in names:
            try:
                replaced.update(msgspec.json.decode((folder / name).read_bytes(), type=list[str]))
            except FileNotFoundError:  # deleted since the listing, after the parts that it names
                continue
            except msgspec.MsgspecError as error:
                raise TableError(f"{folder / name}: cannot be read: {error}") from error
    return replaced


@contextmanager
def lock_parts(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock for replacing parts; yields whether it was acquired (always true with `wait`)."""
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
    # Usual case, at the cost of one listing: nothing to clean up, and too few parts to merge.
    if not any(name.endswith(MERGED) for name in names) and len(names) < MIN_PARTS:
        return 0
    with lock_parts(folder, wait=False) as is_free:
        if not is_free:
            return 0
        _clean_up(folder)
        return sum(_merge(folder, run) for run in _small_runs(folder))


def _clean_up(folder: Path) -> None:
    """Clean up after a killed merge: delete replaced parts, or discard an unfinished merge."""
    for note in folder.glob(f"*{MERGED}"):
        if note.with_suffix(_PARQUET).exists():
            for name in replaced_parts(folder, [note.name, note.with_suffix(_PARQUET).name]):
                # Only parts of this folder, regardless of the file's content.
                (folder / Path(name).name).with_suffix(_PARQUET).unlink(missing_ok=True)
        note.unlink()


def _small_runs(folder: Path) -> list[list[Path]]:
    """Return runs of at least `MIN_PARTS` consecutive small parts, in row order."""
    runs: list[list[Path]] = [[]]
    segments = [path for path in sorted(folder.iterdir()) if path.suffix in (_PARQUET, ".journal")]
    for path in segments:
        if path.suffix == _PARQUET and path.stat().st_size < SMALL_BYTES:
            runs[-1].append(path)
        else:  # a large part or a journal ends a run, to keep the order of rows
            runs.append([])
    return [run for run in runs if len(run) >= MIN_PARTS]


def _merge(folder: Path, parts: list[Path]) -> int:
    # The name sorts directly after the last part that it replaces, and before any later one.
    merged = parts[-1].with_name(f"{parts[-1].stem}m{_PARQUET}")
    rows = (batch for part in parts for batch in parquet_batches(part, SCHEMA.names, ROWS_PER_GROUP))
    hidden, _ = put_hidden_part(folder, rows)
    write_bytes(merged.with_suffix(MERGED), msgspec.json.encode([part.name for part in parts]))
    publish(hidden, merged)
    _clean_up(folder)
    return len(parts)
