"""Compact lookup tables from experience ids to a word: the outcome in pairs, the split, the source.

An id is stored as a 64-bit hash and a word as a 16-bit code: ten bytes per experience.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES_NAME
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME

_CHUNK = 65_536  # rows that are read together


class UidMap:
    """Ids and their words. Unknown ids have null."""

    def __init__(self, frames: Iterable[pl.DataFrame]) -> None:
        hashes: list[npt.NDArray[np.uint64]] = []
        codes: list[npt.NDArray[np.uint16]] = []
        self._words: dict[str | None, int] = {}
        for frame in frames:
            hashes.append(frame["uid"].hash().to_numpy())
            words = frame["word"].to_list() if frame["word"].n_unique() > 60_000 else frame["word"].unique().to_list()
            for word in words:
                self._words.setdefault(word, len(self._words))
            lookup = {word: min(code, 65_535) for word, code in self._words.items()}
            codes.append(frame["word"].replace_strict(lookup, return_dtype=pl.UInt16).to_numpy())
        joined = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
        order = np.argsort(joined, kind="stable")
        self._hashes = joined[order]
        self._codes = np.concatenate(codes)[order] if codes else np.empty(0, np.uint16)

    def look_up(self, uids: pl.Series) -> pl.Series:
        """Return the words of ids, in their order."""
        names = pl.Series([*self._words, None], dtype=pl.String)
        if not len(self._hashes):
            return pl.Series([None] * len(uids), dtype=pl.String)
        wanted = uids.hash().to_numpy()
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        # The last name is null, for unknown ids.
        codes = np.where(self._hashes[places] == wanted, self._codes[places].astype(np.int64), len(names) - 1)
        return names[codes]


def outcome_map(pairs: Path) -> UidMap:
    """Return the outcome of each experience in a build: chosen, rejected, both, or why it has no pair."""
    path = pairs / OUTCOMES_NAME
    if not path.is_file():
        return UidMap([])
    both = (pl.col("num_chosen") > 0) & (pl.col("num_rejected") > 0)
    word = (
        pl.when(both)
        .then(pl.lit("chosen and rejected"))
        .when(pl.col("num_chosen") > 0)
        .then(pl.lit("chosen"))
        .when(pl.col("num_rejected") > 0)
        .then(pl.lit("rejected"))
        .otherwise("reason")
    )
    frame = pl.scan_parquet(path, glob=False).select("uid", word.alias("word"))
    return UidMap(frame.collect_batches(chunk_size=_CHUNK))


def split_map(pairs: Path) -> UidMap:
    """Return the split of each experience's pairs."""
    frame = pl.scan_parquet(pairs / PAIRS_NAME, glob=False)
    sides = [frame.select(pl.col(f"{side}_uid").alias("uid"), pl.col("split").alias("word")) for side in _SIDES]
    return UidMap(batch for side in sides for batch in side.collect_batches(chunk_size=_CHUNK))


_SIDES = ("chosen", "rejected")
