"""Read plain chat messages at once: those with only a role, text, calls and ids.

Results equal those of `messages_from_chat` (chat_messages.py) and `conversation` (any_messages.py), which also read
other shapes. Each call in a log repeats the messages of the previous call, so short messages are cached by their JSON
text.
"""

from functools import lru_cache
from typing import Any

import msgspec

from pairwright.records.json_text import encode
from pairwright.records.messages import Message, ToolCall
from pairwright.sources.roles import CALLS, ROLES, role_of

# Roles that every shape of any_messages.py reads alike
_PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NUM_KNOWN, _SHORT = 2048, 4096


class _Function(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    id: str
    type: str
    function: _Function


class _Turn(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    role: str
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_turn = msgspec.json.Decoder(_Turn).decode


def usual_chat(messages: list[Any]) -> list[Message] | None:
    """Read messages with only the common fields and types, all at once; None if any message is different."""
    try:
        turns = msgspec.convert(messages, list[_Turn])
    except (msgspec.ValidationError, UnicodeError):  # UnicodeError: a key with a lone surrogate
        return None
    return [_message(turn) for turn in turns]


def plain_messages(value: Any) -> list[Message] | None:
    """Read one or several plain chat messages, or JSON text of them; None for anything else."""
    try:
        if not isinstance(value, str):
            turns = value if isinstance(value, list) else [value]
            return [_plain(turn) for turn in msgspec.convert(turns, list[_Turn])] or None
        if value[:1] == "{":
            return [_read(value.encode())]
        if value[:1] != "[":
            return None
        # `encode` copies the bytes of a Raw faster than `bytes`.
        return [_read(encode(text)) for text in _decode_list(value)] or None
    except (ValueError, RecursionError):  # not plain
        return None


def _read(text: bytes) -> Message:
    return _known(text) if len(text) <= _SHORT else _plain(_decode_turn(text))


@lru_cache(_NUM_KNOWN)
def _known(text: bytes) -> Message:
    return _plain(_decode_turn(text))


def _plain(turn: _Turn) -> Message:
    """Convert a turn; raise ValueError unless the general code would read it unchanged."""
    content, calls = turn.content, turn.tool_calls
    if turn.role not in _PLAIN_ROLES or (content is None and calls is None):
        raise ValueError("not a message of a known role")
    if content is not None and content[:1] == "[" and turn.tool_call_id is None and turn.role in ("assistant", "tool"):
        raise ValueError("perhaps calls as text")
    # `name_tool_turns` would read a later turn of this role as the result.
    for call in calls or ():
        if call.function.name in ("user", "assistant"):
            raise ValueError("a tool with the name of a role")
    return _message(turn)


def _message(turn: _Turn) -> Message:
    calls: tuple[ToolCall, ...] = ()
    if turn.tool_calls:
        calls = tuple([ToolCall(c.function.name, c.function.arguments, c.id, c.type) for c in turn.tool_calls])
    role = turn.role if turn.role in ROLES else usual_role(turn.role)  # the test alone is faster than the call
    return Message(role, turn.content, None, calls, turn.tool_call_id, turn.name)


def usual_role(name: str) -> str:
    """Return the usual name of a role; roles of calls stored as messages are kept until the call joins its turn."""
    return name if name in ROLES or name in CALLS else role_of(name)
