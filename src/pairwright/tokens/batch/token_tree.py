"""The prefix tree of token ids: a common prefix of several sequences is stored once.

In sorted order, each sequence branches off the previous one at their divergence point. The row of a tree concatenates
the tokens that each sequence adds to the previous one: depth-first order, each token followed by its subtree.
Token `k` precedes `q` in some sequence exactly if `k <= q < ends[k]`.

    T  tokens of the row      L  tokens of a sequence      S  unbranched runs of tokens
"""

from bisect import bisect
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from pairwright.records.arrays import Array


class Segment(NamedTuple):
    """An unbranched run of tokens in a row, `start` to `stop`; the tokens that continue it are `stop` to `end`."""

    start: int
    stop: int
    end: int


class TokenTree(NamedTuple):
    """Sequences as one row without duplicate tokens."""

    ids: Array  # (T,) the row
    positions: Array  # (T,) depth of each token: its position in its sequences
    ends: Array  # (T,) end of each token's subtree
    owners: Array  # (T,) number of one sequence that contains the token
    paths: list[Array]  # for each sequence, in input order: positions of its tokens in the row, (L,)


def build_token_tree(sequences: Items[Array]) -> TokenTree:
    """Build the prefix tree of sequences.

    >>> tree = build_token_tree([np.array([5, 6, 7, 8]), np.array([5, 6, 9]), np.array([5, 6, 7])])
    >>> tree.ids.tolist(), tree.positions.tolist(), tree.ends.tolist()
    ([5, 6, 7, 8, 9], [0, 1, 2, 3, 2], [5, 5, 4, 4, 5])
    >>> [path.tolist() for path in tree.paths]
    [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2]]
    """
    keys = [sequence_key(sequence) for sequence in sequences]
    # Row positions of the current sequence.
    path = np.zeros(max((len(sequence) for sequence in sequences), default=0), np.int64)
    # Each starts with an empty array: `np.concatenate` needs at least one.
    pieces, depths, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    ends = np.zeros(sum(len(sequence) for sequence in sequences), np.int64)  # cut to the row's length below
    paths: list[Array] = [path] * len(keys)  # placeholders, all replaced below
    # Length of the row so far, depth and key of the previous sequence.
    at, open_depth, before = 0, 0, b""
    for number in sorted(range(len(keys)), key=keys.__getitem__):
        sequence, shared = sequences[number], count_common(before, keys[number])
        # The previous sequence's subtree below the divergence point is complete.
        ends[path[shared:open_depth]] = at
        size = len(sequence) - shared
        # path[:shared] still has the positions of the tokens shared with the previous sequence.
        path[shared : len(sequence)] = np.arange(at, at + size)
        pieces.append(sequence[shared:])
        depths.append(np.arange(shared, len(sequence)))
        owners.append(np.full(size, number))
        paths[number] = path[: len(sequence)].copy()
        at, open_depth, before = at + size, len(sequence), keys[number]
    ends[path[:open_depth]] = at
    return TokenTree(np.concatenate(pieces), np.concatenate(depths), ends[:at], np.concatenate(owners), paths)


def list_segments(positions: Array, ends: Array) -> list[Segment]:
    """Return the unbranched runs (S) of a row, in row order.

    >>> list_segments(np.array([0, 1, 2, 3, 2]), np.array([5, 5, 4, 4, 5]))
    [Segment(start=0, stop=2, end=5), Segment(start=2, stop=4, end=4), Segment(start=4, stop=5, end=5)]
    """
    if not len(ends):
        return []
    # A token continues the current run if it is the only child of the token before it.
    is_new = (np.diff(ends) != 0) | (np.diff(positions) != 1)
    starts = [0, *(np.flatnonzero(is_new) + 1).tolist()]
    stops = [*starts[1:], len(ends)]
    return [Segment(start, stop, int(ends[start])) for start, stop in zip(starts, stops, strict=True)]


_BYTES = 8  # bytes of an id in a key


def sequence_key(ids: Array) -> bytes:
    """Encode ids as big-endian bytes, which sort like the ids."""
    # Only for non-negative ids: a sign bit would sort last.
    return ids.astype(">i8").tobytes()


def count_common(one: bytes, other: bytes) -> int:
    """Count the ids of the common prefix of two keys."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // _BYTES
    # Equality does not depend on byte order, so the keys are read as native integers.
    differs = np.frombuffer(one[:length], np.int64) != np.frombuffer(other[:length], np.int64)
    return int(differs.argmax())


class DistinctTokens:
    """Counts the tokens of the prefix tree of sequences that are added one by one.

    >>> tokens = DistinctTokens()
    >>> for ids in ([5, 6, 7, 8], [5, 6, 9], [5, 6, 7]):
    ...     tokens.add(sequence_key(np.array(ids)))
    >>> tokens.count
    5
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys: list[bytes] = []  # sorted

    def add(self, key: bytes) -> None:
        place = bisect(self._keys, key)
        # In sorted order, the longest common prefix is with a neighbour.
        neighbours = self._keys[max(0, place - 1) : place + 1]
        self.count += len(key) // _BYTES - max((count_common(key, other) for other in neighbours), default=0)
        self._keys.insert(place, key)
