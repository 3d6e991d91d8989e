"""Merging of the small parts of many small imports or appends.

A merged part replaces consecutive parts and keeps the order of their rows. Each step is atomic:

    <id>.merged      names the parts that <id>.parquet replaces; has no effect until that part exists
    <id>.parquet     appears: from now on readers ignore the parts that it replaces
    the old parts, then <id>.merged, are deleted; after a crash, by the next merge

A process that reads the table meanwhile may find a part missing and reports it.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

from pairwright.errors import TableError
from pairwright.paths import Place, publish, write_bytes
from pairwright.paths.parquet_files import parquet_batches
from pairwright.store.columns import SCHEMA
from pairwright.store.parts import ROWS_PER_GROUP, put_hidden_part

MERGED = ".merged"
MIN_PARTS = 64  # minimum number of consecutive small parts to merge
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
    hidden, _ = put_hidden_part(folder, _rows_of(parts))
    write_bytes(merged.with_suffix(MERGED), msgspec.json.encode([part.name for part in parts]))
    publish(hidden, merged)
    _clean_up(folder)
    return len(parts)


def _rows_of(parts: list[Path]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from parquet_batches(part, SCHEMA.names, ROWS_PER_GROUP)
