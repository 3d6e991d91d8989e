"""Hermes agent sessions: `{session_id, model, platform, session_start, system_prompt, tools, messages[]}`.

Chat messages with the system prompt and the tools beside them; a result joins its call by tool_call_id. Reasoning is
`reasoning` or `reasoning_content` of a message. Written from the schema of the program. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import identifier, mapping, optional_text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import messages_from_chat, tools_from_chat
from pairwright.sources.shapes.session_entries import Entry, Session, read_entries

NAME = "hermes"
_KEYS = frozenset({"session_id", "session_start", "platform", "messages"})


def matches(value: Any) -> bool:
    return isinstance(value, dict) and _KEYS.issubset(value) and isinstance(value["messages"], list)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of a session."""
    record = mapping(value, "session")
    system = optional_text(record.get("system_prompt"), "system_prompt")
    messages = messages_from_chat(record.get("messages"), "messages")
    session = Session(
        NAME,
        identifier(record.get("session_id")),
        model=optional_text(record.get("model"), "model"),
        # The list may begin with the system prompt itself.
        system=[Message("system", system)] if system and not any(m.role == "system" for m in messages[:1]) else [],
        tools=tools_from_chat(record.get("tools"), "tools"),
        info={"platform": record.get("platform")},
    )
    yield from read_entries(session, [Entry(messages)], origin)


FORMAT = Format(NAME, "record", matches, read, "Hermes agent sessions")
