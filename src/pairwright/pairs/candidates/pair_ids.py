"""Pair ids and seeded draws, computed from stored content hashes without reading texts.

Prompts and completions have 128-bit content hashes (records/messages.py), written as 32 hex digits. A pair id is the
128-bit XXH3 hash of the hashes of prompt, chosen and rejected side, in that order; a draw is the lower 64 bits of the
hash of a seed and content hashes. Both are stable across machines and releases, since stored tables depend on them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from xxhash import xxh3_128_digest

Words = npt.NDArray[np.uint64]
HEX_DIGITS = 32


def pair_keys(prompts: Words, chosen: Words, rejected: Words) -> Words:
    """Return the ids of pairs from the hashes of their prompts and sides."""
    return _hash_rows([prompts, chosen, rejected])


def pair_key(prompt_hash: str, chosen_hash: str, rejected_hash: str) -> str:
    """Return the id of one pair as 32 hex digits.

    >>> pair_key("0" * 32, "1" * 32, "2" * 32) == pair_key("0" * 32, "2" * 32, "1" * 32)
    False
    """
    parts = words_of(pl.Series([prompt_hash, chosen_hash, rejected_hash]))
    return str(hex_digits(pair_keys(parts[:1], parts[1:2], parts[2:]))[0])


def seeded_draws(seed: int, *hashes: Words) -> Words:
    """Return a pseudorandom 64-bit number for each row; it depends only on the seed and the hashes of the row."""
    # The seed goes first, in the shape of a hash (both words); the second word of the digest is the draw.
    return _hash_rows([np.full_like(hashes[0], np.uint64(seed)), *hashes])[:, 1]


def words_of(hashes: pl.Series) -> Words:
    """Convert hex hashes to rows of two 64-bit words, which sort in the same order."""
    assert not hashes.null_count(), "every hash is there"
    assert (hashes.str.len_bytes() == HEX_DIGITS).all(), "every hash has 32 hex digits"
    # Big-endian words sort in the same order as their hex digits.
    return np.frombuffer(bytes.fromhex(hashes.str.join().item()), ">u8").astype(np.uint64).reshape(-1, 2)


def hex_digits(words: Words) -> pl.Series:
    """Convert rows of two words to 32 hex digits; inverts `words_of`."""
    digits = words.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(words) + 1, dtype=np.int64) * HEX_DIGITS
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pl.Series(pa.Array.from_buffers(pa.large_string(), len(words), buffers)).cast(pl.String)


def _hash_rows(columns: Sequence[Words]) -> Words:
    """Hash each row of the columns, which have two words per row, into two words."""
    rows = np.concatenate(columns, axis=1).astype(">u8")  # the bytes that the hex digits encode
    size, content = rows.itemsize * rows.shape[1], memoryview(rows.tobytes())
    digests = b"".join([xxh3_128_digest(content[start : start + size]) for start in range(0, len(content), size)])
    return np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
