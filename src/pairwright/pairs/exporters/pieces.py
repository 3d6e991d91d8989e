"""Stored messages rearranged into chat messages, with their texts copied as they stand in the JSON, never decoded.

What needs a look inside a text (parts that are not text, arguments as objects) is left to chat.py.
"""

import msgspec
from msgspec import Raw

_NONE = Raw(b"")
_NOTHING = (b"", b"null", b'""')


class _Call(msgspec.Struct):
    name: Raw
    arguments: Raw
    id: Raw = _NONE
    type: Raw = Raw(b'"function"')


class _Message(msgspec.Struct):
    role: Raw
    content: Raw = _NONE
    reasoning: Raw = _NONE
    tool_calls: tuple[_Call, ...] = ()
    tool_call_id: Raw = _NONE
    name: Raw = _NONE
    extra: Raw = _NONE


_messages = msgspec.json.Decoder(tuple[_Message, ...]).decode


def rearranged(stored: bytes) -> tuple[bytes, list[bytes], bool] | None:
    """Messages as the JSON text of a chat, their roles, and whether something else was left out.

    None where a content is a list of parts.
    """
    messages = _messages(stored)
    if any(bytes(message.content).startswith(b"[") for message in messages):
        return None
    text = b"[" + b",".join(map(_chat_message, messages)) + b"]"
    return text, [bytes(message.role)[1:-1] for message in messages], any(len(message.extra) for message in messages)


def _chat_message(message: _Message) -> bytes:
    content = bytes(message.content)
    pieces = [b'{"role":', message.role, b',"content":', b'""' if content in _NOTHING else content]
    if bytes(message.reasoning) not in _NOTHING:
        pieces += [b',"reasoning_content":', message.reasoning]
    if message.tool_calls:
        pieces += [b',"tool_calls":[', b",".join(map(_chat_call, message.tool_calls)), b"]"]
    for key, value in ((b',"tool_call_id":', message.tool_call_id), (b',"name":', message.name)):
        if bytes(value) not in (b"", b"null"):
            pieces += [key, value]
    return b"".join((*pieces, b"}"))


def _chat_call(call: _Call) -> bytes:
    given = b"" if bytes(call.id) in (b"", b"null") else b'"id":%b,' % bytes(call.id)
    return b'{%b"type":%b,"function":{"name":%b,"arguments":%b}}' % (
        given, bytes(call.type), bytes(call.name), bytes(call.arguments)
    )  # fmt: skip
