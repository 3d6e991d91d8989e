"""Hermes agent sessions: `{session_id, model, platform, session_start, system_prompt, tools, messages[]}`.

Chat messages with a separate system prompt and tools; a result is linked to its call by tool_call_id. Reasoning is
`reasoning` or `reasoning_content` of a message. Written from the schema of the program. There is no reward.
"""

from pairwright.records.messages import Json
from pairwright.sources.fields import has
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat


def _take(line: Json, session: Session) -> Entry:
    message = message_from_chat(line, "message")
    # The list may begin with the system prompt.
    if message.role == "system" and not session.turns.entries:
        session.system = []
    return Entry([message])


FORMAT = SessionFormat(
    "hermes",
    "Hermes agent sessions",
    lambda value: has(value, "session_id", "session_start", "platform", messages=list),
    _take,
    paths={"id": "session_id", "model": "model", "system": "system_prompt", "tools": "tools", "lines": "messages"},
    info=("platform",),
    unit="record",
).format
