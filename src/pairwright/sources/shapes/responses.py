"""Convert items of OpenAI's Responses API, the shape that NeMo Gym and Codex log, to messages.

A conversation is a flat list of items; consecutive items of one model turn are merged into one message:

    message               {role, content: text or parts}; a bare {role, content} is the same
    reasoning             {summary[{text}], content[{text}], encrypted_content}: `reasoning` of the assistant message
    function_call         {name, arguments, call_id}: one of the `tool_calls`; custom_tool_call and local_shell_call too
    function_call_output  {call_id, output}: a tool message; an output that is not text or parts becomes JSON text

Consecutive reasoning, text and calls, in this order, form one assistant message. An item out of this order (text after
a call, a second text) starts a new message, since merging would change the order of the model's output.
Reasoning content takes precedence over its summary, which then goes to `extra`; encrypted reasoning sets a flag there.
An item of any other type becomes an assistant message with `generated` False and the whole item in `extra["item"]`.
Nested lists of items are flattened. Ids and a status of "completed" are dropped.
"""

from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import BadRecord, json_text, kind_of, mapping, optional_text, text
from pairwright.sources.shapes.chat_messages import message_from_chat

_OTHER_CALLS = ("custom_tool_call", "local_shell_call")
TEXT_PARTS = frozenset({"output_text", "input_text", "text"})
_CHAT_KEYS = frozenset({"tool_calls", "tool_call_id", "function_call", "reasoning_content", "name"})
_NOT_KEPT = frozenset(
    {"type", "id", "role", "content", "prompt_token_ids", "generation_token_ids", "generation_log_probs"}
)


def messages_from_items(values: list[Any], where: str) -> list[Message]:
    """Convert a list of items to messages; `where` is its path in the record, for error messages."""
    messages: list[Message] = []
    turn: Json = {}  # the open assistant message: keyword arguments of Message
    for number, item in enumerate(values):
        # A nested list (rare): flatten all items and start again.
        if not isinstance(item, dict):
            lists = (item if isinstance(item, list) else [item] for item in values)
            flat = [mapping(inner, f"{where}[{n}]") for n, items in enumerate(lists) for inner in items]
            return messages_from_items(flat, where)
        kind = item.get("type")
        if kind == "function_call":
            call = _function_call(item, where, number)
            turn["tool_calls"] = (*turn["tool_calls"], call) if "tool_calls" in turn else (call,)
            continue
        if kind == "reasoning":
            if "content" in turn or "tool_calls" in turn:
                _close(turn, messages)
            _add_reasoning(item, turn, where, number)
            continue
        if kind == "message" or (kind is None and "role" in item):
            role, content = item.get("role"), item.get("content")
            num_keys = len(item)
            if role == "assistant":
                # Exactly type, role, content, id and status; counted, since this runs for every message.
                is_usual = num_keys == 5 and kind and content is not None and "id" in item and "status" in item
                if is_usual or _CHAT_KEYS.isdisjoint(item):
                    if "content" in turn or "tool_calls" in turn:
                        _close(turn, messages)
                    _add_text(item, turn, where, number)
                    continue
            # Exactly role, content and perhaps type.
            if type(content) is str and type(role) is str and num_keys == (2 if kind is None else 3):
                message = Message(role, content)
            else:
                message = _any_message(item, where, number)
        elif kind == "function_call_output":
            message = _call_output(item, where, number)
        elif kind in _OTHER_CALLS:
            turn["tool_calls"] = (*turn.get("tool_calls", ()), _other_call(item, f"{where}[{number}]"))
            continue
        else:
            message = _other_item(item, where, number)
        if turn:
            _close(turn, messages)
        messages.append(message)
    if turn:
        _close(turn, messages)
    return messages


def _close(turn: Json, messages: list[Message]) -> None:
    messages.append(Message("assistant", **turn))
    turn.clear()


def _function_call(item: Json, where: str, number: int) -> ToolCall:
    name, arguments, call_id = item.get("name"), item.get("arguments"), item.get("call_id")
    if type(name) is str and type(arguments) is str and type(call_id) is str:
        return ToolCall(name, arguments, call_id)
    where = f"{where}[{number}]"
    return ToolCall(
        name=text(name, f"{where}.name"),
        arguments="" if arguments is None else json_text(arguments),
        id=_call_id(item),
    )


def _other_call(item: Json, where: str) -> ToolCall:
    """Convert a custom tool call (free-text input) or a local shell call."""
    kind = item["type"]
    if kind == "custom_tool_call":
        value = item.get("input")
        name = text(item.get("name"), f"{where}.name")
        return ToolCall(name, "" if value is None else json_text(value), _call_id(item), "custom")
    return ToolCall("local_shell", json_text(item.get("action")), _call_id(item), "local_shell")


def _call_output(item: Json, where: str, number: int) -> Message:
    output, call_id = item.get("output"), item.get("call_id")
    if type(call_id) is not str:
        call_id = _call_id(item)
    if type(output) is str or output is None:
        return Message("tool", output, tool_call_id=call_id)
    if isinstance(output, list) and output and all(isinstance(part, dict) and "type" in part for part in output):
        content, extra = _content(output, f"{where}[{number}].output")
        return Message("tool", content, tool_call_id=call_id, extra=extra)
    return Message("tool", json_text(output), tool_call_id=call_id)


def _call_id(item: Json) -> str | None:
    value = item.get("call_id")
    value = item.get("id") if value is None else value
    return None if value is None else json_text(value)


def _any_message(item: Json, where: str, number: int) -> Message:
    """Convert a message with parts, additional keys, or chat fields such as tool calls."""
    where = f"{where}[{number}]"
    if not _CHAT_KEYS.isdisjoint(item):
        return message_from_chat({key: value for key, value in item.items() if key not in ("type", "id")}, where)
    content, extra = _content(item.get("content"), f"{where}.content")
    return Message(text(item.get("role"), f"{where}.role"), content, extra={**extra, **_leftover(item)})


def _add_text(item: Json, turn: Json, where: str, number: int) -> None:
    """Add the text of an assistant item to the open turn, with a fast path for a single completed `output_text`."""
    content = item.get("content")
    # Usual: one part with type, text, and perhaps annotations and logprobs, which are not kept.
    if type(content) is list and len(content) == 1 and type(part := content[0]) is dict:
        text = part.get("text")
        if type(text) is str and part.get("type") == "output_text" and not part.get("annotations") and len(part) <= 4:
            content = text
    extra: Json = {}
    if type(content) is not str:
        content, extra = _content(content, f"{where}[{number}].content")
    turn["content"] = content
    # Not the five usual keys, or not completed: keep leftover fields.
    if extra or len(item) != 5 or item.get("status") != "completed" or "id" not in item:
        extra |= _leftover(item)
        if extra:
            turn["extra"] = {**turn.get("extra", {}), **extra}


def _add_reasoning(item: Json, turn: Json, where: str, number: int) -> None:
    """Add a reasoning item to the open turn: content or else summary, and flags in `extra`."""
    full, summary = item.get("content"), item.get("summary")
    full = _join_reasoning(full, f"{where}[{number}].content") if full else ""
    summary = _join_reasoning(summary, f"{where}[{number}].summary") if summary else ""
    thought = full or summary
    if thought:
        turn["reasoning"] = f"{turn['reasoning']}\n{thought}" if "reasoning" in turn else thought
    extra: Json = {}
    if full and summary and full != summary:
        extra["reasoning_summary"] = summary
    if item.get("encrypted_content"):
        extra["encrypted_reasoning"] = True
    if extra or not thought:  # empty reasoning still opens the turn, so that no item is lost
        turn["extra"] = {**turn.get("extra", {}), **extra}


def _join_reasoning(parts: Any, where: str) -> str:
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        raise BadRecord(f"{where}: expected a list of parts, got {kind_of(parts)}")
    texts = [
        part if isinstance(part, str) else optional_text(mapping(part, where).get("text"), where) for part in parts
    ]
    return "\n".join([part for part in texts if part])


def _content(value: Any, where: str) -> tuple[str | list[Json] | None, Json]:
    """Return content and `extra`: a single text part becomes text, others stay parts, a refusal sets a flag."""
    if value is None or isinstance(value, str):
        return value, {}
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRecord(f"{where}: expected text or a list of parts, got {kind_of(value)}")
    extra: Json = {}
    parts: list[Json] = []
    for number, part in enumerate(value):
        part = {"type": "text", "text": part} if isinstance(part, str) else mapping(part, f"{where}[{number}]")
        kind = part.get("type")
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            part = {"type": "output_text", "text": part["refusal"]}
            extra["refusal"] = True
        elif isinstance(kind, str) and kind in TEXT_PARTS:  # log-probabilities of parts are not read
            part = {key: item for key, item in part.items() if key != "logprobs" and (key != "annotations" or item)}
        parts.append(part)
    # A single text without other fields becomes plain text; non-empty `annotations` keep it a part.
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and isinstance(parts[0]["text"], str):
        return parts[0]["text"], extra
    return parts, extra


def _leftover(item: Json) -> Json:
    """Return the fields of a message item that have no counterpart in Message."""
    return {
        key: value
        for key, value in item.items()
        if key not in _NOT_KEPT and value is not None and (key != "status" or value != "completed")
    }


def _other_item(item: Json, where: str, number: int) -> Message:
    """Convert the output of another call type to a tool message, or wrap an item of unknown type."""
    kind = item.get("type")
    if not isinstance(kind, str):
        raise BadRecord(f"{where}[{number}]: an item with neither a type nor a role")
    if kind.endswith("_output") and "call_id" in item:
        return _call_output(item, where, number)
    return Message("assistant", generated=False, extra={"item": item})
