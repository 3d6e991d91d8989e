"""Typed access to unvalidated JSON values.

Each function (`mapping`, `items`, `text`, ...) returns the value with the requested type or raises BadRecord, which
sends the record to quarantine with the reason. `where` is the path inside the record, for error messages. Also helpers
for JSON stored as text and for the remaining small fields of a row.
"""

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.json_text import encode
from pairwright.records.messages import Json

_NUMBERS = (float, int, bool)
_SMALL_BYTES = 2_000


class BadRecord(PairwrightError, ValueError):
    """Raised for a record that its reader cannot use; the message is the reason shown to the user."""


def mapping(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise BadRecord(f"{where}: expected an object, got {kind_of(value)}")
    return value


def items(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRecord(f"{where}: expected a list, got {kind_of(value)}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{where}: expected text, got {kind_of(value)}")
    return value


def has(value: Any, *keys: str, **types: Any) -> TypeGuard[Json]:
    """Whether a value is an object with these keys, and with fields of these types.

    >>> has({"id": 1, "steps": []}, "id", steps=list), has({"steps": {}}, steps=list), has([], "id")
    (True, False, False)
    """
    if not isinstance(value, dict):
        return False
    # Loops are several times as fast as `all`, and detection asks this of each format for each sampled record.
    for key in keys:
        if key not in value:
            return False
    for key, kind in types.items():  # noqa: SIM110
        if not isinstance(value.get(key), kind):
            return False
    return True


def optional_mapping(value: Any, where: str) -> Json:
    """Return an object, or {} if the value is null or absent."""
    return {} if value is None else mapping(value, where)


def optional_items(value: Any, where: str) -> list[Any]:
    """Return a list, or [] if the value is null or absent."""
    return [] if value is None else items(value, where)


def objects(value: Any, where: str) -> Iterator[tuple[str, Json]]:
    """Yield the path and the value of each object of a list."""
    for number, item in enumerate(items(value, where)):
        place = f"{where}[{number}]"
        yield place, mapping(item, place)


def optional_objects(value: Any, where: str) -> Iterator[tuple[str, Json]]:
    """Yield the path and the value of each object of a list, which may be null or absent."""
    return objects([] if value is None else value, where)


def optional_text(value: Any, where: str) -> str | None:
    return None if value is None else text(value, where)


def filled_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def words(text: str) -> frozenset[str]:
    """Return the words of a text, for tables of names."""
    return frozenset(text.split())


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def type_of(value: Any) -> str:
    """Return the `type` of an object, or "" if it has none."""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else ""


def object_or_empty(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[Json]:
    """Return the objects of a list, without its other items; [] for any other value."""
    return [item for item in list_or_empty(value) if isinstance(item, dict)]


def texts_of(fields: Json, *keys: str) -> Json:
    return {key: fields[key] for key in keys if isinstance(fields.get(key), str)}


def filled(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def plain_numbers(value: Any) -> Json:
    """Return the numbers of an object by name; {} for any other value."""
    return {key: item for key, item in object_or_empty(value).items() if type(item) in (int, float)}


def identifier(value: Any) -> int | str | None:
    """Return the value if it is a valid id (non-empty text or an integer), else None."""
    # bool is a subclass of int in Python, and never an id.
    if value is None or value == "" or isinstance(value, bool):
        return None
    return value if isinstance(value, int | str) else None


def index(value: Any) -> int | None:
    """Return a run or step number as an int, or None if it is not a non-negative integer."""
    # At most 18 digits, so that the number fits a signed 64-bit column.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    return None


def score(value: Any) -> float | None:
    """Convert a reward (number, bool or numeric text) to float, or return None. NaN and infinities are preserved."""
    if value is None or type(value) is float:
        return value
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def json_text(value: Any) -> str:
    """Return call arguments as JSON text: text is returned unchanged, any other value is encoded."""
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode()
    except (RecursionError, TypeError, ValueError) as error:  # nested too deep, or not valid Unicode
        raise BadRecord(f"a value that cannot be written as JSON: {error}") from None


def value_at(fields: Any, path: str) -> Any:
    """Return the value at a key or dotted path of an object, or None. A key that contains a dot takes precedence."""
    if not isinstance(fields, dict):
        return None
    if path in fields or "." not in path:
        return fields.get(path)
    first, _, rest = path.partition(".")
    return value_at(fields.get(first), rest)


def text_at(fields: Any, *paths: str) -> str | None:
    """Return the first text that is not empty at one of these paths, or None."""
    return next((value for path in paths if (value := filled_text(value_at(fields, path))) is not None), None)


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def json_value(value: Any, where: str) -> Any:
    """Decode a field that may hold JSON text; empty text is None."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadRecord(f"{where}: text that is not JSON ({error})") from None


def small_fields(row: Json, known: frozenset[str]) -> Json:
    """Return the fields that are not in `known`, null or large; the names of large ones are listed under "not_read"."""
    info: Json = {}
    not_read: list[str] = []
    for key, value in row.items():
        if key in known or value is None:
            continue
        # Numbers are always small: skip measuring their JSON.
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
