"""Buckets: input rows partitioned by prompt hash, so that planning fits in memory."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from pairwright.pairs.options import PairOptions
from pairwright.pairs.strategies.strategies import compares_groups
from pairwright.store.table import Table

BYTES_PER_ROW = 2_000  # memory per row while its bucket is planned, including intermediate results
BYTES_PER_PAIR = 1_200  # memory per pair while it is planned
MAX_BUCKETS = 1024
_PREFIX_DIGITS = 4


def num_buckets(tables: Sequence[Table], options: PairOptions) -> int:
    """Return how many buckets keep planning within `memory_megabytes`; one for strategies that compare prompts."""
    if not is_parted(options):
        return 1
    num_rows = sum(table.count() for table in tables)
    return min(MAX_BUCKETS, max(1, -(-num_rows * BYTES_PER_ROW // (options.memory_megabytes * 2**20))))


def bucket_of(number: int) -> pl.Expr:
    """Polars expression for the bucket of a row, out of `number`: a range of the leading digits of its prompt hash."""
    prefix = pl.col("prompt_hash").str.head(_PREFIX_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
    # Equal ranges of the hash in ascending order: reading buckets sequentially keeps the order of prompts.
    bucket: pl.Expr = prefix * number // 16**_PREFIX_DIGITS
    return bucket.alias("bucket")


def is_parted(options: PairOptions) -> bool:
    return compares_groups(options.strategy) and not options.across_groups and options.votes is None


def split_rows(rows: pl.DataFrame, bounds: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Split rows at the prompt hashes of `find_bounds`."""
    for first, last in pairwise([None, *bounds, None]):
        piece = rows if first is None else rows.filter(pl.col("prompt_hash") >= first)
        yield piece if last is None else piece.filter(pl.col("prompt_hash") < last)


def find_bounds(rows: pl.DataFrame, options: PairOptions) -> list[str]:
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
