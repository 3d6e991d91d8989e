"""Near-duplicates: pairs with similar texts, found by MinHash (optional)."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from pairwright.pairs.candidates.trajectories import conversations
from pairwright.records.messages import Message
from pairwright.store.table import Table

# A signature has 64 hashes in bands of 4; texts are compared if they share a band. Shingles have 5 words.
NUM_HASHES, ROWS_PER_BAND, WORDS = 64, 4, 5
Signature = npt.NDArray[np.uint64]
_RANDOM = np.random.Generator(np.random.PCG64(20))
# A fixed seed, so that signatures never change; odd factors are invertible modulo 2**64.
_FACTORS = _RANDOM.integers(1, 2**63, NUM_HASHES, dtype=np.uint64) | np.uint64(1)
_SHIFTS = _RANDOM.integers(0, 2**63, NUM_HASHES, dtype=np.uint64)


def near_drafts(narrow: pl.DataFrame, tables: Sequence[Table], least: float) -> npt.NDArray[np.bool_]:
    """Mask of drafts that are near-duplicates of an earlier one; a side with a position `at` ends there."""
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
    """Mask of signatures whose estimated similarity to an earlier kept one is at least `least`."""
    again = np.zeros(len(signatures), np.bool_)
    # For each band (its number and bytes) the places of kept signatures that have it.
    bands: dict[bytes, list[int]] = defaultdict(list)
    for place, own in enumerate(signatures):
        if own is None:
            continue
        names = [
            band.to_bytes(2, "little") + own[band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND].tobytes()
            for band in range(len(own) // ROWS_PER_BAND)
        ]
        # At most 50 per band, so that a frequent phrase does not make this quadratic.
        others = {other for name in names for other in bands[name][:50]}
        # The share of equal minimum hashes estimates the Jaccard similarity of the shingle sets.
        again[place] = any(float((own == signatures[other]).mean()) >= least for other in others)
        if not again[place]:
            for name in names:
                bands[name].append(place)
    return again


def signature(text: str) -> Signature:
    """Return the MinHash signature of a text: 64 minimum hashes of its word shingles."""
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
