"""Columns of Python values as Arrow arrays.

`pa.array` makes the same arrays, but looks for pandas when it is first called, which takes half a second where pandas
is installed, and goes through the values one by one. Here texts are joined and numbers handed to numpy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pairwright.arrays import Array

_NUMBERS = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}
_MOST_BYTES = {pa.string(): 2**31 - 1, pa.large_string(): 2**62}


def column_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array of text (str, or bytes that are UTF-8) or of numbers; None is null."""
    try:
        return _without_nulls(values, kind, None)
    except TypeError:  # the quick way to learn that there is a None
        pass
    present = [value is not None for value in values]
    if not any(present):
        return pa.nulls(len(values), kind)
    absent = 0 if kind in _NUMBERS else type(values[present.index(True)])()
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return _without_nulls([absent if value is None else value for value in values], kind, validity)


def numbers_of(column: pa.Array) -> Array:
    """A column of numbers, none of them null, as numpy; `to_numpy` would look for pandas too."""
    dtype = np.dtype(_NUMBERS[column.type])
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _without_nulls(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    if kind in _NUMBERS:
        numbers = np.array(values, _NUMBERS[kind])
        if kind == pa.float64() and np.isnan(numbers).any() and None in values:
            raise TypeError("None among floats, which numpy takes for NaN")
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])
    data, lengths = _joined(values)
    if len(data) > _MOST_BYTES[kind]:
        raise pa.ArrowCapacityError(f"{len(data):,} bytes in one column of a batch of {kind}")
    offsets = np.zeros(len(values) + 1, np.int32 if kind == pa.string() else np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _joined(values: Sequence[Any]) -> tuple[bytes, Iterator[int]]:
    """The bytes of all texts one after the other, and how many each has."""
    if values and isinstance(values[0], bytes):
        return b"".join(values), map(len, values)
    text = "".join(values)
    data = text.encode()
    return data, map(len, values if len(data) == len(text) else [value.encode() for value in values])
