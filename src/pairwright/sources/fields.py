"""Typed access to decoded JSON that nobody has checked yet.

A reader asks for what it needs (`mapping`, `items`, `text`, ...) and either gets that type or raises BadRecord, which
sends the record to quarantine with the reason. `where` is the path inside the record.
"""

import math
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.json_text import encode
from pairwright.records.messages import Json


class BadRecord(PairwrightError, ValueError):
    """A record that its reader cannot use; the message is the reason that the user sees."""


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


def optional_mapping(value: Any, where: str) -> Json:
    """An object; {} where it is null or absent."""
    return {} if value is None else mapping(value, where)


def optional_items(value: Any, where: str) -> list[Any]:
    """A list; [] where it is null or absent."""
    return [] if value is None else items(value, where)


def optional_text(value: Any, where: str) -> str | None:
    return None if value is None else text(value, where)


def identifier(value: Any) -> int | str | None:
    """A value used as an id: text or a whole number; anything else is no id."""
    # bool is a subclass of int in Python, and never an id.
    if isinstance(value, bool):
        return None
    return value if isinstance(value, int | str) and value != "" else None


def index(value: Any) -> int | None:
    """A value used as a number of a run or step; anything but a whole number of at least 0 is none."""
    # At most 18 digits, so that the number fits a signed 64-bit column.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    return None


def score(value: Any) -> float | None:
    """A reward: number, bool or number as text. None where there is none; NaN and infinities are kept."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        # A JSON integer may be larger than any double.
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def json_text(value: Any) -> str:
    """The arguments of a call as JSON text: text stays as it came, a value is encoded once."""
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode()
    except (RecursionError, TypeError, ValueError) as error:  # nested too deep, or not valid Unicode
        raise BadRecord(f"a value that cannot be written as JSON: {error}") from None


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


# JSON inside JSON: fields that some files hold as text, so that a table can store them.


def json_value(value: Any, where: str) -> Any:
    """The value of a field that may be JSON text; empty text is None."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadRecord(f"{where}: text that is no JSON ({error})") from None


# What a row says beyond the fields that its reader knows: kept in `info` as long as it is small.

_NUMBERS = (float, int, bool)
_SMALL_BYTES = 2_000


def small_fields(row: Json, known: frozenset[str]) -> Json:
    """The fields that are not `known`, null or large; the names of the large ones are under "not_read"."""
    info: Json = {}
    not_read: list[str] = []
    for key, value in row.items():
        if key in known or value is None:
            continue
        # Numbers are small: nothing to encode and measure.
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
