"""Parquet files at any place: reading, footers and lazy frames. Only the requested columns are read.

Local files are read by the libraries directly. A remote file is read one row group at a time, and the byte ranges of
its columns are requested together.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.paths.addresses import Place, Remote

if TYPE_CHECKING:
    import polars as pl
from pairwright.paths.paths import is_address

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 16
_AHEAD = 4 * _THREADS  # maximum number of results held in memory


def at_once(function: Callable[[T], R], tasks: Sequence[T], *, waits: bool) -> Iterator[R]:
    """Map a function over tasks, results in order: sequentially, or on threads if each call `waits` for a network."""
    if not waits or len(tasks) < 2:
        yield from map(function, tasks)
        return
    with ThreadPoolExecutor(min(_THREADS, len(tasks))) as threads:
        for start in range(0, len(tasks), _AHEAD):
            yield from threads.map(function, tasks[start : start + _AHEAD])


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
    """Yield the footers of files, in order; remote ones are read concurrently."""
    return at_once(parquet_metadata, files, waits=any(map(is_address, files)))


def parquet_metadata(there: Place) -> pq.FileMetaData:
    """Return the footer of a file."""
    if not isinstance(there, Remote):
        return pq.read_metadata(there)
    with parquet_file(there) as file:
        return file.metadata


def parquet_batches(there: Place, columns: list[str] | None, num_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, at most `num_rows` at a time; at an address, one row group of any size at a time."""
    with parquet_file(there) as file:
        if not isinstance(there, Remote):  # without read-ahead and threads: half the memory
            yield from file.iter_batches(num_rows, columns=columns, use_threads=False)
            return
        for number in range(file.num_row_groups):
            yield from file.read_row_group(number, columns=columns).combine_chunks().to_batches()


def read_parquet(there: Place, columns: list[str] | None = None) -> pa.Table:
    """Return all rows of a file."""
    with parquet_file(there) as file:
        return file.read(columns=columns)


def scan_parquet(there: Place, schema: pa.Schema | None = None) -> "pl.LazyFrame":
    """Return a file as a lazy frame. At an address, the footer is read unless `schema` is passed."""
    import polars as pl

    if not isinstance(there, Remote):
        return pl.scan_parquet(there, glob=False)
    from polars.io.plugins import register_io_source

    remote = there
    known = parquet_metadata(remote).schema.to_arrow_schema() if schema is None else schema

    def read(
        columns: list[str] | None, where: "pl.Expr | None", num_rows: int | None, _: int | None
    ) -> Iterator["pl.DataFrame"]:
        left = num_rows  # rows still needed; None: all
        for batch in parquet_batches(remote, columns, 0):
            frame: Any = pl.from_arrow(batch)
            frame = frame if left is None else frame.head(left)
            left = None if left is None else left - frame.height
            yield frame if where is None else frame.filter(where)
            if left == 0:
                return

    return register_io_source(read, schema=pl.DataFrame(pa.Table.from_batches([], schema=known)).schema)
