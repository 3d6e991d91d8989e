"""Messages as templates see them: plain JSON values whose strings say which message and field they come from.

Mirrors what transformers hands to a template (rich objects become plain data, reasoning is filled in under the names
that templates read), so that both render the same text.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from pairwright.records.messages import Json
from pairwright.tokens.template.tracked_str import CALL, CALL_ID, CONTENT, FIELDS, NAME, OTHER, REASONING, track

Chat = list[Json]

# Keys that hold reasoning, in the order in which they are looked for.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Key of a message -> field of the owner of its text; every other key is OTHER.
_FIELD_OF = {
    "content": CONTENT,
    "text": CONTENT,
    "tool_calls": CALL,
    "function_call": CALL,
    "tool_call_id": CALL_ID,
    "name": NAME,
    **dict.fromkeys(REASONING_KEYS, REASONING),
}


# Values of a call's arguments: the model wrote all of them, so numbers and containers have an owner, too.


class OwnedInt(int):
    """A number of a call's arguments: its text belongs to the call."""

    _owner: int

    def __str__(self) -> str:
        return track(int.__repr__(self), self._owner)


class OwnedFloat(float):
    _owner: int

    def __str__(self) -> str:
        return track(float.__repr__(self), self._owner)


class OwnedDict(dict[Any, Any]):
    """A call's arguments: as JSON it is one piece of text with one owner."""

    _owner: int


class OwnedList(list[Any]):
    _owner: int


OwnedDict.__name__, OwnedList.__name__ = "dict", "list"  # a template's error message is the one that a user knows


class PlainDict(dict[Any, Any]):
    """A value that holds no owned text, such as a tool schema; its JSON is kept once written."""

    _json: dict[Any, str]


class PlainList(list[Any]):
    _json: dict[Any, str]


def plain_chat(messages: Sequence[Mapping[str, Any]]) -> Chat:
    """Messages as plain data with the reasoning under every name that templates read."""
    chat = []
    for message in messages:
        plain = {key: item if type(item) is str else plain_data(item) for key, item in message.items()}
        # Templates read the reasoning under different names; the first that is set is given under two of them.
        reasoning = next((plain[key] for key in REASONING_KEYS if plain.get(key) is not None), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        chat.append(plain)
    return chat


def plain_data(value: Any) -> Any:
    """Rebuild a value out of plain JSON types; anything else becomes a text that names its type."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    # Subclasses, such as IntEnum or numpy's float64, become the plain type.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_data(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain_data(item) for item in value)
    return f"<{type(value).__name__}>"


def cache_json(value: Any) -> Any:
    """Tool schemas, rebuilt so that `tojson` of each part is written once and not on every render."""
    if isinstance(value, Mapping):
        mapping = PlainDict({plain_data(key): cache_json(item) for key, item in value.items()})
        mapping._json = {}
        return mapping
    if isinstance(value, list | tuple):
        items = PlainList(cache_json(item) for item in value)
        items._json = {}
        return items
    return plain_data(value)


def track_chat(chat: Chat) -> Chat:
    """The chat with every string owned by (message, field); roles and types stay template text."""
    result: Chat = []
    for number, message in enumerate(chat):
        owner = number * FIELDS  # plus the field: see tracked_str.py
        tracked: Json = {}
        for key, value in message.items():
            if type(value) is str:
                tracked[key] = value if key == "role" else track(value, owner + _FIELD_OF.get(key, OTHER))
            elif key == "tool_calls" and isinstance(value, list):
                tracked[key] = list(map(_track_call, value, repeat(owner)))
            else:
                tracked[key] = _track_value(value, owner + _FIELD_OF.get(key, OTHER))
        result.append(tracked)
    return result


def _track_call(call: Any, owner: int) -> Any:
    """A call keeps its shape; its arguments become one piece."""
    if not isinstance(call, dict):
        return _track_value(call, owner + CALL)
    result: Json = {}
    for key, value in call.items():
        # Name and arguments of a call may be one level down, under `function`.
        if key == "function":
            result[key] = _track_call(value, owner)
        elif key in ("arguments", "parameters", "input"):
            result[key] = _track_arguments(value, owner + CALL)
        else:
            field = CALL_ID if key == "id" else CALL
            result[key] = value if key == "type" else _track_value(value, owner + field)
    return result


def _track_value(value: Any, owner: int) -> Any:
    """A value whose strings belong to the owner; numbers, keys and containers stay template text."""
    if type(value) is str:
        return track(value, owner)
    if isinstance(value, dict):
        return {key: item if key in ("type", "role") else _track_value(item, owner) for key, item in value.items()}
    if isinstance(value, list):
        return [_track_value(item, owner) for item in value]
    return value


def _track_arguments(value: Any, owner: int) -> Any:
    """A value that the model wrote as a whole: keys, numbers and containers belong to it as well as strings."""
    if type(value) is str:
        return track(value, owner)
    if type(value) is int:
        number = OwnedInt(value)
        number._owner = owner
        return number
    if type(value) is float:
        real = OwnedFloat(value)
        real._owner = owner
        return real
    if isinstance(value, dict):
        mapping = OwnedDict()
        for key, item in value.items():
            mapping[track(key, owner)] = _track_arguments(item, owner)
        mapping._owner = owner
        return mapping
    if isinstance(value, list):
        items = OwnedList(map(_track_arguments, value, repeat(owner)))
        items._owner = owner
        return items
    return value
