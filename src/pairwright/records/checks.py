"""Checks of records, run when a record is built: they normalize fields in place and raise RecordError."""

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from pairwright.errors import RecordError
from pairwright.records.arrays import FLOATS, INTEGERS, Array, as_array, dtype_name, same_array
from pairwright.records.json_text import check_json

TRUNCATE_STATUSES = (None, "prompt_truncated", "response_truncated")


def set_tuple(record: msgspec.Struct, field: str, item_type: type) -> None:
    """Convert a field to a tuple of items of one type; dicts are converted if the type has `from_chat`."""
    value = original = getattr(record, field)
    if type(value) is list:
        value = tuple(value)
    if type(value) is not tuple:
        raise RecordError(field, value, f"a tuple of {item_type.__name__}")
    for item in value:  # the usual case, all items of the right type, builds no new tuple
        if type(item) is not item_type:
            value = tuple(_as_item(item, field, item_type) for item in value)
            break
    if value is not original:
        force_setattr(record, field, value)


def _as_item(item: Any, field: str, item_type: Any) -> Any:
    if type(item) is item_type:
        return item
    if type(item) is dict and hasattr(item_type, "from_chat"):
        try:
            return item_type.from_chat(item)
        except ValueError as error:
            raise RecordError(field, item, f"a chat message: {error}") from None
    raise RecordError(field, item, f"a {item_type.__name__}")


def set_array(record: msgspec.Struct, field: str, dtype: str) -> Array:
    """Convert a field to an array; `dtype` is used only for lists."""
    value = getattr(record, field)
    array = as_array(value, field, dtype=dtype)
    if array is not value:
        force_setattr(record, field, array)
    return array


def set_tokens(record: msgspec.Struct) -> int:
    """Convert `tokens` to an array of token ids; returns their number."""
    tokens = set_array(record, "tokens", "int32")
    if dtype_name(tokens) not in INTEGERS or tokens.ndim != 1:
        raise RecordError("tokens", tokens, "a one-dimensional array of integers")
    # one pass instead of min and max: the bitwise or is negative if any id is, and >= 2**31 if any id is
    if tokens.size and not 0 <= np.bitwise_or.reduce(tokens) < 2**31:
        raise RecordError("tokens", tokens, "token ids from 0 to 2**31 - 1")
    return tokens.size


def set_response_arrays(record: msgspec.Struct, fields: tuple[str, ...], length: int | None) -> None:
    """Check the arrays that hold one value for each of `length` response tokens; None: there are no tokens."""
    for field in fields:
        if getattr(record, field) is None:
            continue
        array = set_array(record, field, "bool" if field == "action_mask" else "float32")
        if length is None:
            raise RecordError(field, array, "no array, since there are no tokens that it could belong to")
        # one value per token; only teacher_logprobs may have further axes
        if array.ndim == 0 or len(array) != length or (array.ndim > 1 and field != "teacher_logprobs"):
            raise RecordError(f"{field}.shape", array.shape, f"({length},), one value for each response token")
        if field == "action_mask":
            _check_mask(array)
        elif dtype_name(array) not in FLOATS:
            raise RecordError(f"{field}.dtype", dtype_name(array), "a floating-point dtype")


def set_reward(record: msgspec.Struct) -> None:
    """Convert `reward` to a float or None. NaN and infinities are allowed: such a record is valid, but unscored."""
    reward = record.reward  # type: ignore[attr-defined]
    if type(reward) is float or reward is None:
        return
    if not isinstance(reward, bool | int | float | np.integer | np.floating | np.bool_):
        raise RecordError("reward", reward, "a number, or None where there is no score")
    force_setattr(record, "reward", float(reward))


def check_truncation(status: str | None) -> None:
    if status not in TRUNCATE_STATUSES:
        raise RecordError("truncate_status", status, f"one of {TRUNCATE_STATUSES}")


def check_tools(record: msgspec.Struct) -> None:
    """Check that tool schemas are JSON objects. Runs of a task share one tuple object, which is checked only once."""
    global _last_tools
    # identity, not equality: comparing large schemas would cost as much as checking them
    if record.tools is not _last_tools:  # type: ignore[attr-defined]
        set_tuple(record, "tools", dict)
        tools = record.tools  # type: ignore[attr-defined]
        check_json(list(tools), "tools", finite=True)
        _last_tools = tools


_last_tools: object = None


def check_parts(content: object) -> None:
    """Check the parts of a message's content: a list of JSON objects."""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RecordError("message.content", content, "text, a list of parts, or None")
    check_json(content, "message.content", finite=True)


def same_record(left: Any, right: Any) -> bool:
    """Whether two records of one type are equal by value, including arrays and NaN."""
    return all(_same(getattr(left, field), getattr(right, field)) for field in left.__struct_fields__)


def _check_mask(mask: Array) -> None:
    name = dtype_name(mask)
    if name == "bool":
        return
    if name not in INTEGERS or (mask.size and (mask.min() < 0 or mask.max() > 1)):
        raise RecordError("action_mask", mask, "booleans, or integers that are 0 or 1")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and same_array(left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and type(left) is type(right):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, msgspec.Struct) and type(left) is type(right):
        return same_record(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right)  # NaN equals NaN
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)  # True is not 1
