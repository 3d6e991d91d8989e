"""Stored messages rearranged into chat messages, with their texts copied as they stand in the JSON, never decoded.

A message with nothing but text, an id or a name is in the table as a chat has it. Of the others the parts are moved.
What needs a look inside a text (parts that are not text, arguments as objects) is left to chat.py.
"""

import re

import msgspec
from msgspec import UNSET, Raw, UnsetType

# A key cannot be mistaken: inside text its quotes would be escaped.
NOT_PLAIN = re.compile(rb'"(?:tool_calls|reasoning|generated|extra)":|"content":\[').search
_CONTENT, _ROLE = b'"content":', b'"role":"'
_NO_TEXT = Raw(b'""')
_FUNCTION = Raw(b'"function"')


class _Call(msgspec.Struct, gc=False):
    name: Raw
    arguments: Raw
    id: Raw | UnsetType = UNSET
    type: Raw = _FUNCTION


class _Message(msgspec.Struct, gc=False):
    role: Raw
    content: Raw = _NO_TEXT
    reasoning: Raw | UnsetType = UNSET
    tool_calls: tuple[_Call, ...] = ()
    tool_call_id: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    extra: Raw | UnsetType = UNSET


class _Function(msgspec.Struct, gc=False):
    name: Raw
    arguments: Raw


class _ChatCall(msgspec.Struct, gc=False):
    id: Raw | UnsetType
    type: Raw
    function: _Function


class _ChatMessage(msgspec.Struct, gc=False):
    role: Raw
    content: Raw
    reasoning_content: Raw | UnsetType
    tool_calls: list[_ChatCall] | UnsetType
    tool_call_id: Raw | UnsetType
    name: Raw | UnsetType


_listed = msgspec.json.Decoder(list[Raw]).decode
_message = msgspec.json.Decoder(_Message).decode
_encode = msgspec.json.Encoder().encode


def rearranged(stored: bytes) -> tuple[bytes, int, bool] | None:
    """Messages as the JSON text of a chat, how many there are, and whether something was left out.

    None where a content is a list of parts.
    """
    made: list[bytes] = []
    has_more = False
    for raw in _listed(stored):
        text = bytes(raw)
        if NOT_PLAIN(text) or _CONTENT not in text:
            message = _message(text)
            if bytes(message.content)[:1] == b"[":
                return None
            has_more |= message.extra is not UNSET
            text = _encode(_chat_message(message))
        made.append(text)
    return b"[" + b",".join(made) + b"]", len(made), has_more


def role_at(stored: bytes, position: int) -> str:
    """The role that stands at this place of stored messages, or of a chat."""
    start = position + len(_ROLE)
    return stored[start : stored.index(b'"', start)].decode()


def _chat_message(message: _Message) -> _ChatMessage:
    calls = [_ChatCall(call.id, call.type, _Function(call.name, call.arguments)) for call in message.tool_calls]
    is_silent = message.reasoning is UNSET or bytes(message.reasoning) == b'""'
    return _ChatMessage(
        message.role,
        message.content,
        UNSET if is_silent else message.reasoning,
        calls or UNSET,
        message.tool_call_id,
        message.name,
    )
