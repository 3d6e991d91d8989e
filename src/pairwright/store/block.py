"""Columnar form of experiences for the byte codec: a `Block` of metadata columns, and arrays packed into bytes.

Columns in which every record has the default are omitted. `reward`, `reward_components`, `info` and `metrics` are
encoded with records/json_text.py, which preserves NaN and infinities. Integer arrays are stored without high bytes that
are zero in all values, boolean arrays as bits.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple

from pairwright.errors import CorruptBytes, RecordError
from pairwright.records.arrays import INTEGERS, Array, dtype_name, dtype_named
from pairwright.records.experience import ARRAYS, EID, SIDE_ARRAYS, CustomField, Experience, Kind, Side, SideOf, Source
from pairwright.records.json_text import from_json, to_json
from pairwright.records.messages import ErrorSite, Json, Message

# Packed arrays: one column for each field and dtype, with record numbers, lengths and values

Path = tuple[str, ...]
Buffer = bytes | memoryview
Field = tuple[Path, list[int], list[Array]]  # a field, the numbers of the records that have it, and their arrays
Entry = tuple[Path, int, Array]  # (field, number of the record, array)


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
            # Lengths are written as 32-bit unsigned integers.
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
        # 4 bytes for the record number and 4 for the length of each array
        size = 8 * column.num_arrays + _size_on_disk(column)
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
    # -1 equals no length, so a shape with too many or negative dimensions is refused by the comparison.
    return math.prod(shape) if len(shape) <= 32 and min(shape, default=0) >= 0 else -1


def _narrow(values: Array) -> tuple[int, list[Buffer]]:
    """Return the bytes per value and the buffers of an array, without high bytes that are zero in every value.

    Three bytes per value are stored as the low two of all values, then the high one of all values, which takes only a
    few whole-array operations.
    """
    name = dtype_name(values)
    if name == "bool":
        # One bit a value, most significant bit first, as `np.unpackbits` reads it.
        return 0, [np.packbits(values).data]
    size = values.dtype.itemsize
    if name in INTEGERS and values.size:
        bits = int(np.bitwise_or.reduce(values))  # as many bits as the largest value; negative if any value is
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
        raise CorruptBytes(f"array column {'.'.join(column.path)}: {column.width} bytes a value of {column.dtype}")
    # Put the bytes of each value together again: OR in the parts, from the lowest bits up.
    values, offset = np.zeros(column.num_values, dtype), 0
    for part, shift in _parts(column.width):
        stored = np.frombuffer(data, part, column.num_values, offset=offset)
        values |= stored.astype(dtype) << shift
        offset += stored.nbytes
    return values


def _parts(width: int) -> Iterator[tuple[str, int]]:
    """Yield the unsigned dtypes that add up to `width` bytes, each with its bit shift."""
    # The binary digits of `width` say which dtypes it takes: 3 bytes are a u2 (bits 0-15) and a u1 (bits 16-23).
    shift = 0
    for size in (4, 2, 1):
        if width & size:
            yield f"<u{size}", shift
            shift += 8 * size


def _size_on_disk(column: Packed) -> int:
    return (column.num_values + 7) // 8 if column.width == 0 else column.num_values * column.width


# Blocks: metadata columns of many experiences

_ABSENT = msgspec.Raw()


class SideMeta(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A Side without its arrays; the reward is JSON text, since it may be NaN."""

    messages: tuple[Message, ...] = ()
    text: str | None = None
    reward: str = "null"
    eid: EID | None = None
    truncate_status: str | None = None
    errors: tuple[ErrorSite, ...] = ()


class Block(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Columns of `num_records` experiences. None or absent means that every record has the default."""

    num_records: int
    eid: list[EID]
    kind: list[Kind]
    prompt: list[tuple[Message, ...]] | None = None
    tools: list[tuple[Json, ...]] | None = None
    completion: list[tuple[Message, ...]] | None = None
    chosen: list[SideMeta | None] | None = None
    rejected: list[SideMeta | None] | None = None
    prompt_text: list[str | None] | None = None
    response_text: list[str | None] | None = None
    reward: msgspec.Raw = _ABSENT
    reward_components: msgspec.Raw = _ABSENT
    truncate_status: list[str | None] | None = None
    model_version: list[int | str | None] | None = None
    errors: list[tuple[ErrorSite, ...]] | None = None
    info: msgspec.Raw = _ABSENT
    metrics: msgspec.Raw = _ABSENT
    source: list[Source | None] | None = None
    side_of: list[SideOf | None] | None = None
    custom_fields: list[tuple[CustomField, ...]] | None = None
    prompt_length: list[int | None] | None = None
    multi_modal_keys: list[tuple[str, ...]] | None = None
    arrays: list[Packed] = []


# How a field is stored: as JSON with NaN and infinities, as SideMeta with arrays apart, or as it is.
_OPEN_JSON = ("reward", "reward_components", "info", "metrics")
_SIDES = ("chosen", "rejected")
_PLAIN = tuple(
    name
    for name in Block.__struct_fields__
    if name not in ("num_records", "arrays", "multi_modal_keys", *_OPEN_JSON, *_SIDES)
)
_FIELDS = Experience.__struct_fields__
_ARRAY_NAMES = frozenset(ARRAYS)


def block_of(experiences: Sequence[Experience]) -> tuple[Block, list[Field]]:
    """Convert experiences to a block, and their array fields for `pack`."""
    columns: dict[str, Any] = {"eid": [], "kind": []}
    fields: list[Field] = []
    # Records transposed: for each field of Experience the tuple of its values, one a record. No records give no tuples.
    for name, values in zip(_FIELDS, zip(*map(astuple, experiences), strict=True), strict=False):
        if name in _ARRAY_NAMES:
            fields += _array_field(name, values)
            continue
        if _all_default(values):
            continue
        if name in _OPEN_JSON:
            columns[name] = msgspec.Raw(to_json(list(values)).encode())
        elif name in _SIDES:
            columns[name] = [None if side is None else side_meta(side) for side in values]
        elif name == "multi_modal_inputs":
            columns["multi_modal_keys"] = [tuple(inputs) for inputs in values]
        else:
            columns[name] = list(values)
    return Block(num_records=len(experiences), **columns), [*fields, *_odd_fields(experiences)]


def _all_default(values: tuple[Any, ...]) -> bool:
    first = values[0]
    return (first is None or first == () or first == {}) and values.count(first) == len(values)


def array_fields(experiences: Sequence[Experience]) -> Iterator[Field]:
    """Yield each array field that some experience has, with the numbers of these records and their arrays."""
    for name in ARRAYS:
        yield from _array_field(name, list(map(attrgetter(name), experiences)))
    yield from _odd_fields(experiences)


def _array_field(name: str, values: Sequence[Array | None]) -> list[Field]:
    rows = [row for row, array in enumerate(values) if array is not None]
    return [((name,), rows, [array for array in values if array is not None])] if rows else []


def _odd_fields(experiences: Sequence[Experience]) -> Iterator[Field]:
    odd: dict[Path, tuple[list[int], list[Array]]] = {}
    for row, exp in enumerate(experiences):
        if exp.multi_modal_inputs or exp.chosen is not None:
            for path, array in _odd_arrays(exp):
                rows, arrays = odd.setdefault(path, ([], []))
                rows.append(row)
                arrays.append(array)
    for path, (rows, arrays) in odd.items():
        yield path, rows, arrays


def _odd_arrays(exp: Experience) -> Iterator[tuple[Path, Array]]:
    """Yield the nested arrays of an experience: multi-modal inputs and arrays of its sides."""
    for key, array in exp.multi_modal_inputs.items():
        yield ("multi_modal_inputs", key), array
    for side_name in _SIDES:
        side = getattr(exp, side_name)
        for name in SIDE_ARRAYS if side is not None else ():
            if (array := getattr(side, name)) is not None:
                yield (side_name, name), array


def experiences_of(block: Block, data: memoryview) -> list[Experience]:
    """Build and validate the experiences of a block; inverts `block_of`."""
    # Keyword arguments for each record: it is checked when it is built, so all its fields are collected first.
    fields: list[dict[str, Any]] = [{} for _ in range(_check_length(block))]
    for name in _PLAIN:
        _spread(fields, name, getattr(block, name))
    for name in _OPEN_JSON:
        raw = getattr(block, name)
        _spread(fields, name, from_json(bytes(raw)) if bytes(raw) else None)
    # Keys of multi-modal inputs without values yet; `place_arrays` fills them in.
    _spread(fields, "multi_modal_inputs", block.multi_modal_keys and [dict.fromkeys(k) for k in block.multi_modal_keys])
    sides = place_arrays(fields, unpack(block.arrays, data))
    for name in _SIDES:
        metas = getattr(block, name)
        if metas is not None:
            _spread(fields, name, [side_of_meta(meta, sides[name].get(row, {})) for row, meta in enumerate(metas)])
    return [Experience(**values) for values in fields]


def place_arrays(fields: list[dict[str, Any]], entries: Iterable[Entry]) -> dict[str, dict[int, dict[str, Array]]]:
    """Add each array to the fields of its record; arrays of sides are returned by side, record number and name."""
    sides: dict[str, dict[int, dict[str, Array]]] = {name: {} for name in _SIDES}
    for path, row, array in entries:
        if row >= len(fields):
            raise CorruptBytes(f"array of {'.'.join(path)}: record {row} of {len(fields)}")
        if len(path) == 1 and path[0] in ARRAYS:
            fields[row][path[0]] = array
        elif len(path) == 2 and path[0] == "multi_modal_inputs" and path[1] in fields[row].get(path[0], {}):
            fields[row]["multi_modal_inputs"][path[1]] = array
        elif len(path) == 2 and path[0] in _SIDES and path[1] in SIDE_ARRAYS:
            sides[path[0]].setdefault(row, {})[path[1]] = array
        else:
            raise CorruptBytes(f"array of an unknown field {'.'.join(path)}")
    return sides


def _check_length(block: Block) -> int:
    if block.num_records != len(block.eid):
        raise CorruptBytes(f"{block.num_records} records, but {len(block.eid)} ids")
    return len(block.eid)


def _spread(fields: list[dict[str, Any]], name: str, values: Any) -> None:
    if values is None:
        return
    if not isinstance(values, list) or len(values) != len(fields):
        raise CorruptBytes(f"column {name}: not one value for each of {len(fields)} records")
    for target, value in zip(fields, values, strict=True):
        target[name] = value


def side_meta(side: Side) -> SideMeta:
    return SideMeta(
        messages=side.messages,
        text=side.text,
        reward=to_json(side.reward),
        eid=side.eid,
        truncate_status=side.truncate_status,
        errors=side.errors,
    )


def side_of_meta(meta: SideMeta | None, arrays: dict[str, Array]) -> Side | None:
    if meta is None:
        return None
    return Side(
        messages=meta.messages,
        text=meta.text,
        reward=from_json(meta.reward),
        eid=meta.eid,
        truncate_status=meta.truncate_status,
        errors=meta.errors,
        **arrays,
    )
