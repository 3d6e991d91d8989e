"""Read back experiences exported by pairwright: payloads (store/codec.py), and Parquet with the table's columns."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pairwright.errors import CodecError, PairwrightError, TableError
from pairwright.paths import Place, local_copy
from pairwright.paths.parquet_files import parquet_file
from pairwright.records.experience import Experience
from pairwright.sources.datasets.pairwright_rows import NAME
from pairwright.sources.format import Rejected
from pairwright.store.arrow import from_arrow
from pairwright.store.codec import MAGIC, loads_many, payload_size

_ROWS_AT_ONCE = 1024
_NEEDED = ("uid", "kind")


def exported_units(path: Place) -> Iterator[Experience | Rejected]:
    """Yield the experiences of an exported file; unreadable ones are yielded as Rejected with the reason."""
    with local_copy(path) as local:
        try:
            with open(local, "rb") as file:
                is_payload = file.read(len(MAGIC)) == MAGIC
            yield from _from_payloads(local, str(path)) if is_payload else _from_parquet(local, str(path))
        except (PairwrightError, pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).replace(str(local), str(path))
            yield Rejected(str(path), None, f"cannot be read: {reason}", NAME)


def _from_payloads(local: Path, name: str) -> Iterator[Experience | Rejected]:
    """Read concatenated payloads; after a payload with corrupt content, reading continues with the next one."""
    with open(local, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        start = 0
        try:
            while start < len(view):
                size = payload_size(view[start:])
                payload = bytes(view[start : start + size])
                try:
                    yield from loads_many(payload)
                except CodecError as error:
                    yield Rejected(name, None, f"payload at byte {start:,}: {error}", NAME)
                start += size
        except CodecError as error:
            yield Rejected(name, None, f"payload at byte {start:,}: {error}", NAME)
        finally:
            view.release()


def _from_parquet(local: Path, name: str) -> Iterator[Experience | Rejected]:
    """Read a Parquet file in batches; a batch with an invalid row is read row by row."""
    with parquet_file(local) as file:
        columns = file.schema_arrow.names
        missing = [column for column in _NEEDED if column not in columns]
        if missing:
            yield Rejected(
                name, None, f"a Parquet file that is not an experience table: no column {missing[0]!r}", NAME
            )
            return
        first = 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            try:
                yield from from_arrow(pa.Table.from_batches([batch]))
            except PairwrightError:
                yield from _row_by_row(batch, name, first)
            first += batch.num_rows


def _row_by_row(batch: pa.RecordBatch, name: str, first: int) -> Iterator[Experience | Rejected]:
    """Read a batch row by row, to reject only its invalid rows."""
    for number in range(batch.num_rows):
        try:
            yield from from_arrow(pa.Table.from_batches([batch.slice(number, 1)]))
        except (TableError, PairwrightError) as error:
            yield Rejected(name, None, f"row {first + number:,}: {error}", NAME)
