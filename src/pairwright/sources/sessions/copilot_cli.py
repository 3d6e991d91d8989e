"""GitHub Copilot CLI sessions: JSON Lines `{type, data, id, timestamp, parentId}` (events.jsonl).

    session.start            sessionId, context{cwd, branch}     session.model_change   the model from then on
    system.message           the system prompt                   user.message           `content`, as the user wrote it
    assistant.message        content, reasoningText, toolRequests[{toolCallId, name, arguments}], model
    tool.execution_complete  the result of a call: result{content} or error{message}, success
    session.compaction_complete   `summaryContent` replaces the previous context

A result is linked to its call by toolCallId. Text that the program adds to the user's (`transformedContent`: the time,
reminders) stays in `extra`. Lines of subagents (`parentToolCallId`) and other events are counted in info. Tools are not
logged: prompts are incomplete. There is no reward.
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import (
    identifier,
    mapping,
    object_or_empty,
    objects_in,
    optional_objects,
    optional_text,
    text,
    text_at,
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

_TURNS = frozenset({"user.message", "assistant.message"})


def matches(value: Any) -> bool:
    return any(isinstance(line.get("data"), dict) and str(line.get("type")) in _TURNS for line in objects_in(value))


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    # Without a session.start, the folder or the file is named after the session.
    path = origin.path
    session.id = path.parent.name if path.name == "events.jsonl" else path.stem
    return value


def _take(line: Json, session: Session) -> Entry | None:
    kind = text(line.get("type"), "type")
    data = mapping(line.get("data"), "data")
    if data.get("parentToolCallId") is None:
        if kind == "system.message":
            return Entry([Message("system", text(data.get("content"), "data.content"))])
        if kind == "user.message":
            sent = data.get("transformedContent")
            extra = {"transformed_content": sent} if isinstance(sent, str) and sent != data.get("content") else {}
            return Entry(user_messages(text(data.get("content"), "data.content"), "data.content", extra=extra))
        if kind == "assistant.message":
            session.model = optional_text(data.get("model"), "data.model") or session.model
            return Entry(_answer(data))
        if kind == "tool.execution_complete":
            content, has_failed = data.get("result"), data.get("success") is False
            if has_failed and data.get("error") is not None:
                content = data["error"]
            if isinstance(content, dict):
                content = content.get("content", content.get("message", content))
            return Entry(user_messages([result_block(data.get("toolCallId"), content, is_error=has_failed)], "data"))
        if kind == "session.compaction_complete" and isinstance(data.get("summaryContent"), str):
            return Entry([summary_message(data["summaryContent"])], restarts=True)
        if kind == "session.start":
            session.id = identifier(data.get("sessionId")) or session.id
            session.note(object_or_empty(data.get("context")), "cwd", "branch")
            session.model = optional_text(data.get("selectedModel"), "data.selectedModel")
        elif kind == "session.model_change":
            session.model = optional_text(data.get("newModel"), "data.newModel") or session.model
    if line.get("ephemeral") is not True:
        session.others["subagent" if "parentToolCallId" in data else kind] += 1
    return None


def _answer(data: Json) -> list[Message]:
    thought = text_at(data, "reasoningText")
    blocks = [] if thought is None else [thought_block(thought)]
    blocks.append(text_block(optional_text(data.get("content"), "data.content") or ""))
    for _, call in optional_objects(data.get("toolRequests"), "data.toolRequests"):
        blocks.append(call_block(call.get("toolCallId"), call.get("name"), call.get("arguments")))
    return turn_messages(blocks, "data")


FORMAT = SessionFormat(
    "copilot-cli", "GitHub Copilot CLI sessions", matches, _take, begin=_begin, others="other_events"
).format
