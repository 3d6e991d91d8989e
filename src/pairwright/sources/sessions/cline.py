"""Cline, Roo Code and Kilo Code: Anthropic messages, in one of two files.

    *.messages.json                 {sessionId, agent, system_prompt, messages[{role, content[], ts, modelInfo}]} (CLI)
    api_conversation_history.json   [{role, content[], ts}] (VS Code); the folder's name is the session id

Blocks become messages in shapes/anthropic.py. Calls written as XML inside the model's text stay text, as do their
results: the file does not mark them. The CLI logs the system prompt; the VS Code extensions log neither system prompt
nor tools, so their prompts are incomplete. A message with `metadata.kind` "compaction" or Roo's `isSummary` holds the
summary of the previous conversation. There is no reward.
"""

from typing import Any

from msgspec.structs import replace

from pairwright.records.messages import Json
from pairwright.sources.datasets import message_rows
from pairwright.sources.fields import objects_in, text_at, value_at
from pairwright.sources.format import Origin
from pairwright.sources.shapes.anthropic import has_blocks, turn_from_anthropic
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat

_ROLES = frozenset({"user", "assistant"})
# Tags that the VS Code extensions put around the user's text.
_TAGS = ("<task>", "<user_message>", "<feedback>", "<environment_details>")


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        return "sessionId" in value and "agent" in value and _are_messages(value.get("messages"))
    if not _are_messages(value) or not any("ts" in message or _is_tagged(message) for message in value):
        return False
    return not message_rows.matches(value)  # messages of Cline do not name their session


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    if isinstance(value, dict):
        return value
    session.id = origin.path.parent.name or None
    return {"messages": value}


def _take(line: Json, session: Session) -> Entry:
    session.model = text_at(line, "modelInfo.id", "modelInfo.modelId") or session.model
    turns = turn_from_anthropic({key: line.get(key) for key in ("role", "content")}, "message")
    if line.get("isSummary") is not True and value_at(line, "metadata.kind") != "compaction":
        return Entry(turns)
    mark = {"is_compact_summary": True}
    summary = [replace(turn, generated=False, extra={**turn.extra, **mark}) for turn in turns]
    return Entry(summary, restarts=bool(session.turns.entries))


def _are_messages(value: Any) -> bool:
    messages = objects_in(value)
    if not messages or len(messages) < len(value) or any(text_at(item, "role") not in _ROLES for item in messages):
        return False
    has_content = all(isinstance(item.get("content"), str | list) for item in messages)
    return has_content and any(has_blocks(one["content"]) or _is_tagged(one) or "ts" in one for one in messages)


def _is_tagged(message: Json) -> bool:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [value_at(block, "text") for block in content or []]
    tagged = [text for text in texts if isinstance(text, str) and text.lstrip().startswith(_TAGS)]
    return message.get("role") == "user" and bool(tagged)


FORMAT = SessionFormat(
    "cline",
    "Cline, Roo Code and Kilo Code histories",
    matches,
    _take,
    paths={"id": "sessionId", "system": "system_prompt", "tools": "tools", "lines": "messages"},
    info=("agent",),
    begin=_begin,
).format
