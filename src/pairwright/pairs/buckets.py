"""Rows parted by their prompts, so that what does not fit in memory is planned piece by piece.

A bucket has all rows whose prompt hashes lie in one range: groups stay whole, equal pairs and contradictions meet, and
buckets one after the other are in the order that all rows together would have. So the number of buckets changes
nothing but memory. Few rows are one bucket, which never leaves memory; a bucket with many pairs is parted further.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from pairwright.pairs.options import PairOptions
from pairwright.pairs.rows import no_rows, read_rows, row_batches
from pairwright.pairs.spill import Spill
from pairwright.pairs.strategies import IN_GROUPS
from pairwright.places import Place
from pairwright.store.table import Table

BYTES_PER_ROW = 2_000  # of a row while its bucket is planned, with everything that is made of it on the way
BYTES_PER_PAIR = 1_200  # of a pair while it is planned
MAX_BUCKETS = 1024
_PREFIX_DIGITS = 4


def num_buckets(tables: Sequence[Table], options: PairOptions) -> int:
    """How many buckets keep planning within the memory that is allowed; strategies that look further need one."""
    if not is_parted(options):
        return 1
    num_rows = sum(table.count() for table in tables)
    return min(MAX_BUCKETS, max(1, -(-num_rows * BYTES_PER_ROW // (options.memory_megabytes * 2**20))))


class Buckets:
    """The rows of tables in buckets, in the order of their prompts; they may be gone through more than once.

    `number` says into how many rows are parted at first; `fits` whether they are one piece after all.
    """

    def __init__(self, tables: Sequence[Table], options: PairOptions, number: int, folder: Place | None) -> None:
        self._options = options
        self._number = number
        self._spill = Spill(None if number == 1 else folder, "rows", kind=pl.DataFrame)
        where, runs = options.where, options.within_run
        is_whole = number == 1
        self._only = (
            read_rows(tables, where=where, with_runs=runs) if is_whole else no_rows(where=where, with_runs=runs)
        )
        for batch in () if is_whole else row_batches(tables, where=where, with_runs=runs):
            for (bucket,), rows in batch.group_by(bucket_of(number), maintain_order=True):
                self._spill.add(int(bucket), rows)
        self.fits = number == 1 and len(_bounds(self._only, options)) == 0

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for bucket in range(self._number):
            found = self._spill.read(bucket) if self._number > 1 else None
            yield from parted(self._only if found is None else found, self._options)


def bucket_of(number: int) -> pl.Expr:
    """The bucket of a row, by the first digits of its prompt hash."""
    prefix = pl.col("prompt_hash").str.head(_PREFIX_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
    bucket: pl.Expr = prefix * number // 16**_PREFIX_DIGITS
    return bucket.alias("bucket")


def is_parted(options: PairOptions) -> bool:
    return options.strategy in IN_GROUPS and not options.across_groups and options.votes is None


def parted(rows: pl.DataFrame, options: PairOptions) -> Iterator[pl.DataFrame]:
    """Rows in pieces whose pairs fit in memory, at the prompts in `_bounds`."""
    bounds = [None, *_bounds(rows, options), None]
    for first, last in pairwise(bounds):
        piece = rows if first is None else rows.filter(pl.col("prompt_hash") >= first)
        yield piece if last is None else piece.filter(pl.col("prompt_hash") < last)


def _bounds(rows: pl.DataFrame, options: PairOptions) -> list[str]:
    """The prompts at which rows have to be parted, so that no more pairs are planned at once than memory holds."""
    most = options.memory_megabytes * 2**20 // BYTES_PER_PAIR
    if not is_parted(options) or rows.height**2 // 2 <= most:
        return []
    largest = 1 if options.strategy == "best-worst" else options.max_pairs_per_group
    per_row = None if largest is None else math.ceil(largest * (1 + math.log(largest)))
    if per_row is not None and rows.height * per_row <= most:
        return []
    sizes = rows.group_by("prompt_hash").len().sort("prompt_hash")
    counts = sizes["len"].cast(pl.Int64).to_numpy()
    pairs = counts * (counts - 1) // 2
    if per_row is not None:
        pairs = np.minimum(pairs, per_row * counts)
    totals = np.cumsum(pairs)
    starts = np.flatnonzero(np.diff(totals // most, prepend=0))
    return sizes["prompt_hash"].gather(starts[starts > 0]).to_list()
