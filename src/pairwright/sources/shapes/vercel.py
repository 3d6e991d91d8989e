"""Messages of the Vercel AI SDK, versions 4 and 5.

    model message   {role, content: text or parts}: parts of type text, reasoning, tool-call{toolCallId, toolName,
                    args | input}, tool-result{toolCallId, toolName, result | output, isError}, image, file
    UI message      {role, parts[]}: text, reasoning, step-start, tool-<name>{toolCallId, state, input, output,
                    errorText}, dynamic-tool, tool-invocation{toolInvocation{...}}
    tool calls      [{toolCallId, toolName, args | input}], the response of a call

A tool turn holds several results; each becomes a tool message. A UI message holds a whole loop of calls and results: it
becomes one assistant message for each step, followed by its results. Provider options are dropped.
"""

from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import (
    BadRecord,
    has,
    items,
    json_text,
    mapping,
    objects,
    optional_objects,
    optional_text,
    text,
    type_of,
)
from pairwright.sources.shapes.chat_messages import read_call

_PART_TYPES = frozenset({"tool-call", "tool-result", "redacted-reasoning"})
_DROPPED = frozenset({"providerOptions", "providerMetadata", "experimental_providerMetadata", "state"})


def turn_from_vercel(message: Json, where: str) -> list[Message]:
    if isinstance(message.get("parts"), list):
        return _from_ui(message, where)
    role = text(message.get("role"), f"{where}.role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [Message(role, content)]
    return _from_parts(role, items(content, f"{where}.content"), f"{where}.content")


def calls_from_vercel(calls: Any, where: str) -> tuple[ToolCall, ...]:
    """Convert tool calls {toolCallId, toolName, args | input}."""
    return tuple(_call(call, place) for place, call in optional_objects(calls, where))


def tools_from_vercel(tools: Any, where: str) -> list[Json]:
    """Return tools as function schemas; provider tools ({type: provider-defined}) are unchanged."""
    schemas: list[Json] = []
    for _, tool in optional_objects(tools, where):
        parameters = tool.get("inputSchema", tool.get("parameters"))
        if tool.get("type") == "function" and "function" not in tool and isinstance(parameters, dict):
            function = {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}
            tool = {"type": "function", "function": {**function, "parameters": parameters}}
        schemas.append(tool)
    return schemas


def is_vercel_message(value: Any) -> bool:
    """Whether the value is a message with parts specific to this SDK."""
    if has(value, role=str, content=list) and any(type_of(part) in _PART_TYPES for part in value["content"]):
        return True
    return has(value, role=str, parts=list) and any(
        _is_ui_tool(part) or type_of(part) == "step-start" for part in value["parts"]
    )


def are_vercel_calls(value: Any) -> bool:
    """Whether the value is a list of tool calls without a message around them."""
    return isinstance(value, list) and bool(value) and all(has(call, "toolCallId", "toolName") for call in value)


def _from_parts(role: str, content: list[Any], where: str) -> list[Message]:
    """Convert the parts of a model message; results become tool messages, after the calls of an assistant turn."""
    results: list[Message] = []
    parts: list[Json] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    extra: Json = {}
    for at, part in objects(content, where):
        kind = part.get("type")
        if kind == "tool-result":
            results.append(_result(part, at))
        elif kind == "tool-call":
            calls.append(_call(part, at))
        elif kind == "reasoning" and isinstance(part.get("text"), str):
            thoughts.append(part["text"])
        elif kind == "redacted-reasoning":
            extra["redacted_thinking"] = True
        elif isinstance(kind, str):
            parts.append({key: item for key, item in part.items() if key not in _DROPPED})
        else:
            raise BadRecord(f"{at}: a part without a type")
    if not (parts or thoughts or calls or extra) and results:
        return results
    message = Message(role, _plain(parts), "\n\n".join(thoughts) if thoughts else None, tuple(calls), extra=extra)
    # Results inside an assistant turn come from tools that the provider ran.
    return [message, *results] if role == "assistant" else [*results, message]


def _from_ui(message: Json, where: str) -> list[Message]:
    """Convert a UI message: each step of an assistant's message becomes a turn, followed by its results."""
    role = text(message.get("role"), f"{where}.role")
    steps: list[list[Any]] = [[]]
    for at, part in objects(message["parts"], f"{where}.parts"):
        kind = part.get("type")
        if kind == "step-start":
            steps.append([])
        elif _is_ui_tool(part):
            steps[-1] += _ui_tool(part, at)
        elif isinstance(kind, str) and not kind.startswith(("data-", "source")):  # for the page, not from the model
            # Without step marks, text after a result starts the next step.
            if any(type_of(other) == "tool-result" for other in steps[-1]):
                steps.append([])
            steps[-1].append(part)
    return [turn for step in steps if step for turn in _from_parts(role, step, f"{where}.parts")]


def _ui_tool(part: Json, where: str) -> list[Json]:
    """Return a tool part of a UI message as a call and, if it has one, its result."""
    if part.get("type") == "tool-invocation":
        part = mapping(part.get("toolInvocation"), f"{where}.toolInvocation")
        name = part.get("toolName")
    else:
        name = part.get("toolName") or str(part["type"]).removeprefix("tool-")
    arguments = part.get("input", part.get("args"))
    call = {"type": "tool-call", "toolCallId": part.get("toolCallId"), "toolName": name, "input": arguments}
    state = part.get("state")
    answer = {"type": "tool-result", "toolCallId": part.get("toolCallId"), "toolName": name}
    if state == "output-error":
        return [call, {**answer, "output": {"type": "error-text", "value": part.get("errorText")}}]
    if state in ("output-available", "result"):
        return [call, {**answer, "result": part.get("output", part.get("result"))}]
    return [call]


def _is_ui_tool(part: Any) -> bool:
    kind = type_of(part)
    return kind in ("tool-invocation", "dynamic-tool") or (kind.startswith("tool-") and "toolCallId" in part)


def _call(part: Json, where: str) -> ToolCall:
    key = "input" if "input" in part else "args"
    return read_call(part, where, name="toolName", arguments=key, call_id="toolCallId")


def _result(part: Json, where: str) -> Message:
    """Convert a result; version 5 wraps it: {type: text | json | error-text | error-json | content, value}."""
    value = part.get("result", part.get("output"))
    is_error = part.get("isError") is True
    if "result" not in part and has(value, "value", type=str):
        is_error = is_error or value["type"].startswith("error")
        parts = value["value"] if value["type"] == "content" else None
        value = parts if isinstance(parts, list) and all(type_of(one) for one in parts) else json_text(value["value"])
    elif value is not None and not isinstance(value, str):
        value = json_text(value)
    return Message(
        "tool",
        content=_plain(value) if isinstance(value, list) else value,
        tool_call_id=optional_text(part.get("toolCallId"), f"{where}.toolCallId"),
        name=optional_text(part.get("toolName"), f"{where}.toolName"),
        extra={"is_error": True} if is_error else {},
    )


def _plain(parts: list[Json]) -> str | list[Json] | None:
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and isinstance(parts[0]["text"], str):
        return parts[0]["text"]
    return parts or None
