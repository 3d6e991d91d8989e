"""Packed arrays: the arrays of many records in one column per field and dtype: record numbers, lengths, values."""

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from pairwright.errors import CorruptBytes, RecordError
from pairwright.records.arrays import INTEGERS, Array, dtype_name, dtype_named

Path = tuple[str, ...]
Buffer = bytes | memoryview
Field = tuple[Path, list[int], list[Array]]  # (field, record numbers, arrays)
Entry = tuple[Path, int, Array]  # (field, record number, array)


class Packed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Header of a packed column: field, dtype, bytes per value (0: one bit), number of arrays and of values."""

    path: Path
    dtype: str
    width: int
    num_arrays: int
    num_values: int
    shapes: list[tuple[int, ...]] | None = None  # for arrays that are not one-dimensional


def pack(fields: Iterable[Field]) -> tuple[list[Packed], list[Buffer]]:
    """Pack fields into columns; returns their headers, and the data as a list of buffers, to avoid a copy."""
    columns: list[Packed] = []
    pieces: list[Buffer] = []
    for path, rows, arrays in fields:
        for rows_alike, arrays_alike in _alike(rows, arrays):
            is_flat = arrays_alike[0].ndim == 1
            lengths = [array.size for array in arrays_alike]
            if max(lengths) >= 2**32:
                raise RecordError(".".join(path), max(lengths), "fewer than 2**32 values")
            values = np.concatenate(arrays_alike if is_flat else [array.ravel() for array in arrays_alike])
            width, data = _narrow(values)
            shapes = None if is_flat else [array.shape for array in arrays_alike]
            columns.append(Packed(path, dtype_name(values), width, len(lengths), values.size, shapes))
            # A column in bytes: record numbers (u4 each), lengths (u4 each), then the values of all arrays.
            pieces += [np.array(rows_alike, "<u4").data.cast("B"), np.array(lengths, "<u4").data.cast("B"), *data]
    return columns, pieces


def _alike(rows: list[int], arrays: list[Array]) -> Iterator[tuple[list[int], list[Array]]]:
    """Group arrays by dtype and by whether they are one-dimensional; usually there is one group."""
    kinds = [(array.dtype, array.ndim == 1) for array in arrays]
    if kinds.count(kinds[0]) == len(kinds):
        yield rows, arrays
        return
    for kind in dict.fromkeys(kinds):
        chosen = [number for number, other in enumerate(kinds) if other == kind]
        yield [rows[number] for number in chosen], [arrays[number] for number in chosen]


def unpack(columns: list[Packed], data: memoryview) -> Iterator[Entry]:
    """Yield the arrays of packed columns; raises CorruptBytes unless the headers describe exactly these bytes."""
    offset = 0
    for column in columns:
        num_bytes = column.num_values * column.width if column.width else (column.num_values + 7) // 8
        size = 8 * column.num_arrays + num_bytes
        if min(column.num_arrays, column.num_values, column.width) < 0 or offset + size > len(data):
            raise CorruptBytes(f"array column {'.'.join(column.path)}: needs {size} bytes at {offset}, of {len(data)}")
        yield from _unpack_column(column, data[offset : offset + size])
        offset += size
    if offset != len(data):
        raise CorruptBytes(f"array data: {len(data) - offset} bytes that belong to no column")


def _unpack_column(column: Packed, data: memoryview) -> Iterator[Entry]:
    """Yield the arrays of one packed column."""
    name = ".".join(column.path)
    rows = np.frombuffer(data, "<u4", column.num_arrays)
    lengths = np.frombuffer(data, "<u4", column.num_arrays, offset=4 * column.num_arrays)
    if int(lengths.sum()) != column.num_values:
        raise CorruptBytes(f"array column {name}: lengths add up to {int(lengths.sum())}, not {column.num_values}")
    values = _widen(column, data[8 * column.num_arrays :])
    shapes = column.shapes
    if shapes is not None and [_num_values(shape) for shape in shapes] != lengths.tolist():
        raise CorruptBytes(f"array column {name}: shapes do not fit the lengths")
    stop = 0
    for number, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        start, stop = stop, stop + length
        array = values[start:stop]
        yield column.path, row, array if shapes is None else array.reshape(shapes[number])


def _num_values(shape: tuple[int, ...]) -> int:
    # -1 never equals a length, so shapes with too many or negative dimensions are refused.
    return math.prod(shape) if len(shape) <= 32 and min(shape, default=0) >= 0 else -1


def _narrow(values: Array) -> tuple[int, list[Buffer]]:
    """Return the bytes per value (0: one bit) and the buffers of an array, without high bytes that are always zero.

    With three bytes per value, the low two bytes of all values are stored first, then the high bytes: this takes only a
    few whole-array operations.

    >>> width, buffers = _narrow(np.array([1, 2, 70_000], np.int64))
    >>> width, [buffer.nbytes for buffer in buffers]
    (3, [6, 3])
    """
    name = dtype_name(values)
    if name == "bool":
        # One bit per value, most significant bit first, as in `np.unpackbits`.
        return 0, [np.packbits(values).data]
    size = values.dtype.itemsize
    if name in INTEGERS and values.size:
        bits = int(np.bitwise_or.reduce(values))  # as wide as the largest value; negative if any value is
        # Negative integers have their high bits set and keep their full width.
        width = max(1, (bits.bit_length() + 7) // 8) if bits >= 0 else size
        if width < size:
            shifted = ((values >> shift if shift else values).astype(part) for part, shift in _parts(width))
            return width, [part.view(np.uint8).data for part in shifted]
    return size, [values.view(np.uint8).data]


def _widen(column: Packed, data: memoryview) -> Array:
    """Restore the values of a packed column in their dtype; inverts `_narrow`."""
    try:
        dtype = dtype_named(column.dtype)
    except RecordError as error:
        raise CorruptBytes(f"array column {'.'.join(column.path)}: {error}") from None
    if column.dtype == "bool" and column.width == 0:
        return np.unpackbits(np.frombuffer(data, np.uint8), count=column.num_values).view(np.bool_)
    if column.width == dtype.itemsize and column.dtype != "bool":
        return np.frombuffer(data, dtype)
    if column.dtype not in INTEGERS or not 0 < column.width < dtype.itemsize:
        raise CorruptBytes(f"array column {'.'.join(column.path)}: {column.width} bytes per value of {column.dtype}")
    # Reassemble each value: OR its parts, from the lowest bits up.
    values, offset = np.zeros(column.num_values, dtype), 0
    for part, shift in _parts(column.width):
        stored = np.frombuffer(data, part, column.num_values, offset=offset)
        values |= stored.astype(dtype) << shift
        offset += stored.nbytes
    return values


def _parts(width: int) -> Iterator[tuple[str, int]]:
    """Yield the unsigned dtypes that add up to `width` bytes, each with its bit shift."""
    # The binary digits of `width` select the dtypes: 3 bytes are a u2 (bits 0-15) and a u1 (bits 16-23).
    shift = 0
    for size in (4, 2, 1):
        if width & size:
            yield f"<u{size}", shift
            shift += 8 * size
