"""Near-duplicates, on request: pairs whose text is nearly that of another, found by MinHash.

A pair's text is cut into shingles of five words; 64 minimum hashes estimate how much two sets of them overlap
(Jaccard), and only pairs that agree in all four hashes of one of 16 bands are compared. The pair that comes first in
order stays. The estimate is within about 0.1 of the truth.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from pairwright.messages import Message
from pairwright.pairs.chains import conversations
from pairwright.store.table import Table

NUM_HASHES, ROWS_PER_BAND, WORDS = 64, 4, 5
Signature = npt.NDArray[np.uint64]
_RANDOM = np.random.Generator(np.random.PCG64(20))
_FACTORS = _RANDOM.integers(1, 2**63, NUM_HASHES, dtype=np.uint64) | np.uint64(1)
_SHIFTS = _RANDOM.integers(0, 2**63, NUM_HASHES, dtype=np.uint64)


def near_drafts(narrow: pl.DataFrame, tables: Sequence[Table], least: float) -> npt.NDArray[np.bool_]:
    """Which drafts are nearly the same as one before them; a side is a conversation, up to `at` where it ends there."""
    wanted = [list(narrow.select(f"near_{side}", f"near_{side}_at").iter_rows()) for side in ("chosen", "rejected")]
    ends: dict[str, set[int | None]] = defaultdict(set)
    for uid, at in (*wanted[0], *wanted[1]):
        ends[uid].add(at)
    signatures = {
        (uid, at): signature(_text((*prompt, *completion)[: None if at is None else at + 1]))
        for uid, prompt, _, completion in conversations(tables, pl.Series(list(ends), dtype=pl.String))
        for at in ends[uid]
    }
    sides = [[signatures.get(side) for side in row] for row in wanted]
    both = [
        None if one is None or other is None else np.concatenate([one, other])
        for one, other in zip(*sides, strict=True)
    ]
    return near_duplicates(both, least)


def near_duplicates(signatures: list[Signature | None], least: float) -> npt.NDArray[np.bool_]:
    """Which of them are at least that similar to one before them that was kept."""
    again = np.zeros(len(signatures), np.bool_)
    bands: dict[bytes, list[int]] = defaultdict(list)
    for place, own in enumerate(signatures):
        if own is None:
            continue
        names = [
            band.to_bytes(2, "little") + own[band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND].tobytes()
            for band in range(len(own) // ROWS_PER_BAND)
        ]
        others = {other for name in names for other in bands[name][:50]}
        again[place] = any(float((own == signatures[other]).mean()) >= least for other in others)
        if not again[place]:
            for name in names:
                bands[name].append(place)
    return again


def signature(text: str) -> Signature:
    """64 minimum hashes of a text's shingles."""
    words = text.split()
    digest = xxhash.xxh3_64_intdigest
    shingles = {digest(" ".join(words[at : at + WORDS]).encode()) for at in range(max(1, len(words) - WORDS + 1))}
    hashes = np.fromiter(shingles, np.uint64, len(shingles))
    least = np.full(NUM_HASHES, np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(hashes), 4096):
        mixed = hashes[start : start + 4096, None] * _FACTORS + _SHIFTS
        np.minimum(least, (mixed ^ (mixed >> np.uint64(29))).min(axis=0), out=least)
    return least


def _text(messages: tuple[Message, ...]) -> str:
    return " ".join(
        part
        for message in messages
        for part in (message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls))
    )
