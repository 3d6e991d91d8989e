"""Arrays of many records as flat bytes: one column a field and dtype, with the lengths beside it.

    packed, data = pack([(("tokens",), [0, 1], [ids_of_record_0, ids_of_record_1]), ...])

`packed` describes the columns, `data` holds for each of them its rows, its lengths and its values. Booleans take a bit
each and non-negative integers as few bytes as their largest value needs; `unpack` gives back the dtype that went in,
bit for bit. Nothing is allocated on the word of a header: every size is checked against the bytes that are there.
"""

import math
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from pairwright.arrays import INTEGERS, Array, dtype_name, dtype_named
from pairwright.errors import CorruptBytes, RecordError

Path = tuple[str, ...]
Buffer = bytes | memoryview
Field = tuple[Path, list[int], list[Array]]  # a field, the numbers of the records that have it, and their arrays
Entry = tuple[Path, int, Array]


class Packed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One column: which field, how many arrays, of which dtype, stored in `width` bytes a value (0: a bit)."""

    path: Path
    dtype: str
    width: int
    num_arrays: int
    num_values: int
    shapes: list[tuple[int, ...]] | None = None  # for arrays that are not one-dimensional


def pack(fields: Iterable[Field]) -> tuple[list[Packed], list[Buffer]]:
    """The columns of the fields, and their data in pieces, so that they need not be copied into one."""
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
            pieces += [np.array(rows_alike, "<u4").data.cast("B"), np.array(lengths, "<u4").data.cast("B"), *data]
    return columns, pieces


def _alike(rows: list[int], arrays: list[Array]) -> Iterator[tuple[list[int], list[Array]]]:
    """Arrays of one dtype at a time, flat ones apart from the others. Usually all are alike."""
    kinds = [(array.dtype, array.ndim == 1) for array in arrays]
    if kinds.count(kinds[0]) == len(kinds):
        yield rows, arrays
        return
    for kind in dict.fromkeys(kinds):
        chosen = [number for number, found in enumerate(kinds) if found == kind]
        yield [rows[number] for number in chosen], [arrays[number] for number in chosen]


def unpack(columns: list[Packed], data: memoryview) -> Iterator[Entry]:
    """Invert `pack`; raises CorruptBytes unless the columns describe exactly these bytes."""
    offset = 0
    for column in columns:
        size = 8 * column.num_arrays + _stored_size(column)
        if min(column.num_arrays, column.num_values, column.width) < 0 or offset + size > len(data):
            raise CorruptBytes(f"array column {'.'.join(column.path)}: needs {size} bytes at {offset}, of {len(data)}")
        yield from _unpack_column(column, data[offset : offset + size])
        offset += size
    if offset != len(data):
        raise CorruptBytes(f"array data: {len(data) - offset} bytes that belong to no column")


def _unpack_column(column: Packed, data: memoryview) -> Iterator[Entry]:
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
    return math.prod(shape) if len(shape) <= 32 and min(shape, default=0) >= 0 else -1


def _narrow(values: Array) -> tuple[int, list[Buffer]]:
    """The bytes of an array in pieces, without the high bytes that are zero in every value.

    Three bytes a value are stored as all the low two, then all the high ones: a few whole-array operations.
    """
    name = dtype_name(values)
    if name == "bool":
        return 0, [np.packbits(values).data]
    size = values.dtype.itemsize
    if name in INTEGERS and values.size:
        bits = int(np.bitwise_or.reduce(values))  # as many bits as the largest value; negative if any value is
        width = max(1, (bits.bit_length() + 7) // 8) if bits >= 0 else size
        if width < size:
            shifted = ((values >> shift if shift else values).astype(part) for part, shift in _parts(width))
            return width, [part.view(np.uint8).data for part in shifted]
    return size, [values.view(np.uint8).data]


def _widen(column: Packed, data: memoryview) -> Array:
    try:
        dtype = dtype_named(column.dtype)
    except RecordError as error:
        raise CorruptBytes(f"array column {'.'.join(column.path)}: {error}") from None
    if column.dtype == "bool" and column.width == 0:
        return np.unpackbits(np.frombuffer(data, np.uint8), count=column.num_values).view(np.bool_)
    if column.width == dtype.itemsize and column.dtype != "bool":
        return np.frombuffer(data, dtype)
    if column.dtype not in INTEGERS or not 0 < column.width < dtype.itemsize:
        raise CorruptBytes(f"array column {'.'.join(column.path)}: {column.width} bytes a value of {column.dtype}")
    values, offset = np.zeros(column.num_values, dtype), 0
    for part, shift in _parts(column.width):
        stored = np.frombuffer(data, part, column.num_values, offset=offset)
        values |= stored.astype(dtype) << shift
        offset += stored.nbytes
    return values


def _parts(width: int) -> Iterator[tuple[str, int]]:
    """The unsigned dtypes that make up `width` bytes, each with the shift of its bits."""
    shift = 0
    for size in (4, 2, 1):
        if width & size:
            yield f"<u{size}", shift
            shift += 8 * size


def _stored_size(column: Packed) -> int:
    return (column.num_values + 7) // 8 if column.width == 0 else column.num_values * column.width
