"""The canonical form of messages: when two prompts, or two completions, are the same.

Two runs of one agent are rarely identical as text: call ids are random, arguments are spaced differently, `null`
content and `""` mean the same. The canonical form keeps what the model saw or did and drops how it was serialized:

- content: text parts become text; None and "" are equal
- arguments: JSON objects with sorted keys and no white space; text that is not JSON stays as it is
- call ids: replaced by their order of appearance, so that a result still belongs to its call
- `generated`, `extra`: left out
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import xxhash

from pairwright.records.messages import Json, Message, as_message

_SORTED = msgspec.msgpack.Encoder(order="sorted")  # faster than JSON, since texts need no escapes
pack = _SORTED.encode
_encode_json = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.decode
digest = xxhash.xxh3_128_hexdigest


def canonical_messages(messages: Iterable[Message | Json]) -> list[Any]:
    """Messages as plain JSON values that are equal exactly if the messages mean the same."""
    call_numbers: dict[str, int] = {}
    return [
        _canonical(message if type(message) is Message else as_message(message), call_numbers) for message in messages
    ]


def content_hash(*values: Any) -> str:
    """128 bits, as hex, of JSON values; key order does not matter."""
    try:
        return digest(pack(values))
    except OverflowError:  # an integer of more than 64 bits, which MessagePack does not have
        return digest(_encode_json(values))


def prompt_hash(prompt: Iterable[Message | Json], tools: Iterable[Json] = ()) -> str:
    """Hash a prompt: equal exactly for prompts that may be compared, the same conversation with the same tools.

    Args:
        prompt: Messages, or chat dicts.
        tools: Schemas of the tools that the model was offered.

    Returns:
        32 hex digits.

    >>> import pairwright as pw
    >>> pw.prompt_hash([pw.Message("user", "hi")]) == pw.prompt_hash([{"role": "user", "content": "hi"}])
    True
    """
    return content_hash(canonical_messages(prompt), list(tools))


def canonical_arguments(arguments: str) -> Any:
    """The value of a call's arguments, or their text where they are not JSON."""
    try:
        return _decode(arguments)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return arguments


def _canonical(message: Message, call_numbers: dict[str, int]) -> list[Any]:
    content = message.content
    if type(content) is not str:
        content = canonical_content(content)
    if not message.tool_calls and message.tool_call_id is None:
        return [message.role, content, message.reasoning or "", message.name]
    calls = []
    for call in message.tool_calls:
        # ids are numbered across the whole conversation, in order of first appearance
        number = call_numbers.setdefault(call.id, len(call_numbers)) if call.id is not None else None
        calls.append([number, call.name, canonical_arguments(call.arguments)])
    call_id = message.tool_call_id  # a result without a known call keeps its id as text
    result_of = None if call_id is None else call_numbers.get(call_id, call_id)
    return [message.role, content, message.reasoning or "", message.name, calls, result_of]


def canonical_content(content: str | list[Json] | None) -> str | list[Json]:
    """The content as text, text parts joined; the list of parts if some are not text."""
    return (_text_or_parts(content) if isinstance(content, list) else content) or ""


def _text_or_parts(parts: list[Json]) -> str | list[Json]:
    if all(part.get("type") in ("text", "input_text", "output_text") and "text" in part for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return parts
