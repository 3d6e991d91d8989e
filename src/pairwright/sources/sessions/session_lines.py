"""Lines similar to Claude Code's, written by other programs: `{type, message{role, content}, sessionId, uuid}`.

Files with a line of type "tool" are read, and files whose turns have neither a session id nor a `parentUuid`. Lines
with the same `message.id` are one turn. A line of type "tool" holds a call and its result (`tool_name`, `tool_input`,
`tool_output`); the call is added to the previous assistant turn, in file order. A line of type "system" is the system
prompt; other lines are counted in info. Streams of Claude Code (`session_id`) are read by tracing/claude_stream.py.
There is no reward.
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import has, identifier, items, json_value, mapping, objects_in, optional_text, text
from pairwright.sources.shapes.anthropic import call_block, result_block, text_block
from pairwright.sources.shapes.session_entries import Session, SessionFormat, user_messages

_TURNS = ("user", "assistant")
_OWN_KEYS = frozenset({"sessionId", "session_id", "parentUuid"})
_INFO_KEYS = ("agent", "agentSlug", "cwd", "workspace")


def matches(value: Any) -> bool:
    lines = objects_in(value)
    turns = [line for line in lines if line.get("type") in _TURNS and has(line.get("message"), "content")]
    if any(line.get("type") == "tool" and has(line.get("message"), "tool_name") for line in lines):
        return True
    # Session files and streams of Claude Code have one of _OWN_KEYS or a subtype; other readers read them.
    is_own = any(_OWN_KEYS & set(line) for line in turns) or any("subtype" in line for line in lines)
    return bool(turns) and not is_own


def _take(line: Json, session: Session) -> None:
    session.id = session.id or identifier(line.get("sessionId"))
    session.info = {key: line[key] for key in _INFO_KEYS if isinstance(line.get(key), str)} | session.info
    turns, kind = session.turns, text(line.get("type"), "type")
    if kind not in (*_TURNS, "tool", "system") or "message" not in line:
        session.others[kind] += 1
        return
    message = mapping(line["message"], "message")
    if kind == "tool":
        call_id = optional_text(line.get("uuid"), "uuid")
        turns.add(call_block(call_id, message.get("tool_name"), json_value(message.get("tool_input"), "tool_input")))
        is_error = message.get("status") in ("error", "failed")
        turns.add(result_block(call_id, message.get("tool_output"), is_error=is_error))
        return
    if kind == "system":
        turns.add_messages([Message("system", text(message.get("content"), "message.content"))])
        return
    content = message.get("content")
    listed = [text_block(content)] if isinstance(content, str) else items(content, "message.content")
    blocks = [mapping(block, "message.content") for block in listed]
    if kind == "assistant":
        session.model = optional_text(message.get("model"), "message.model") or session.model
        turns.begin_turn(optional_text(message.get("id"), "message.id"))
    results = [block for block in blocks if kind == "assistant" or block.get("type") == "tool_result"]
    for block in results:
        turns.add(block)
    if len(results) < len(blocks) or not blocks:
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        turns.add_messages(user_messages(rest, "message.content"))


FORMAT = SessionFormat("session-lines", "Sessions that other tools export", matches, _take).format
