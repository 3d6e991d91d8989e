"""Agent Data Protocol, the standard form: `{id, content[{class_, ...}], details}`, one trajectory per record.

    message_action      an answer: content; its description is the reasoning
    api_action          a call: function, kwargs; its description is the text before it
    code_action         a call named after the language, with the code; its description likewise
    text_observation    the result of the previous call; else a user turn, or a system message if its name is "system"
    web_observation, image_observation   a result: page and image, as JSON

A result belongs to the previous call, since the format has no call ids. Text of the source "agent" is an answer given
to the model as context, not generated. task = id. `details` may hold a reward (reward, score, ...).
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    json_text,
    objects,
    optional_mapping,
    optional_text,
    small_fields,
    text,
    text_at,
)
from pairwright.sources.shapes.row_fields import reward_of, tools_of

_CLASSES = frozenset(
    {"message_action", "api_action", "code_action", "text_observation", "web_observation", "image_observation"}
)


def matches(value: Any) -> bool:
    steps = value["content"] if has(value, content=list) else []
    return any(has(step, class_=str) and step["class_"] in _CLASSES for step in steps)


def _take(row: Json) -> Iterator[Json]:
    messages: list[Message] = []
    for number, (where, step) in enumerate(objects(row.get("content"), "content")):
        messages.append(_message(step, where, number, messages[-1] if messages else None))
    details = optional_mapping(row.get("details"), "details")
    tools = details.get("tools", row.get("available_tools"))
    reward, components = reward_of({**details, **row})
    yield {
        "task": identifier(row.get("id")),
        "messages": messages,
        "tools": tools_of({"tools": tools}) if isinstance(tools, list) else [],
        "reward": reward,
        "reward_components": components,
        "row": details,
        "read_fields": frozenset(row),
        "info": small_fields(details, frozenset({"tools"})),
        "model_version": text_at(details, "model_name"),
    }


def _message(step: Json, where: str, number: int, before: Message | None) -> Message:
    """Convert one step; `before` is the message that an observation may answer."""
    kind = text(step.get("class_"), f"{where}.class_")
    note = optional_text(step.get("description"), f"{where}.description") or None
    if kind == "message_action":
        return Message("assistant", text(step.get("content"), f"{where}.content"), reasoning=note)
    if kind in ("api_action", "code_action"):
        if kind == "api_action":
            name, arguments = text(step.get("function"), f"{where}.function"), step.get("kwargs") or {}
        else:
            arguments = {"code": text(step.get("content"), f"{where}.content")}
            name = text(step.get("language"), f"{where}.language")
        return Message("assistant", note, tool_calls=(ToolCall(name, json_text(arguments), f"call_{number}"),))
    if kind not in _CLASSES:
        raise BadRecord(f"{where}.class_: {kind!r} is not a class of the protocol")
    content = step.get("content") if kind == "text_observation" else None
    if content is None:
        content = json_text({key: item for key, item in step.items() if key != "class_" and item is not None})
    content = text(content, f"{where}.content")
    if before is not None and before.tool_calls:
        return Message("tool", content, tool_call_id=before.tool_calls[0].id)
    if step.get("source") == "agent":
        return Message("assistant", content, generated=False)
    return Message("system" if step.get("name") == "system" else "user", content)


FORMAT = RowFormat(
    "agent-data", "Agent Data Protocol trajectories", matches, _take, frozenset(), has_system=False
).format
