"""What collators are made of: rows padded, lengths put into buckets or packed into rows, arrays made tensors.

Shapes: B rows, T tokens a row. Attention comes from lengths, never from pad ids: a pad id inside text is attended to.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import Any

import msgspec
import numpy as np

from pairwright.arrays import Array, to_torch
from pairwright.errors import ConfigError

IGNORE_INDEX = -100


def padded(rows: Items[Array], fill: float, *, dtype: str, multiple_of: int = 1, length: int | None = None) -> Array:
    """Rows of different length as one array, filled on the right.

    >>> padded([np.array([1, 2, 3]), np.array([4])], 0, dtype="int64")
    array([[1, 2, 3],
           [4, 0, 0]])
    """
    longest = max([len(row) for row in rows] + [length or 0])
    width = -(-longest // multiple_of) * multiple_of
    result = np.full((len(rows), width), fill, dtype=dtype)
    for number, row in enumerate(rows):
        result[number, : len(row)] = row
    return result


def attention(lengths: Items[int], width: int) -> Array:
    """1 for each token of a row, 0 after it.

    >>> attention([3, 1], 3)
    array([[1, 1, 1],
           [1, 0, 0]])
    """
    return (np.arange(width)[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)


def buckets(
    lengths: Items[int],
    *,
    max_tokens: int,
    max_rows: int | None = None,
    is_padded: bool = True,
    allow_longer: bool = False,
) -> list[list[int]]:
    """Positions of sequences in batches of like length, shortest first.

    max_tokens    a batch has at most so many: rows times the longest, or the sum of lengths where not `is_padded`
    max_rows      a batch has at most so many sequences
    allow_longer  a sequence of more than `max_tokens` is a batch of its own, not an error

    >>> buckets([5, 100, 6, 98, 4], max_tokens=200)
    [[4, 0, 2], [3, 1]]
    >>> buckets([10, 300, 20, 170, 5], max_tokens=200, is_padded=False, allow_longer=True)
    [[4, 0, 2], [3], [1]]
    """
    result: list[list[int]] = []
    total = 0  # tokens of the last batch, without padding
    for position in sorted(range(len(lengths)), key=lambda number: (lengths[number], number)):
        size = lengths[position]
        if size > max_tokens and not allow_longer:
            raise ConfigError(f"max_tokens: {max_tokens} is less than a sequence of {size}; truncate first")
        last = result[-1] if result else []
        with_it = (len(last) + 1) * size if is_padded else total + size
        if last and with_it <= max_tokens and len(last) != max_rows:
            last.append(position)
            total += size
        else:
            result.append([position])
            total = size
    return result


def packing(lengths: Items[int], row_length: int) -> list[list[int]]:
    """Positions of sequences that share a row: longest first, each into the fullest row that has room for it.

    >>> packing([5, 3, 4, 2], 8)
    [[0, 1], [2, 3]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        size = lengths[position]
        if size > row_length:
            raise ConfigError(f"row_length: {row_length} is less than a sequence of {size}; truncate first")
        fitting = [(left, number) for number, left in enumerate(room) if left >= size]
        if fitting:
            number = min(fitting)[1]
            rows[number].append(position)
            room[number] -= size
        else:
            rows.append([position])
            room.append(row_length - size)
    return rows


def as_torch(batch: Any) -> dict[str, Any]:
    """The arrays of a batch as torch tensors, by name; what is None is left out, what is a batch goes inside."""
    result: dict[str, Any] = {}
    for name, value in fields_of(batch):
        if isinstance(value, np.ndarray):
            result[name] = to_torch(value)
        elif isinstance(value, msgspec.Struct):
            result[name] = as_torch(value)
    return result


def fields_of(batch: Any) -> Iterator[tuple[str, Any]]:
    for name in batch.__struct_fields__:
        value = getattr(batch, name)
        if value is not None:
            yield name, value
