"""Out-of-core building blocks of a pair build: spilled partitions, shuffle files, and the buckets of input rows.

`Spill` keeps partitions in memory or in Arrow files of the build folder and reads them back one at a time. `Aside` is a
shuffle file: record batches of many partitions, written by one worker and read by others. `Buckets` partitions the
input rows by prompt hash. If the build folder is remote, spill files are written locally and uploaded on `close`.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.pairs.candidates.candidates import narrower_keys, no_rows, read_rows, row_batches
from pairwright.pairs.options import PairOptions
from pairwright.pairs.strategies.strategies import compares_groups
from pairwright.paths import Place, arrow_input, at_once, deliver, is_address, open_binary, stage_file, workspace_of
from pairwright.store.table import Table

Rows = TypeVar("Rows")  # pl.DataFrame or pa.Table
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Spill(Generic[Rows]):
    """Partitions of rows with one schema, by partition number; kept in memory if there is no folder.

    Args:
        folder: Folder of the Arrow files, local or remote; None keeps the rows in memory.
        name: Prefix of the file names.
        kind: Type of the rows: `pl.DataFrame` or `pa.Table`.
    """

    def __init__(self, folder: Place | None, name: str, *, kind: type[Rows]) -> None:
        self._folder = None if folder is None else workspace_of(folder, owner=self)
        self._shared = None if folder == self._folder else folder  # an address, where others read the files
        self._adopted: dict[int, Place] = {}
        self._name = name
        self._kind: Any = kind
        # Without a folder: the pieces of each number. With one: its open file and stream writer.
        self._held: dict[int, list[Rows]] = {}
        self._writers: dict[int, tuple[pa.OSFile, pa.RecordBatchStreamWriter]] = {}

    def add(self, number: int, rows: Rows) -> None:
        """Append rows to a partition."""
        if self._folder is None:
            self._held.setdefault(number, []).append(rows)
            return
        table: Any = rows.to_arrow() if isinstance(rows, pl.DataFrame) else rows
        if number not in self._writers:
            file = pa.OSFile(str(self._path(number)), "wb")
            self._writers[number] = file, pa.ipc.new_stream(file, table.schema, options=_OPTIONS)
        self._writers[number][1].write_table(table)

    def read(self, number: int) -> Rows | None:
        """Return all rows of a partition in insertion order, or None if it is empty; closes the partition's file."""
        if self._folder is None:
            held = self._held.get(number, [])
            return self._joined(held) if held else None
        # The stream writer closes before its file.
        for part in reversed(self._writers.pop(number, ())):
            part.close()
        path = self._readable(number)
        if path is None:
            return None
        with open_binary(path) as file, pa.ipc.open_stream(file) as reader:
            return cast(Rows, self._kind(reader.read_all()) if self._kind is pl.DataFrame else reader.read_all())

    def take(self, number: int) -> Rows | None:
        """Return the rows of a partition as `read` does, and delete them from memory and disk."""
        rows = self.read(number)
        self._held.pop(number, None)
        if self._folder is not None:
            self._path(number).unlink(missing_ok=True)
        if number in self._adopted:
            self._adopted.pop(number).unlink()
        return rows

    def close(self) -> None:
        """Close all files, and upload them if the folder is remote, so that other processes can read them."""
        for parts in self._writers.values():
            for part in reversed(parts):
                part.close()
        if self._shared is not None:
            list(at_once(self._send, list(self._writers), waits=True))

    def adopt(self, number: int, path: Place) -> None:
        """Use a file that another `Spill` wrote as the rows of a partition; `take` deletes it."""
        self._adopted[number] = path

    def _readable(self, number: int) -> Place | None:
        """Return the file of a partition: adopted, local or uploaded; None if there is none."""
        path = self._path(number)
        candidates = [self._adopted.get(number), path, self._shared and self._shared / path.name]
        return next((file for file in candidates if file is not None and file.exists()), None)

    def _send(self, number: int) -> None:
        assert self._shared is not None
        deliver(self._path(number), self._shared)
        self._path(number).unlink()

    def _joined(self, held: list[Rows]) -> Rows:
        if len(held) == 1:
            return held[0]
        several: Any = held
        return cast(Rows, pl.concat(several) if self._kind is pl.DataFrame else pa.concat_tables(several))

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}.{number}.arrow"


# Arrow memory pool during a build


@contextmanager
def plain_memory() -> Iterator[None]:
    """Context manager: Arrow allocates with the system allocator (malloc).

    Arrow's own allocators repeatedly zero huge pages for small, short-lived batches, and retain freed memory.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


# Shuffle files: one Arrow file with batches of many partitions; a reader takes one partition from many files

_SHUFFLE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Aside:
    """A shuffle file: an Arrow file of record batches, and the partition number of each batch."""

    path: Place
    numbers: tuple[int, ...]


def write_aside(folder: Place, name: str, rows: Iterable[tuple[int, pa.Table]]) -> Aside | None:
    """Write (partition number, rows) to a shuffle file; returns None if there are no rows.

    The file name has a random suffix, so that a retried task does not overwrite the file of its first attempt.
    """
    path = folder / f"{name}.{os.urandom(6).hex()}.arrow"
    numbers: list[int] = []
    writer = None
    with stage_file(path) as written, pa.OSFile(str(written), "wb") as file:
        for number, table in rows:
            if writer is None:
                writer = pa.ipc.new_file(file, table.schema, options=_SHUFFLE_OPTIONS)
            # One batch for each entry of `numbers`: batch k of the file belongs to numbers[k].
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)
                numbers.append(number)
        if writer is not None:
            writer.close()
    return Aside(path, tuple(numbers)) if numbers else None


def read_aside(files: Sequence[Aside], number: int) -> pa.Table | None:
    """Return all rows of a partition from shuffle files, by file and in insertion order; None if there are none."""
    wanted = [(aside.path, [place for place, own in enumerate(aside.numbers) if own == number]) for aside in files]
    wanted = [(path, places) for path, places in wanted if places]
    waits = any(is_address(path) for path, _ in wanted)
    batches = [batch for results in at_once(_batches, wanted, waits=waits) for batch in results]
    return pa.Table.from_batches(batches) if batches else None


def _batches(task: tuple[Place, list[int]]) -> list[pa.RecordBatch]:
    path, wanted = task
    with arrow_input(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(place) for place in wanted]


# Buckets: input rows partitioned by prompt hash, so that planning fits in memory

BYTES_PER_ROW = 2_000  # of a row while its bucket is planned, with everything that is made of it on the way
BYTES_PER_PAIR = 1_200  # of a pair while it is planned
MAX_BUCKETS = 1024
_PREFIX_DIGITS = 4


def num_buckets(tables: Sequence[Table], options: PairOptions) -> int:
    """Return the number of buckets that keeps planning within `memory_megabytes`.

    It is 1 for strategies that compare rows across prompts.
    """
    if not is_parted(options):
        return 1
    num_rows = sum(table.count() for table in tables)
    return min(MAX_BUCKETS, max(1, -(-num_rows * BYTES_PER_ROW // (options.memory_megabytes * 2**20))))


class Buckets:
    """The rows of tables, partitioned by prompt hash in ascending order; can be iterated more than once.

    Iteration yields each bucket, split further if its pairs would not fit in memory. `number` is the number of buckets;
    `fits` is True if all rows are a single piece.
    """

    def __init__(self, tables: Sequence[Table], options: PairOptions, number: int, folder: Place | None) -> None:
        self._options = options
        self._number = number
        self._spill = Spill(None if number == 1 else folder, "rows", kind=pl.DataFrame)
        where, keys = options.where, narrower_keys(options)
        is_whole = number == 1
        self._only = read_rows(tables, where=where, keys=keys) if is_whole else no_rows(where=where, keys=keys)
        for batch in () if is_whole else row_batches(tables, where=where, keys=keys):
            for (bucket,), rows in batch.group_by(bucket_of(number), maintain_order=True):
                self._spill.add(int(bucket), rows)
        self.fits = number == 1 and len(_bounds(self._only, options)) == 0

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for bucket in range(self._number):
            spilled = self._spill.read(bucket) if self._number > 1 else None
            yield from split_rows(self._only if spilled is None else spilled, self._options)


def bucket_of(number: int) -> pl.Expr:
    """Polars expression for the bucket of a row, out of `number`: a range of the leading digits of its prompt hash."""
    prefix = pl.col("prompt_hash").str.head(_PREFIX_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
    # Equal ranges of the hash in ascending order: buckets one after another keep the order of prompts.
    bucket: pl.Expr = prefix * number // 16**_PREFIX_DIGITS
    return bucket.alias("bucket")


def is_parted(options: PairOptions) -> bool:
    return compares_groups(options.strategy) and not options.across_groups and options.votes is None


def split_rows(rows: pl.DataFrame, options: PairOptions) -> Iterator[pl.DataFrame]:
    """Split rows by prompt hash into pieces whose pairs fit in memory."""
    bounds = [None, *_bounds(rows, options), None]
    for first, last in pairwise(bounds):
        piece = rows if first is None else rows.filter(pl.col("prompt_hash") >= first)
        yield piece if last is None else piece.filter(pl.col("prompt_hash") < last)


def _bounds(rows: pl.DataFrame, options: PairOptions) -> list[str]:
    """Return the prompt hashes at which to split rows, so that the pairs planned at once fit in memory."""
    most = options.memory_megabytes * 2**20 // BYTES_PER_PAIR
    # n² / 2 bounds the pairs of n rows, however they are grouped.
    if not is_parted(options) or rows.height**2 // 2 <= most:
        return []
    largest = 1 if options.strategy == "best-worst" else options.max_pairs_per_group
    # Planning the K largest gaps builds about K·(1 + ln K) pairs of a group (pairing.py).
    per_row = None if largest is None else math.ceil(largest * (1 + math.log(largest)))
    if per_row is not None and rows.height * per_row <= most:
        return []
    sizes = rows.group_by("prompt_hash").len().sort("prompt_hash")
    counts = sizes["len"].cast(pl.Int64).to_numpy()
    pairs = counts * (counts - 1) // 2
    if per_row is not None:
        pairs = np.minimum(pairs, per_row * counts)
    totals = np.cumsum(pairs)
    # The prompts at which the running total of pairs passes a multiple of `most`.
    starts = np.flatnonzero(np.diff(totals // most, prepend=0))
    return sizes["prompt_hash"].gather(starts[starts > 0]).to_list()
