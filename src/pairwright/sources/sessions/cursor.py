"""Cursor agent transcripts and streams: JSON Lines in one of two layouts.

    transcript   {role, message{content}} (agent-transcripts/*.jsonl), with Anthropic's blocks; results are not logged
    stream       {type: system | user | assistant | thinking | tool_call | result, session_id, ...} of
                 `cursor-agent -p --output-format stream-json`; a call is started and completed under one call_id

A result is linked to its call by call_id. With `--stream-partial-output`, a text is sent in pieces and then as a whole:
the pieces are left out. A call is named after its key (`readToolCall` becomes a call of "read"). Neither system prompt
nor tools are logged: prompts are incomplete. There is no reward. Transcripts as plain text are not read.
"""

from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, has, identifier, mapping, objects, objects_in, optional_text, text
from pairwright.sources.format import Origin
from pairwright.sources.shapes.anthropic import call_block, result_block, thought_block, turn_from_anthropic
from pairwright.sources.shapes.session_entries import Session, SessionFormat, user_messages

_ROLES = frozenset({"user", "assistant", "system"})


def matches(value: Any) -> bool:
    lines = objects_in(value)
    calls = [line for line in lines if line.get("type") == "tool_call"]
    return any(map(_is_transcript_line, lines)) or any(has(line, call_id=str, tool_call=dict) for line in calls)


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    session.id = origin.path.stem
    return value


def _whole_texts(lines: list[Any]) -> list[tuple[int, Any]]:
    has_whole_text = any(_is_text(line) and not _is_piece(line) for line in lines)
    return [(number, line) for number, line in enumerate(lines) if not (has_whole_text and _is_piece(line))]


def _take(line: Json, session: Session) -> None:
    turns = session.turns
    if _is_transcript_line(line):
        message = {"role": line["role"], "content": line["message"].get("content")}
        turns.add_messages(turn_from_anthropic(message, "message"))
        return
    session.id = identifier(line.get("session_id")) or session.id
    kind = line.get("type")
    if kind == "system":
        session.model = optional_text(line.get("model"), "model")
        session.info = {"cwd": optional_text(line.get("cwd"), "cwd")}
    elif kind == "user":
        turns.add_messages(user_messages(mapping(line.get("message"), "message").get("content"), "message.content"))
    elif kind == "assistant":
        for _, block in objects(mapping(line.get("message"), "message").get("content"), "message.content"):
            turns.add(block)
    elif kind == "thinking" and isinstance(line.get("text"), str):
        turns.add(thought_block(line["text"]))
    elif kind == "tool_call":
        call_id = text(line.get("call_id"), "call_id")
        name, body = _call(mapping(line.get("tool_call"), "tool_call"))
        if line.get("subtype") == "started":
            turns.add(call_block(call_id, name, _arguments(body)))
        elif line.get("subtype") == "completed" and isinstance(body.get("result"), dict):
            outcome, content = next(iter(body["result"].items()), ("success", None))
            output = content["content"] if has(content, content=str) else content  # only text, or the whole result
            turns.add(result_block(call_id, output, is_error=outcome not in ("success", "isBackground")))


def _call(value: Json) -> tuple[str, Json]:
    """Return the name of a call and its object: {readToolCall{}}, {mcpToolCall{args{toolName}}} or {function{}}."""
    for key, body in value.items():
        if key == "function" and isinstance(body, dict):
            return text(body.get("name"), "tool_call.function.name"), {"args": body.get("arguments"), **body}
        if key.endswith("ToolCall") and isinstance(body, dict):
            arguments = body.get("args")
            named = arguments.get("toolName") if key == "mcpToolCall" and isinstance(arguments, dict) else None
            return named if isinstance(named, str) else key.removesuffix("ToolCall"), body
    raise BadRecord("tool_call: no call in it")


def _arguments(body: Json) -> Any:
    arguments = body.get("args")
    if isinstance(arguments, dict):
        inner = arguments.get("args") if "toolName" in arguments else arguments
        return {key: item for key, item in inner.items() if key != "toolCallId"} if isinstance(inner, dict) else inner
    return arguments


def _is_transcript_line(line: Any) -> bool:
    if not has(line, message=dict, role=str) or "type" in line:
        return False
    return line["role"] in _ROLES and "content" in line["message"]


def _is_text(line: Any) -> bool:
    return has(line) and line.get("type") == "assistant"


def _is_piece(line: Any) -> bool:
    """Whether the line is a piece of a text that is also sent as a whole."""
    return _is_text(line) and "timestamp_ms" in line and "model_call_id" not in line


FORMAT = SessionFormat(
    "cursor", "Cursor agent transcripts and streams", matches, _take, begin=_begin, lines=_whole_texts
).format
