"""JSON text with an exact round trip: a value that passes `check_json` equals its decoded text.

JSON has no NaN and no infinities; encoders write `null` for them, and convert tuples to lists and integer keys to
strings. `check_json` accepts plain JSON (checked by a round trip) and rejects any other value with its path.
Non-finite floats are encoded as `{"$float": "nan"}`, since metrics of real runs contain them.
"""

import math
from typing import Any

import msgspec

from pairwright.errors import RecordError

_TAG = "$float"
MAX_DEPTH = 200
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

encode = msgspec.json.encode
decode = msgspec.json.decode


def to_json(value: Any) -> str:
    """Encode a checked JSON value; non-finite floats are tagged."""
    text = encode(value).decode()  # `in` searches text several times as fast as bytes
    # msgspec writes null for NaN and infinities: without a null, the value is not searched for them
    if ("null" in text and _has_non_finite(value)) or '"$float"' in text:
        text = encode(_tag_floats(value)).decode()
    return text


def from_json(text: str | bytes) -> Any:
    """Invert `to_json`."""
    value = decode(text)
    tagged = b'"$float"' in text if isinstance(text, bytes) else '"$float"' in text
    return _untag_floats(value) if tagged else value


def check_json(value: Any, field: str, *, finite: bool = False) -> None:
    """Raise RecordError unless JSON holds the value exactly, to MAX_DEPTH levels; `finite` refuses NaN and inf, too."""
    try:
        data = encode(value)
        if decode(data) == value and (data.count(b"[") + data.count(b"{") <= MAX_DEPTH or not _is_deep(value)):
            return
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        pass  # the walk below locates the bad value and describes it
    _check(value, field, finite, 0)


def _is_deep(value: Any) -> bool:
    """Whether a value has more than `MAX_DEPTH` levels; walks it level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _check(value: Any, path: str, finite: bool, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RecordError(f"{path[:60]}...", "a value", f"at most {MAX_DEPTH} levels of nesting")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise RecordError(f"{path} key", key, "a string, as JSON keys are")
            _check(item, f"{path}.{key}", finite, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", finite, depth + 1)
    elif isinstance(value, str):
        check_text(value, path)
    elif value is not None and not isinstance(value, bool | int | float):
        raise RecordError(path, value, "a JSON value: dict, list, string, number, bool or None")
    elif finite and isinstance(value, float) and not math.isfinite(value):
        raise RecordError(path, value, "a finite number, as JSON has no other")


def check_text(value: object, path: str, expected: str = "a string") -> None:
    """Raise RecordError unless the value is a string that can be written as UTF-8 (has no lone surrogate)."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise RecordError(path, value, expected)
    elif value.isascii():  # the usual case: ASCII has no surrogates, and isascii() takes constant time
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(path, value, f"text that is valid Unicode (position {error.start})") from None


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    return isinstance(value, list) and any(map(_has_non_finite, value))


def _tag_floats(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        if _TAG in value:  # a user's "$float" key, boxed to distinguish it from our tag
            return {_TAG: [{key: _tag_floats(item) for key, item in value.items()}]}
        return {key: _tag_floats(item) for key, item in value.items()}
    return [_tag_floats(item) for item in value] if isinstance(value, list) else value


def _untag_floats(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and _TAG in value:
            # a string is a tagged float, a list of one dict a boxed "$float" key of the user
            inner = value[_TAG]
            if isinstance(inner, str) and inner in _NON_FINITE:
                return _NON_FINITE[inner]
            if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], dict):
                return {key: _untag_floats(item) for key, item in inner[0].items()}
        return {key: _untag_floats(item) for key, item in value.items()}
    return [_untag_floats(item) for item in value] if isinstance(value, list) else value
