"""Compact lookup tables from experience ids to a word: the outcome in pairs, the split, the source.

An id is stored as a 64-bit hash and a word as the code of a category: twelve bytes per experience.
"""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import polars as pl
import pyarrow as pa

from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES_NAME
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME
from pairwright.view.row_queries import Derived

_CHUNK = 65_536  # rows per chunk


class UidMap:
    """Ids and their words, from frames with the columns `uid` and `word`. Unknown ids have null."""

    def __init__(self, frames: Iterable[pl.DataFrame]) -> None:
        unknown = pl.DataFrame({"uid": [None], "word": [None]}, schema={"uid": pl.String, "word": pl.String})
        parts = [
            frame.select(pl.col("uid").hash(), pl.col("word").cast(pl.Categorical)) for frame in [unknown, *frames]
        ]
        known = pl.concat(parts).sort("uid", maintain_order=True)
        self._hashes, self._words = known["uid"], known["word"]

    def look_up(self, uids: pl.Series) -> pl.Series:
        hashes = uids.hash()
        places = self._hashes.search_sorted(hashes).clip(upper_bound=len(self._hashes) - 1)
        found = self._hashes.gather(places) == hashes
        return pl.select(pl.when(found).then(self._words.gather(places).cast(pl.String))).to_series()


def mapped(ids: str, read_map: Callable[[], UidMap]) -> Derived:
    """Return the column of the words of a map for a column of ids; the map is read when a query first names it."""
    known = cache(read_map)
    return Derived(pa.string(), (ids,), lambda frame: known().look_up(frame[ids]), prepare=known)


def outcome_map(pairs: Path) -> UidMap:
    """Return the outcome of each experience in a build: chosen, rejected, both, or why it has no pair."""
    path = pairs / OUTCOMES_NAME
    if not path.is_file():
        return UidMap([])
    sides = [pl.when(pl.col(f"num_{side}") > 0).then(pl.lit(side)) for side in ("chosen", "rejected")]
    both = pl.concat_str(sides, separator=" and ", ignore_nulls=True)
    word = pl.when(both != "").then(both).otherwise("reason")
    frame = pl.scan_parquet(path, glob=False).select("uid", word.alias("word"))
    return UidMap(frame.collect_batches(chunk_size=_CHUNK))


def split_map(pairs: Path) -> UidMap:
    frame = pl.scan_parquet(pairs / PAIRS_NAME, glob=False)
    sides = [frame.select(uid=f"{side}_uid", word="split") for side in ("chosen", "rejected")]
    return UidMap(batch for side in sides for batch in side.collect_batches(chunk_size=_CHUNK))
