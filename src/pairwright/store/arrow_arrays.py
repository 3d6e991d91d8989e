"""Arrow arrays from Python values."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pairwright.records.arrays import Array

# Fixed-width Arrow type -> numpy dtype, and text type -> maximum bytes that its offsets can address
_NUMBERS = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}
_MOST_BYTES = {pa.string(): 2**31 - 1, pa.large_string(): 2**62}


def column_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert values to an Arrow array of text (from str, or UTF-8 bytes) or of numbers; None is null."""
    first = values[0] if values else None
    # One value in all rows, such as a file name: `count` compares identities first, so this is cheap.
    if (first is None or kind not in _NUMBERS) and values.count(first) == len(values):
        return pa.nulls(len(values), kind) if first is None else _repeated(first, len(values), kind)
    try:
        return _without_nulls(values, kind, None)
    except TypeError:  # raised for None: faster than searching for it
        pass
    present = [value is not None for value in values]
    # A placeholder of the right type for each None; its validity bit is 0, so it is never read.
    absent = 0 if kind in _NUMBERS else type(values[present.index(True)])()
    # Arrow's validity bitmap: one bit per row, 1 = valid, least significant bit first.
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return _without_nulls([absent if value is None else value for value in values], kind, validity)


def numbers_of(column: pa.Array) -> Array:
    """Return a column of numbers without nulls as a NumPy array; `to_numpy` would try to import pandas."""
    dtype = np.dtype(_NUMBERS[column.type])
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _without_nulls(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """Build an array from values other than None and a validity bitmap; raises TypeError if a value is None."""
    if kind in _NUMBERS:
        numbers = np.array(values, _NUMBERS[kind])
        if kind == pa.float64() and np.isnan(numbers).any() and None in values:
            raise TypeError("None among floats, which numpy takes for NaN")
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])
    data, lengths = _join_texts(values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    return _text_array(data, offsets, kind, validity)


def _repeated(value: str | bytes, num_rows: int, kind: pa.DataType) -> pa.Array:
    """Build an array with one text in all rows."""
    data = value if isinstance(value, bytes) else value.encode()
    return _text_array(data * num_rows, np.arange(num_rows + 1, dtype=np.int64) * len(data), kind, None)


def _text_array(data: bytes, offsets: Array, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """Build an array of texts: value i is data[offsets[i]:offsets[i + 1]]."""
    if len(data) > _MOST_BYTES[kind]:
        raise pa.ArrowCapacityError(f"{len(data):,} bytes in one column of a batch of {kind}")
    # 32-bit offsets for string, 64-bit for large_string.
    offsets = offsets.astype(np.int32 if kind == pa.string() else np.int64, copy=False)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _join_texts(values: Sequence[Any]) -> tuple[bytes, Iterator[int]]:
    """Return the concatenated bytes of all texts, and the number of bytes of each."""
    if values and isinstance(values[0], bytes):
        return b"".join(values), map(len, values)
    text = "".join(values)
    data = text.encode()
    # Equal lengths mean ASCII only: characters and bytes are equal in number, so texts need not be encoded one by one.
    return data, map(len, values if len(data) == len(text) else [value.encode() for value in values])
