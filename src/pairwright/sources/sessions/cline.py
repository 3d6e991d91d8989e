"""Cline, Roo Code and Kilo Code: Anthropic messages, in one of two files.

    *.messages.json                 {sessionId, agent, system_prompt, messages[{role, content[], ts, modelInfo}]} (CLI)
    api_conversation_history.json   [{role, content[], ts}] (VS Code); the folder's name is the session id

Blocks become messages in shapes/anthropic.py. Calls that the model wrote as XML inside its text stay text, as do the
results that the program answered with: the file does not mark them. The CLI logs the system prompt; the VS Code
extensions log neither system prompt nor tools, so those prompts are incomplete. A message with `metadata.kind`
"compaction" holds the summary of what stood before it; Roo's `isSummary` likewise. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets import message_rows
from pairwright.sources.fields import identifier, items, mapping, optional_text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import (
    has_blocks,
    system_from_anthropic,
    tools_from_anthropic,
    turn_from_anthropic,
)
from pairwright.sources.shapes.session_entries import Entry, Session, read_entries

NAME = "cline"
_ROLES = frozenset({"user", "assistant"})
# What the VS Code extensions put around the user's words.
_TAGS = ("<task>", "<user_message>", "<feedback>", "<environment_details>")


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        return "sessionId" in value and "agent" in value and _are_messages(value.get("messages"))
    if not _are_messages(value) or not any("ts" in message or _is_tagged(message) for message in value):
        return False
    return not message_rows.matches(value)  # a history of Cline does not name its session in every message


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of a session, and one more for each compaction in it."""
    session = Session(NAME)
    if isinstance(value, dict):
        session.id = identifier(value.get("sessionId"))
        session.system = system_from_anthropic(value.get("system_prompt"), "system_prompt")
        session.tools = tools_from_anthropic(value.get("tools"), "tools")
        session.info = {"agent": optional_text(value.get("agent"), "agent")}
        value = value.get("messages")
    else:
        session.id = origin.path.parent.name or None
    entries = []
    for number, item in enumerate(items(value, "messages")):
        message = mapping(item, f"messages[{number}]")
        session.model = _model(message) or session.model
        turns = turn_from_anthropic({key: message.get(key) for key in ("role", "content")}, f"messages[{number}]")
        restarts = _is_summary(message) and number > 0
        entries.append(
            Entry([_as_summary(turn) for turn in turns] if _is_summary(message) else turns, restarts=restarts)
        )
    yield from read_entries(session, entries, origin)


def _are_messages(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(
        isinstance(item, dict)
        and isinstance(item.get("role"), str)
        and item["role"] in _ROLES
        and isinstance(item.get("content"), str | list)
        for item in value
    ) and any(has_blocks(item["content"]) or _is_tagged(item) or "ts" in item for item in value)


def _is_tagged(message: Json) -> bool:
    content = message.get("content")
    texts = (
        [content]
        if isinstance(content, str)
        else [block.get("text") for block in content or [] if isinstance(block, dict)]
    )
    return message.get("role") == "user" and any(
        isinstance(text, str) and text.lstrip().startswith(_TAGS) for text in texts
    )


def _is_summary(message: Json) -> bool:
    metadata = message.get("metadata")
    return message.get("isSummary") is True or (isinstance(metadata, dict) and metadata.get("kind") == "compaction")


def _as_summary(message: Message) -> Message:
    return Message(
        message.role,
        message.content,
        message.reasoning,
        message.tool_calls,
        message.tool_call_id,
        generated=False,
        extra={**message.extra, "is_compact_summary": True},
    )


def _model(message: Json) -> str | None:
    model = message.get("modelInfo")
    name = (model.get("id") or model.get("modelId")) if isinstance(model, dict) else None
    return name if isinstance(name, str) else None


FORMAT = Format(NAME, "file", matches, read, "Cline, Roo Code and Kilo Code histories")
