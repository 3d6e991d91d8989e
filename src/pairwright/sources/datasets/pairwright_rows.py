"""pairwright's own JSON Lines, as written by `pairwright export`; reading restores every field exactly.

    {uid, eid, kind, prompt, completion, reward, info, tokens: {dtype, values}, ...}

A row contains every field that differs from its default. NaN and infinities are `{"$float": "nan"}`
(records/json_text.py). An array is stored as dtype and values; if these do not restore it bit for bit (NaN, an empty
array of several dimensions), its shape and bytes (base64, little-endian) are added. Rows keep their ids and sources:
reading them back is not a new import of the original files.
"""

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from pairwright.errors import RecordError
from pairwright.records.arrays import Array, dtype_name, dtype_named
from pairwright.records.experience import ARRAYS, Experience, Side
from pairwright.records.json_text import encode, from_json, to_json
from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, has, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected

NAME = "pairwright"
_DEFAULTS: tuple[Any, ...] = (None, (), {}, [])
_OPEN_JSON = ("info", "metrics", "reward_components", "reward")
_KINDS = ("single_turn", "multi_turn", "preference")
# Type of each field; arrays and open JSON are handled by the functions below.
_TYPES = {kind: {field.name: field.type for field in msgspec.structs.fields(kind)} for kind in (Experience, Side)}


def matches(value: Any) -> bool:
    return has(value, uid=str, eid=list) and value.get("kind") in _KINDS


def experience_to_json(exp: Experience) -> Json:
    """Convert an experience to plain JSON values; the inverse of `experience_from_json`."""
    return {"uid": exp.eid.uid, **_fields_to_json(exp)}


def experience_from_json(value: Any) -> Experience:
    """Convert a row back to an experience; raise BadRecord or RecordError if it is not valid."""
    row = dict(mapping(value, "row"))
    uid = row.pop("uid", None)
    fields = _fields_from_json(row, Experience, "")
    missing = [name for name in ("eid", "kind") if name not in fields]
    if missing:
        raise BadRecord(f"{missing[0]}: missing")
    exp = Experience(**fields)
    # `uid` is written for people and other tools; it must not contradict `eid`.
    if uid is not None and uid != exp.eid.uid:
        raise BadRecord(f"uid: got {uid!r}, but eid says {exp.eid.uid}")
    return exp


def _fields_to_json(record: Experience | Side) -> Json:
    fields: Json = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        # Arrays are not compared: their comparison is elementwise, and None is their only default.
        if value is None or any(value is empty or value == empty for empty in _DEFAULTS if name not in ARRAYS):
            continue
        if name in ARRAYS:
            fields[name] = _array_to_json(value)
        elif name == "multi_modal_inputs":
            fields[name] = {key: _array_to_json(array) for key, array in value.items()}
        elif isinstance(value, Side):
            fields[name] = _fields_to_json(value)
        elif name in _OPEN_JSON:
            # Through text, which writes NaN and infinities as {"$float": ...}.
            fields[name] = msgspec.json.decode(to_json(value))
        else:
            fields[name] = msgspec.to_builtins(value)
    return fields


def _fields_from_json(row: Json, kind: type[Experience | Side], prefix: str) -> Json:
    types = _TYPES[kind]
    fields: Json = {}
    for name, item in row.items():
        where = f"{prefix}{name}"
        if name not in types:
            raise BadRecord(f"{where}: unknown; {'a side' if prefix else 'an experience'} has {', '.join(types)}")
        if name in ARRAYS:
            fields[name] = _array_from_json(item, where)
        elif name == "multi_modal_inputs":
            fields[name] = {
                key: _array_from_json(array, f"{where}.{key}") for key, array in mapping(item, where).items()
            }
        elif name in ("chosen", "rejected"):
            fields[name] = Side(**_fields_from_json(mapping(item, where), Side, f"{where}."))
        elif name in _OPEN_JSON:
            fields[name] = from_json(encode(item))
        else:
            try:
                fields[name] = msgspec.convert(item, types[name])
            except msgspec.ValidationError as error:
                raise BadRecord(f"{where}: {error}") from None
    return fields


def _array_to_json(array: Array) -> Json:
    fields: Json = {"dtype": dtype_name(array), "values": array.tolist()}
    with np.errstate(invalid="ignore"):  # for signalling NaN
        is_finite = array.dtype.kind in "biu" or bool(np.isfinite(array).all())
    if not is_finite or (not array.size and array.ndim != 1):
        fields["values"] = msgspec.json.decode(to_json(fields["values"]))
        data = array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "iuf" else array
        fields["shape"] = list(array.shape)
        fields["bytes"] = base64.b64encode(data.tobytes()).decode()
    return fields


def _array_from_json(value: Any, where: str) -> Array:
    """Decode an array from its bytes if present, else from its values."""
    fields = mapping(value, where)
    try:
        dtype = dtype_named(fields["dtype"])
        if "bytes" not in fields:
            values = fields["values"]
            # The natural dtype of the values: fractions are refused for integers. An empty list is float by default.
            kind = np.asarray(values).dtype.kind
            if kind not in "biuf" or (kind == "f" and dtype.kind in "biu" and values != []):
                raise ValueError(f"values that are not numbers of {dtype}")
            return np.array(values, dtype)
        stored = dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype
        array = np.frombuffer(base64.b64decode(fields["bytes"], validate=True), stored)
        return array.astype(dtype).reshape(fields["shape"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, RecordError):
            raise
        raise BadRecord(f"{where}: expected an array as dtype and values: {error}") from None


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    yield experience_from_json(value)


FORMAT = Format(NAME, "record", matches, read_unit, "Experiences that pairwright exported")
