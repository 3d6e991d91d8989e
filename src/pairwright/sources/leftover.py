"""What a row says beyond the fields that its reader knows: kept in `info` as long as it is small."""

from typing import Any

from pairwright.jsontext import encode
from pairwright.messages import Json

_NUMBERS = (float, int, bool)
_SMALL_BYTES = 2_000


def small_fields(row: Json, known: frozenset[str]) -> Json:
    """The fields that are not `known`, null or large; the names of the large ones are under "not_read"."""
    info: Json = {}
    not_read: list[str] = []
    for key, value in row.items():
        if key in known or value is None:
            continue
        if type(value) in _NUMBERS or _is_small(value):
            info[key] = value
        else:
            not_read.append(key)
    if not_read:
        info["not_read"] = not_read
    return info


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _SMALL_BYTES
    try:
        return len(encode(value)) <= _SMALL_BYTES
    except (RecursionError, TypeError, ValueError):
        return False
