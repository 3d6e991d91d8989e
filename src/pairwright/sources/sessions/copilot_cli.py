"""GitHub Copilot CLI sessions: JSON Lines `{type, data, id, timestamp, parentId}` (events.jsonl).

    session.start            sessionId, context{cwd, branch}     session.model_change   the model from then on
    system.message           the system prompt                   user.message           `content`, as the user wrote it
    assistant.message        content, reasoningText, toolRequests[{toolCallId, name, arguments}], model
    tool.execution_complete  the result of a call: result{content} or error{message}, success
    session.compaction_complete   `summaryContent` replaces what stands before it

A result joins its call by toolCallId. What the program put around the user's words (`transformedContent`: the time,
reminders) stays in `extra`. Lines of subagents (`parentToolCallId`) and other events are counted in info. Tools are not
logged: prompts are incomplete. There is no reward.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, identifier, items, mapping, optional_items, optional_text, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.session_entries import (
    Entry,
    Session,
    call_block,
    read_entries,
    rejected_line,
    result_block,
    text_block,
    turn_messages,
    user_messages,
)

NAME = "copilot-cli"
_TURNS = frozenset({"user.message", "assistant.message"})


def matches(value: Any) -> bool:
    lines = value if isinstance(value, list) else []
    return any(
        isinstance(line, dict) and isinstance(line.get("data"), dict) and str(line.get("type")) in _TURNS
        for line in lines
    )


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of a session, and one more for each compaction in it."""
    # Without a session.start, the folder or the file is named after the session.
    path = origin.path
    session = Session(NAME, id=path.parent.name if path.name == "events.jsonl" else path.stem)
    entries: list[Entry] = []
    others: Counter[str] = Counter()
    for number, item in enumerate(items(value, "session")):
        try:
            line = mapping(item, "line")
            kind = text(line.get("type"), "type")
            data = mapping(line.get("data"), "data")
            entry = None if data.get("parentToolCallId") is not None else _entry(kind, data, session)
        except (BadRecord, RecordError) as error:
            yield rejected_line(session, origin, number, error)
            continue
        if entry is not None:
            entries.append(entry)
        elif line.get("ephemeral") is not True:
            others["subagent" if "parentToolCallId" in data else kind] += 1
    session.info["other_events"] = dict(others)
    yield from read_entries(session, entries, origin)


def _entry(kind: str, data: Json, session: Session) -> Entry | None:
    """Convert an event to an entry, or update the session and return None."""
    if kind == "session.start":
        session.id = identifier(data.get("sessionId")) or session.id
        context = data.get("context")
        context = context if isinstance(context, dict) else {}
        session.info |= {key: context[key] for key in ("cwd", "branch") if isinstance(context.get(key), str)}
        session.model = optional_text(data.get("selectedModel"), "data.selectedModel")
    elif kind == "session.model_change":
        session.model = optional_text(data.get("newModel"), "data.newModel") or session.model
    elif kind == "system.message":
        return Entry([Message("system", text(data.get("content"), "data.content"))])
    elif kind == "user.message":
        sent = data.get("transformedContent")
        extra = {"transformed_content": sent} if isinstance(sent, str) and sent != data.get("content") else {}
        return Entry(user_messages(text(data.get("content"), "data.content"), "data.content", extra=extra))
    elif kind == "assistant.message":
        session.model = optional_text(data.get("model"), "data.model") or session.model
        return Entry(_answer(data))
    elif kind == "tool.execution_complete":
        return Entry(user_messages([_result(data)], "data"))
    elif kind == "session.compaction_complete" and isinstance(data.get("summaryContent"), str):
        summary = Message("user", data["summaryContent"], extra={"is_compact_summary": True})
        return Entry([summary], restarts=True)
    return None


def _answer(data: Json) -> list[Message]:
    blocks: list[Json] = []
    if isinstance(data.get("reasoningText"), str) and data["reasoningText"]:
        blocks.append({"type": "thinking", "thinking": data["reasoningText"]})
    blocks.append(text_block(optional_text(data.get("content"), "data.content") or ""))
    for number, item in enumerate(optional_items(data.get("toolRequests"), "data.toolRequests")):
        call = mapping(item, f"data.toolRequests[{number}]")
        blocks.append(call_block(call.get("toolCallId"), call.get("name"), call.get("arguments")))
    return turn_messages(blocks, "data")


def _result(data: Json) -> Json:
    content = data.get("result")
    if data.get("success") is False and data.get("error") is not None:
        content = data["error"]
    if isinstance(content, dict):
        content = content.get("content", content.get("message", content))
    return result_block(data.get("toolCallId"), content, is_error=data.get("success") is False)


FORMAT = Format(NAME, "file", matches, read, "GitHub Copilot CLI sessions")
