"""OpenAI chat messages, the message shape used by most formats.

Messages are kept in full: text or parts, tool calls with their arguments as the original JSON text, reasoning under any
of its common names, and all other fields in `extra`. Also marks turns shared between branches of a conversation.
"""

import math
from typing import Any

import msgspec

from pairwright.records.messages import TURN_WEIGHT, Json, Message, ToolCall, canonical_arguments
from pairwright.sources.fields import BadRecord, items, json_text, mapping, optional_items, optional_text, text
from pairwright.sources.shapes.plain_messages import usual_chat, usual_role

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_KNOWN = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "name", "function_call", "refusal", *REASONING_KEYS}
)
# Other names of the content: a message without `content` that has one of them is refused, so that no text is lost.
_OTHER_BODIES = ("parts", "value", "body", "message", "output", "system_prompt", "prompt", "response", "completion")
SHARED_MARK = "shared_with_earlier_branch"


def message_from_chat(value: Any, where: str = "message", *, generated: bool | None = None) -> Message:
    """Read one chat message in the shape of OpenAI's API and chat templates.

    Args:
        value: A dict with `role`, `content`, and perhaps `tool_calls`, `tool_call_id`, `name`, `reasoning_content`.
        where: Its path in the record, for error messages.
        generated: Whether the model generated it; by default, assistant messages are generated.

    >>> from pairwright import message_from_chat
    >>> message_from_chat({"role": "assistant", "content": "4"}).text
    '4'
    """
    value = mapping(value, where)
    role = usual_role(text(value.get("role"), f"{where}.role"))
    calls = [
        call_from_chat(call, f"{where}.tool_calls[{number}]")
        for number, call in enumerate(optional_items(value.get("tool_calls"), f"{where}.tool_calls"))
    ]
    if value.get("function_call") is not None:  # predecessor of tool_calls, without an id
        calls.append(_function(value["function_call"], f"{where}.function_call", call_id=None))
    # The first key that holds text.
    reasoning = next((value[key] for key in REASONING_KEYS if isinstance(value.get(key), str)), None)
    parts = content_from_chat(value.get("content"), f"{where}.content")
    if isinstance(parts, list) and role == "assistant":
        parts = _take_calls(parts, calls, f"{where}.content")
    extra = {key: item for key, item in value.items() if key not in _KNOWN and item is not None}
    for key in ("refusal", *REASONING_KEYS):  # kept in `extra` unless it is plain text, which is read above
        if value.get(key) is not None and value[key] != reasoning:
            extra[key] = value[key]
    if value.get("content") is None and not calls and reasoning is None:
        parts = _content_elsewhere(extra, role, where)
    return Message(
        role=role,
        content=parts,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        tool_call_id=optional_text(value.get("tool_call_id"), f"{where}.tool_call_id"),
        name=optional_text(value.get("name"), f"{where}.name"),
        generated=generated,
        extra=extra,
    )


def _take_calls(parts: list[Json], calls: list[ToolCall], where: str) -> list[Json] | None:
    """Return the parts without those of type `tool_call`, which are added to `calls` unless already there.

    Session converters write a call both as a part and under `tool_calls`. A template would render the part a second
    time, or refuse it.
    """
    others: list[Json] = []
    listed = list(calls)
    for number, part in enumerate(parts):
        at = f"{where}[{number}]"
        if part.get("type") != "tool_call" or not isinstance(part.get("name"), str):
            others.append(part)
            continue
        call = _function(
            part, at, call_id=optional_text(part.get("tool_call_id", part.get("id")), f"{at}.tool_call_id")
        )
        same = next((other for other in listed if (other.id, other.name) == (call.id, call.name)), None)
        if same is None:
            calls.append(call)
            continue
        if canonical_arguments(same.arguments) != canonical_arguments(call.arguments):
            raise BadRecord(f"{at}: this call is also under tool_calls, with other arguments")
        listed.remove(same)
    return others if others or not parts else None


def _content_elsewhere(extra: Json, role: str, where: str) -> str | None:
    """Pop `text`, or SWE-agent's `system_prompt`, of a message without content; refuse content under any other name."""
    for key in ("text", *(("system_prompt",) if role == "system" else ())):
        if isinstance(extra.get(key), str):
            return str(extra.pop(key))
    name = next((key for key in _OTHER_BODIES if isinstance(extra.get(key), str | list) and extra[key]), None)
    if name is not None:
        raise BadRecord(f"{where}: no content, and {name!r} is not read as such")
    return None


def messages_from_chat(value: Any, where: str) -> list[Message]:
    listed = items(value, where)
    usual = usual_chat(listed)
    if usual is not None:
        return usual
    return [message_from_chat(item, f"{where}[{number}]") for number, item in enumerate(listed)]


def is_left_out(message: Any) -> bool:
    """Whether fine-tuning data mark an assistant message as context, not generated: OpenAI's `weight`, `train`
    (axolotl), `loss` (ms-swift) or `loss_weight` (LLaMA-Factory) is 0 or false.

    >>> is_left_out({"role": "assistant", "content": "hm", "train": False}), is_left_out({"role": "assistant"})
    (True, False)
    """
    return any(mark == 0 for mark in _weights_of(message).values())


def read_weight(message: Any) -> Json:
    """Return the `extra` fields of a message whose weight in fine-tuning data is neither 0 nor 1.

    >>> read_weight({"role": "assistant", "content": "hm", "weight": 0.5})
    {'turn_weight': 0.5}
    """
    marks = {key: float(mark) for key, mark in _weights_of(message).items() if mark not in (0, 1)}
    for key, mark in marks.items():
        if not 0 < mark < math.inf:
            raise BadRecord(f"{key}: got {mark}, expected 0 (context), 1 (trained), or a positive weight")
    if len(set(marks.values())) > 1:
        raise BadRecord(f"{' and '.join(marks)}: got different weights {marks}; expected one")
    return {TURN_WEIGHT: max(marks.values())} if marks else {}


def _weights_of(message: Any) -> dict[str, float]:
    """Return the numeric and boolean weights of an assistant message, by key."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return {}
    values: Json = {key: message.get(key) for key in ("weight", "train", "loss", "loss_weight")}
    return {key: mark for key, mark in values.items() if type(mark) in (bool, int, float)}


def with_finish_reason(messages: list[Message], reason: Any) -> list[Message]:
    """Add the reason why the model stopped, if it is text, to the last message."""
    if not messages or not isinstance(reason, str):
        return messages
    last = messages[-1]
    return [*messages[:-1], msgspec.structs.replace(last, extra={**last.extra, "finish_reason": reason})]


def content_from_chat(value: Any, where: str) -> str | list[Json] | None:
    """Return text, parts or None. Strings in a list become text parts; an object without a `type` becomes JSON text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):  # a part, or the object that a tool returned
        return [value] if "type" in value else json_text(value)
    parts = []
    for number, part in enumerate(items(value, where)):
        if type(part) is not dict:
            part = {"type": "text", "text": part} if isinstance(part, str) else mapping(part, f"{where}[{number}]")
        elif part.get("type") == "tool_output" and isinstance(part.get("text"), str):
            part = {**part, "type": "text"}  # a type of result text that chat templates do not know
        parts.append(part)
    return parts


def call_from_chat(value: Any, where: str) -> ToolCall:
    value = mapping(value, where)
    call_id = optional_text(value.get("id"), f"{where}.id")
    if "function" in value:
        return _function(value["function"], f"{where}.function", call_id=call_id, call_type=value.get("type"))
    # Some programs log a call without the `function` level.
    if "name" in value:
        return _function(value, where, call_id=call_id)
    raise BadRecord(f"{where}: a tool call without a function name")


def read_call(
    fields: Json,
    where: str,
    *,
    name: str = "name",
    arguments: str = "arguments",
    call_id: str = "id",
    missing: str = "",
) -> ToolCall:
    """Read a call from the fields with these names; `missing` is the text of arguments that are null or absent."""
    value = fields.get(arguments)
    return ToolCall(
        text(fields.get(name), f"{where}.{name}"),
        missing if value is None else json_text(value),
        optional_text(fields.get(call_id), f"{where}.{call_id}"),
    )


def tools_from_chat(value: Any, where: str) -> list[Json]:
    """Return tool schemas, checking that each is an object; bare function schemas are left unchanged."""
    tools = optional_items(value, where)
    for number, tool in enumerate(tools):
        if type(tool) is not dict:
            mapping(tool, f"{where}[{number}]")
    return tools


def _function(value: Any, where: str, *, call_id: str | None, call_type: Any = None) -> ToolCall:
    value = mapping(value, where)
    arguments = value.get("arguments")
    return ToolCall(
        name=text(value.get("name"), f"{where}.name"),
        arguments="" if arguments is None else json_text(arguments),
        id=call_id,
        type=call_type if isinstance(call_type, str) else "function",
    )


def as_context(message: Message) -> Message:
    """Return a turn that an earlier branch trains as context of this branch: marked as not generated."""
    if not message.is_generated:
        return message
    return msgspec.structs.replace(message, generated=False, extra={**message.extra, SHARED_MARK: True})
