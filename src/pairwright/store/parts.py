"""Parts of a table: Parquet files, written under a hidden name and published with one rename."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import TableError
from pairwright.paths import Place, stage_file, sync
from pairwright.store.columns import DICTIONARY_NAMES, SCHEMA

ROWS_PER_GROUP = 8192
BYTES_PER_GROUP = 32 * 2**20
# Columns with minimum and maximum per row group, used by filters; for long texts, statistics would waste space.
_STATISTICS = ["uid", "tid", "run", "step", "reward", "source"]
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
