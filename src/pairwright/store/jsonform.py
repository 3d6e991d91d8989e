"""An experience as one JSON object: every field that is not its default, arrays as lists with their dtype."""

from typing import Any

import msgspec

from pairwright.arrays import Array, dtype_name
from pairwright.jsontext import from_json, to_json
from pairwright.records import ARRAYS, SIDE_ARRAYS, Experience, Side

_DEFAULTS: tuple[Any, ...] = (None, (), {}, [])


def experience_to_json(exp: Experience) -> dict[str, Any]:
    """Plain JSON values, for people and other tools; the way back is the table or the bytes, which keep everything."""
    fields: dict[str, Any] = {"uid": exp.eid.uid}
    for name in exp.__struct_fields__:
        value = getattr(exp, name)
        if value is None or any(value is empty or value == empty for empty in _DEFAULTS if name not in ARRAYS):
            continue
        if name in ARRAYS:
            fields[name] = _array(value)
        elif name == "multi_modal_inputs":
            fields[name] = {key: _array(array) for key, array in value.items()}
        elif isinstance(value, Side):
            fields[name] = _side(value)
        elif name in ("info", "metrics", "reward_components", "reward"):
            fields[name] = msgspec.json.decode(to_json(value))
        else:
            fields[name] = msgspec.to_builtins(value)
    return fields


def _side(side: Side) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in side.__struct_fields__:
        value = getattr(side, name)
        if name in SIDE_ARRAYS and value is not None:
            fields[name] = _array(value)
        elif value is not None and value != ():
            fields[name] = msgspec.json.decode(to_json(value)) if name == "reward" else msgspec.to_builtins(value)
    return fields


def _array(array: Array) -> dict[str, Any]:
    return {"dtype": dtype_name(array), "values": from_json(to_json(array.tolist()))}
