"""Messages and tools of Inspect samples.

content      text, or parts; parts of type reasoning become `reasoning`
tool_calls   {id, function, arguments{}, parse_error}; arguments as JSON text
tool         {tool_call_id, function, content, error{type, message}}: where there is an error, its message is what
             the model was given, so it is the content
source       "generate" or "input": an assistant message that was given is not generated
"""

from typing import Any

from pairwright.messages import Json, Message, ToolCall
from pairwright.sources.chat import content_from_chat
from pairwright.sources.fields import json_text, mapping, optional_items, optional_text, text

_KINDS = {"parsing": "invalid_arguments", "timeout": "timeout", "file_not_found": "file_not_found"}


def message_from_inspect(value: Any, where: str) -> Message:
    turn = mapping(value, where)
    role = text(turn.get("role"), f"{where}.role")
    content = content_from_chat(turn.get("content"), f"{where}.content")
    extra: Json = {}
    reasoning = optional_text(turn.get("reasoning"), f"{where}.reasoning")  # of old logs
    if isinstance(content, list):
        content, thoughts = _without_reasoning(content)
        reasoning = "\n\n".join(thoughts) if thoughts else reasoning
    error = turn.get("error")
    if role == "tool" and isinstance(error, dict):
        extra["error"] = error.get("type") if isinstance(error.get("type"), str) else "unknown"
        if isinstance(error.get("message"), str) and error["message"] != content:
            if content:
                extra["content"] = content
            content = error["message"]
    calls = []
    parse_errors: Json = {}
    for number, call in enumerate(optional_items(turn.get("tool_calls"), f"{where}.tool_calls")):
        here = f"{where}.tool_calls[{number}]"
        calls.append(_call(mapping(call, here), here))
        if isinstance(call.get("parse_error"), str):
            parse_errors[calls[-1].id or str(number)] = call["parse_error"]
    if parse_errors:
        extra["parse_errors"] = parse_errors
    return Message(
        role,
        content,
        reasoning,
        tuple(calls),
        tool_call_id=optional_text(turn.get("tool_call_id"), f"{where}.tool_call_id"),
        name=optional_text(turn.get("function"), f"{where}.function") if role == "tool" else None,
        generated=False if role == "assistant" and turn.get("source") == "input" else None,
        extra=extra,
    )


def error_kind(position: int, message: Message) -> str | None:
    kind = message.extra.get("error")
    if kind is None:
        return None
    if kind == "parsing" and message.text.startswith("Tool ") and "not found" in message.text[:300]:
        return "unknown_tool"
    return _KINDS.get(kind, "tool_error")


def resolved(value: Any, stored: Json) -> Any:
    """The value with every text that is a reference replaced by what it refers to."""
    if isinstance(value, str):
        return stored.get(value, value)
    if not stored:
        return value
    if isinstance(value, list):
        return [resolved(item, stored) for item in value]
    if isinstance(value, dict):
        return {key: resolved(item, stored) for key, item in value.items()}
    return value


def tools_of_events(sample: Json, stored: Json) -> list[Json]:
    """The tools that the model was offered, by name, in the requests whose answers are in the conversation."""
    ids = {turn.get("id") for turn in _dicts(sample.get("messages")) if isinstance(turn.get("id"), str)}
    events = sample.get("events")
    if events is None and isinstance(sample.get("transcript"), dict):
        events = sample["transcript"].get("events")
    tools: dict[str, Json] = {}
    for event in _dicts(events):
        if event.get("event") != "model" or (ids and _answer_id(event) not in ids):
            continue
        for tool in _dicts(event.get("tools")):
            if isinstance(tool.get("name"), str) and tool["name"] not in tools:
                tools[tool["name"]] = resolved(tool, stored)
    return list(tools.values())


def _answer_id(event: Json) -> str | None:
    output = event.get("output")
    choices = _dicts(output.get("choices")) if isinstance(output, dict) else []
    message = choices[0].get("message") if choices else None
    answer_id = message.get("id") if isinstance(message, dict) else None
    return answer_id if isinstance(answer_id, str) else None


def _call(call: Json, where: str) -> ToolCall:
    arguments = call.get("arguments")
    return ToolCall(
        name=text(call.get("function"), f"{where}.function"),
        arguments="" if arguments is None else json_text(arguments),
        id=optional_text(call.get("id"), f"{where}.id"),
    )


def _without_reasoning(parts: list[Json]) -> tuple[str | list[Json] | None, list[str]]:
    thoughts = []
    others = []
    for part in parts:
        if part.get("type") == "reasoning":
            said = part.get("summary") if part.get("redacted") is True else part.get("reasoning")
            thoughts += [said] if isinstance(said, str) and said else []
        else:
            others.append(part)
    if len(others) == 1 and others[0].get("type") == "text" and isinstance(others[0].get("text"), str):
        return str(others[0]["text"]), thoughts
    return others or None, thoughts


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
