"""Parts: Parquet files of a table, each written whole under a hidden name and then given its own in one rename.

At an address a part is written on this machine and put under a hidden name, and a copy of the whole of it gets the
part's: there as well, readers see all of it or nothing.

Parts are compressed with LZ4: quicker to write and to read than zstd, for files that are up to twice as large, and
still a fraction of what was imported.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import TableError
from pairwright.places import Place, staged, sync
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA

ROWS_PER_GROUP = 8192
BYTES_PER_GROUP = 32 * 2**20
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
            hidden, SCHEMA, compression="lz4", use_dictionary=list(DICTIONARY_NAMES),
            write_statistics=_STATISTICS,
        ) as writer:  # fmt: skip
            for group in _grouped(batches):
                writer.write_table(group, row_group_size=group.num_rows)
                num_rows += group.num_rows
        sync(hidden)
    except BaseException as error:
        hidden.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TableError(f"{hidden.parent}: {error.strerror or error}; no part was written") from error
        raise
    return num_rows


def put_hidden_part(folder: Place, batches: Iterable[pa.RecordBatch]) -> tuple[Place, int]:
    """Rows as a hidden part of a table, wherever it is, and how many they are."""
    hidden: Place = hidden_part(folder)
    with staged(hidden) as written:
        return hidden, write_hidden_part(written, batches)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
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
