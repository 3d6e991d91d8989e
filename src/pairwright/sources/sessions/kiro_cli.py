"""Sessions of Kiro CLI and its predecessor, Amazon Q Developer.

    session   JSON Lines {version, kind: Prompt | AssistantMessage | ToolResults | ..., data{message_id, content[]}}
              (older: content next to kind), with blocks {kind: text | toolUse | toolResult | thinking | json, data}
    saved     {conversation_id, history[{user{content}, assistant}], tools}, from `/save` and Amazon Q's database

A result is linked to its call by toolUseId. The line "Clear" begins a new conversation, "Compaction" replaces the
context by its summary. The system prompt is not logged, and tools only in saved conversations: prompts are incomplete.
There is no reward. The session id is the name of the file; a saved conversation has its id.
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import (
    has,
    json_text,
    mapping,
    objects,
    objects_in,
    optional_mapping,
    optional_objects,
    optional_text,
    text,
    text_at,
    texts_of,
)
from pairwright.sources.format import Origin
from pairwright.sources.shapes.anthropic import call_block, result_block, text_block, thought_block
from pairwright.sources.shapes.session_entries import (
    Entry,
    Session,
    SessionFormat,
    summary_message,
    turn_messages,
    user_messages,
)

_KINDS = frozenset({"Prompt", "AssistantMessage", "ToolResults"})


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        exchanges = objects_in(value.get("history")) if "conversation_id" in value else []
        return any(has(one, user=dict, assistant=dict) for one in exchanges)
    return any(str(line.get("kind")) in _KINDS for line in objects_in(value))


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    session.id = origin.path.stem
    if isinstance(value, dict):
        session.model = text_at(value, "model_info.model_id", "model")
        # Tools are grouped by origin, e.g. a server; the origin is dropped.
        groups = optional_mapping(value.get("tools"), "tools").values()
        session.tools = [_tool(tool) for group in groups for _, tool in objects(group, "tools")]
    return value


def _take(line: Json, session: Session) -> Entry | None:
    if "user" in line:
        return Entry(_exchange(line))
    kind = text(line.get("kind"), "kind")
    data = line if "content" in line else optional_mapping(line.get("data"), "data")
    if kind == "AssistantMessage":
        return Entry(turn_messages(_blocks(data.get("content"), "content"), "content"))
    # Prompts and tool results: both are user turns, as in Anthropic's messages.
    if kind in _KINDS:
        return Entry(user_messages(_blocks(data.get("content"), "content"), "content"))
    if kind == "Clear":
        return Entry([], restarts=True)
    if kind == "Compaction" and isinstance(data.get("summary"), str):
        return Entry([summary_message(data["summary"])], restarts=True)
    session.others[kind] += 1
    return None


def _blocks(value: Any, where: str) -> list[Json]:
    """Rename Kiro's blocks to Anthropic's."""
    blocks: list[Json] = []
    for at, block in optional_objects(value, where):
        kind, data = block.get("kind"), block.get("data")
        if kind == "text":
            blocks.append(text_block(text(data, f"{at}.data")))
        elif kind == "thinking":
            thought = data.get("text") if isinstance(data, dict) else data
            blocks.append(thought_block(text(thought, f"{at}.data")))
        elif kind == "toolUse":
            call = mapping(data, f"{at}.data")
            blocks.append(call_block(call.get("toolUseId"), call.get("name"), call.get("input")))
        elif kind == "toolResult":
            blocks.append(_result(mapping(data, f"{at}.data"), "toolUseId"))
        else:  # an unknown block stays a part of the content
            blocks.append({"type": str(kind), "data": data})
    return blocks


def _result(result: Json, id_key: str) -> Json:
    """Return a result with text and JSON parts; a single text part becomes text."""
    content = result.get("content")
    if isinstance(content, list):
        # {kind, data} of a session, {Text} or {Json} of a saved conversation
        parts = [part.get("data", part.get("Text", part.get("Json", part))) if has(part) else part for part in content]
        content = [text_block(json_text(part)) for part in parts]
    return result_block(result.get(id_key) or None, content, is_error=str(result.get("status")).lower() == "error")


def _exchange(exchange: Json) -> list[Message]:
    blocks: list[Json] = []
    content = mapping(mapping(exchange.get("user"), "user").get("content"), "user.content")
    # The key is the variant (prompt, results, cancelled calls); the body is enough to read it.
    for body in content.values():
        body = mapping(body, "user.content")
        results = optional_objects(body.get("tool_use_results"), "tool_use_results")
        blocks += [_result(result, "tool_use_id") for _, result in results]
        if isinstance(body.get("prompt"), str):
            blocks.append(text_block(body["prompt"]))
    answer = mapping(exchange.get("assistant"), "assistant")
    # The only key is the variant: ToolUse has calls, Response only text.
    body = mapping(answer.get("ToolUse", answer.get("Response")), "assistant")
    written = [text_block(optional_text(body.get("content"), "assistant.content") or "")]
    for _, call in optional_objects(body.get("tool_uses"), "tool_uses"):
        written.append(call_block(call.get("id"), call.get("name"), call.get("args")))
    return user_messages(blocks, "user.content") + turn_messages(written, "assistant")


def _tool(tool: Json) -> Json:
    spec = tool.get("ToolSpecification", tool)
    if not isinstance(spec, dict):
        return tool
    schema = spec.get("input_schema")
    # The schema may be wrapped: {json: {...}}.
    parameters = schema.get("json", schema) if isinstance(schema, dict) else schema
    return {"type": "function", "function": {**texts_of(spec, "name", "description"), "parameters": parameters}}


FORMAT = SessionFormat(
    "kiro-cli",
    "Kiro CLI and Amazon Q sessions",
    matches,
    _take,
    paths={"id": "conversation_id", "lines": "history"},
    begin=_begin,
).format
