"""The shape of a batch: sequences side by side, padded, in buckets of like length, or packed into rows.

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


def buckets(lengths: Items[int], *, max_tokens: int, max_rows: int | None = None) -> list[list[int]]:
    """Positions of sequences in batches of like length; rows times longest is at most `max_tokens`.

    >>> buckets([5, 100, 6, 98, 4], max_tokens=200)
    [[4, 0, 2], [3, 1]]
    """
    order = sorted(range(len(lengths)), key=lambda position: (lengths[position], position))
    result: list[list[int]] = []
    for position in order:
        if lengths[position] > max_tokens:
            size = lengths[position]
            raise ConfigError(f"max_tokens: {max_tokens} is less than a sequence of {size}; truncate first")
        last = result[-1] if result else []
        fits = last and (len(last) + 1) * lengths[position] <= max_tokens and len(last) != max_rows
        if fits:
            last.append(position)
        else:
            result.append([position])
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


class Packed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Sequences end to end in rows. `position_ids` start anew with each; `sequence_ids` says which one a token is of
    (0, 1, ... in the order they came; -1 is padding), for block-diagonal attention."""

    input_ids: Array
    attention_mask: Array
    position_ids: Array
    sequence_ids: Array
    response_mask: Array
    labels: Array


def pack(ids: Items[Array], masks: Items[Array], *, row_length: int, pad_id: int) -> Packed:
    """Pack sequences; the first token of each has no label, since nothing before it is its own.

    >>> packed = pack([np.array([5, 6, 7]), np.array([8, 9])], [np.array([0, 1, 1]), np.array([1, 1])],
    ...               row_length=6, pad_id=0)
    >>> packed.input_ids, packed.position_ids, packed.sequence_ids
    (array([[5, 6, 7, 8, 9, 0]]), array([[0, 1, 2, 0, 1, 0]]), array([[ 0,  0,  0,  1,  1, -1]]))
    >>> packed.labels
    array([[-100,    6,    7, -100,    9, -100]])
    """
    rows = packing([len(item) for item in ids], row_length)

    def laid(values: Items[Array], fill: float, dtype: str) -> Array:
        joined = [np.concatenate([values[position] for position in row]) for row in rows]
        return padded(joined, fill, dtype=dtype, length=row_length)

    masks = [np.asarray(mask, dtype=bool) for mask in masks]
    labels = [np.where(mask, item, IGNORE_INDEX) for item, mask in zip(ids, masks, strict=True)]
    for label in labels:
        label[:1] = IGNORE_INDEX
    lengths = [sum(len(ids[position]) for position in row) for row in rows]
    return Packed(
        input_ids=laid(ids, pad_id, "int64"),
        attention_mask=attention(lengths, row_length),
        position_ids=laid([np.arange(len(item)) for item in ids], 0, "int64"),
        sequence_ids=laid([np.full(len(item), number) for number, item in enumerate(ids)], -1, "int64"),
        response_mask=laid(masks, 0, "bool"),
        labels=laid(labels, IGNORE_INDEX, "int64"),
    )


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
