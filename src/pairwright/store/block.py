"""Columnar form of experiences for the byte codec: a `Block` of metadata columns.

Columns in which every record has the default are omitted. `reward`, `reward_components`, `info` and `metrics` are
encoded with records/json_text.py, which preserves NaN and infinities. Integer arrays are stored without high bytes that
are zero in all values, boolean arrays as bits.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from pairwright.errors import CorruptBytes
from pairwright.records.arrays import Array
from pairwright.records.experience import ARRAYS, EID, SIDE_ARRAYS, CustomField, Experience, Kind, Side, SideOf, Source
from pairwright.records.json_text import from_json, to_json
from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.store.packed_arrays import Entry, Field, Packed, Path, unpack

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


# Storage of fields: as JSON with NaN and infinities, as SideMeta with separate arrays, or unchanged.
_OPEN_JSON = ("reward", "reward_components", "info", "metrics")
_SIDES = ("chosen", "rejected")
_PLAIN = tuple(
    name
    for name in Block.__struct_fields__
    if name not in ("num_records", "arrays", "multi_modal_keys", *_OPEN_JSON, *_SIDES)
)
_PLAIN_OF_SIDE = ("messages", "text", "eid", "truncate_status", "errors")
_FIELDS = Experience.__struct_fields__
_ARRAY_NAMES = frozenset(ARRAYS)


def block_of(experiences: Sequence[Experience]) -> tuple[Block, list[Field]]:
    """Convert experiences to a block, and their array fields for `pack`."""
    columns: dict[str, Any] = {"eid": [], "kind": []}
    fields: list[Field] = []
    # Transposed records: (field, values of all records). Without records, there are no tuples.
    for name, values in zip(_FIELDS, zip(*map(astuple, experiences), strict=True), strict=False):
        if name in _ARRAY_NAMES:
            fields += _array_field(name, values)
            continue
        first = values[0]
        if (first is None or first == () or first == {}) and values.count(first) == len(values):
            continue  # every record has the default
        if name in _OPEN_JSON:
            columns[name] = msgspec.Raw(to_json(list(values)).encode())
        elif name in _SIDES:
            columns[name] = [None if side is None else side_meta(side) for side in values]
        elif name == "multi_modal_inputs":
            columns["multi_modal_keys"] = [tuple(inputs) for inputs in values]
        else:
            columns[name] = list(values)
    return Block(num_records=len(experiences), **columns), [*fields, *_odd_fields(experiences)]


def array_fields(experiences: Sequence[Experience]) -> Iterator[Field]:
    """Yield (path, record numbers, arrays) for each array field that some experience has."""
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
    # Keyword arguments of each record; collected first, since a record is validated when it is built.
    if block.num_records != len(block.eid):
        raise CorruptBytes(f"{block.num_records} records, but {len(block.eid)} ids")
    fields: list[dict[str, Any]] = [{} for _ in block.eid]
    for name in _PLAIN:
        _spread(fields, name, getattr(block, name))
    for name in _OPEN_JSON:
        raw = getattr(block, name)
        _spread(fields, name, from_json(bytes(raw)) if bytes(raw) else None)
    # Keys of multi-modal inputs; `place_arrays` adds the values.
    _spread(fields, "multi_modal_inputs", block.multi_modal_keys and [dict.fromkeys(k) for k in block.multi_modal_keys])
    sides = place_arrays(fields, unpack(block.arrays, data))
    for name in _SIDES:
        metas = getattr(block, name)
        if metas is not None:
            _spread(fields, name, [side_of_meta(meta, sides[name].get(row, {})) for row, meta in enumerate(metas)])
    return [Experience(**values) for values in fields]


def place_arrays(fields: list[dict[str, Any]], entries: Iterable[Entry]) -> dict[str, dict[int, dict[str, Array]]]:
    """Add each array to the fields of its record; return arrays of sides as side -> record number -> name -> array."""
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


def _spread(fields: list[dict[str, Any]], name: str, values: Any) -> None:
    if values is None:
        return
    if not isinstance(values, list) or len(values) != len(fields):
        raise CorruptBytes(f"column {name}: not one value for each of {len(fields)} records")
    for target, value in zip(fields, values, strict=True):
        target[name] = value


def side_meta(side: Side) -> SideMeta:
    return SideMeta(reward=to_json(side.reward), **{name: getattr(side, name) for name in _PLAIN_OF_SIDE})


def side_of_meta(meta: SideMeta | None, arrays: dict[str, Array]) -> Side | None:
    if meta is None:
        return None
    fields: dict[str, Any] = {**arrays, **{name: getattr(meta, name) for name in _PLAIN_OF_SIDE}}
    return Side(reward=from_json(meta.reward), **fields)
