"""Stored messages as chat messages: the shape that most targets have inside.

    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "clock", "arguments": "{}"}}], "reasoning_content": "..."}

The arguments of a call stay the JSON text that they are, unless asked for as objects. Parts that are all text become
text. Messages with nothing but text, an id or a name are in the table as a chat has them, and are copied, not decoded.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from pairwright.jsontext import decode, encode
from pairwright.messages import TEXT, Json, Message, ToolCall, to_chat_message
from pairwright.pairs.exporters.pieces import NOT_PLAIN, rearranged, role_at
from pairwright.pairs.exporters.stream import Context, PairRow, Unfit

_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_ROLE, _CONTENT = b'"role":"', b'"content":'
SEVERAL_MESSAGES = "several_messages_a_side"
TEXT_IS_NO_CHAT = "text_is_no_chat"
_TEXT_ROLE = b'"role":"text"'
_TEXT_PARTS = ("text", "input_text", "output_text")


class Chat(NamedTuple):
    """Messages as the JSON text of a chat, what is worth knowing of them, and what was left out."""

    json: bytes
    num_messages: int
    first_role: str
    last_role: str
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=64)  # the pairs of one group stand together and share prompt and sides
def chat_of(stored: bytes | None, arguments: str = "text") -> Chat:
    """The chat of a stored list of messages; raises Unfit where it is empty or has more than text."""
    if not stored:
        raise Unfit("no_messages")
    num_messages = stored.count(_ROLE)
    if num_messages != stored.count(_CONTENT) or NOT_PLAIN(stored):
        return _made(stored, arguments)
    return _chat(stored, num_messages)


@lru_cache(maxsize=64)
def only_text(stored: bytes | None, role: str = "assistant") -> bytes | None:
    """The text, as it stands in the JSON, of what is one message of this role with text and nothing else; else None."""
    head = b'[{"role":"%b","content":"' % role.encode()
    if not stored or not stored.startswith(head) or stored.count(_ROLE) != 1 or stored.startswith(b'"', len(head)):
        return None
    # nothing may follow the text: a key after it would end with a quote that is no part of the text
    return stored[len(head) - 1 : -2] if stored.count(b'":') == 2 and stored.endswith(b'"}]') else None


def messages_of(stored: bytes | None) -> tuple[Message, ...]:
    return _messages_of(stored) if stored else ()


def has_text(row: PairRow) -> bool:
    """Whether messages of a pair are raw text, which stands in no chat."""
    contents = (row.prompt, row.chosen, row.rejected)
    if not any(stored and _TEXT_ROLE in stored for stored in contents):
        return False
    return any(message.role == TEXT for stored in contents for message in messages_of(stored))


def check_is_chat(row: PairRow) -> None:
    """Raise Unfit where a pair is raw text and the target, which holds chats, would put it into a template."""
    if has_text(row):
        raise Unfit(TEXT_IS_NO_CHAT)


def chat_message(message: Message, *, arguments: str = "text", reasoning_key: str | None = "reasoning_content") -> Json:
    """One message as a chat has it. An empty content is "", which every template takes."""
    decode_call = call_value if arguments == "object" else None
    key = reasoning_key if message.reasoning else None
    return to_chat_message(message, content=text_of(message), arguments=decode_call, reasoning_key=key)


def text_of(message: Message) -> str:
    """The text of a message; Unfit where it has more than text, such as images."""
    if isinstance(message.content, list) and not all(
        part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str) for part in message.content
    ):
        raise Unfit("content_is_not_text")
    return message.text


def call_value(call: ToolCall) -> Json:
    """The arguments of a call as the object that they are; Unfit where they are not a JSON object."""
    try:
        value = decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Unfit("arguments_are_no_json") from None
    if not isinstance(value, dict):
        raise Unfit("arguments_are_no_json")
    return value


def chats_of(row: PairRow, context: Context) -> tuple[Chat, Chat, Chat]:
    """Prompt, chosen and rejected. Each side has a message of the model; that it does not begin with one is noted."""
    if not row.prompt:
        raise Unfit("no_prompt")
    check_is_chat(row)
    arguments = context.options.arguments
    chats = chat_of(row.prompt, arguments), chat_of(row.chosen, arguments), chat_of(row.rejected, arguments)
    if any(side.first_role != "assistant" for side in chats[1:]):
        if any(b'"role":"assistant"' not in side.json for side in chats[1:]):
            raise Unfit("a_side_has_no_assistant_message")
        context.note("a_side_begins_in_the_environment")
    for chat in chats:
        for reason in chat.notes:
            context.note(reason)
    return chats


def note_several_messages(context: Context, chosen: Chat, rejected: Chat) -> None:
    """Count a pair of which the target does not train just what the model wrote: its docstring says what instead."""
    if chosen.num_messages > 1 or rejected.num_messages > 1:
        context.note(SEVERAL_MESSAGES)


def tools_text(row: PairRow) -> bytes:
    """The tools as a JSON string that holds JSON, so that no loader unifies the schemas of different rows."""
    return encode((row.tools or b"[]").decode())


def note_left_out(context: Context, messages: Iterable[Message], *, reasoning: bool) -> None:
    """Count what a target has no place for: `extra`, and the reasoning where `reasoning` says so."""
    for message in messages:
        if message.extra:
            context.note("extra_left_out")
        if reasoning and message.reasoning:
            context.note("reasoning_left_out")


def _made(stored: bytes, arguments: str) -> Chat:
    found = rearranged(stored) if arguments == "text" else None
    if found is not None:
        text, num_messages, has_more = found
        return _chat(text, num_messages, ("extra_left_out",) if has_more else ())
    messages = _messages_of(stored)
    chat = [chat_message(message, arguments=arguments) for message in messages]
    notes = ("extra_left_out",) if any(message.extra for message in messages) else ()
    return Chat(encode(chat), len(messages), messages[0].role, messages[-1].role, notes)


def _chat(text: bytes, num_messages: int, notes: tuple[str, ...] = ()) -> Chat:
    return Chat(text, num_messages, role_at(text, text.find(_ROLE)), role_at(text, text.rfind(_ROLE)), notes)
