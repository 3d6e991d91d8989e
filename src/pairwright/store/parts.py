"""Parts of a table: Parquet files, written under a hidden name and published with one rename."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import TableError
from pairwright.paths import Place, stage_file, sync
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA

if TYPE_CHECKING:
    pass


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
