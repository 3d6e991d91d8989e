"""Sessions as other tools export them: JSON Lines `{type, message{role, content}, sessionId, uuid, parentUuid}`.

These are lines in the manner of Claude Code, written by programs that collect sessions of several assistants, and by
old versions without ids. A line of type "tool" has a call and its result in one (`tool_name`, `tool_input`,
`tool_output`); the call joins the assistant turn before it, in the order of the lines. A line of type "system" is the
system prompt; other lines are counted in info. There is no reward.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, identifier, items, json_value, mapping, optional_text, text
from pairwright.sources.format import Format, Options, Origin, Rejected, guarded
from pairwright.sources.shapes.anthropic import turn_from_anthropic
from pairwright.sources.shapes.session_entries import (
    EventTurns,
    Session,
    call_block,
    read_entries,
    rejected_line,
    result_block,
    text_block,
)

NAME = "session-lines"
_TURNS = frozenset({"user", "assistant"})
_SESSION_KEYS = frozenset({"sessionId", "session_id", "parentUuid"})
_INFO_KEYS = ("agent", "agentSlug", "cwd", "workspace")


def matches(value: Any) -> bool:
    lines = [line for line in value if isinstance(line, dict)] if isinstance(value, list) else []
    turns = [line for line in lines if _is_turn(line)]
    # A turn of Claude Code names its session, and has a reader of its own.
    return any(map(_is_tool_line, lines)) or (bool(turns) and not any(_SESSION_KEYS & set(line) for line in turns))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    """Yield the experience of a session."""
    session = Session(NAME)
    turns = EventTurns()
    others: Counter[str] = Counter()
    for number, item in enumerate(items(value, "session")):
        try:
            line = mapping(item, "line")
            session.id = session.id or identifier(line.get("sessionId"))
            session.info = {key: line[key] for key in _INFO_KEYS if isinstance(line.get(key), str)} | session.info
            if not _take(turns, line, session):
                others[str(line.get("type"))] += 1
        except (BadRecord, RecordError) as error:
            yield rejected_line(session, origin, number, error)
    session.info["other_lines"] = dict(others)
    yield from read_entries(session, turns.end_turn(), origin)


def _take(turns: EventTurns, line: Json, session: Session) -> bool:
    """Read one line; return whether it is part of the conversation."""
    kind = text(line.get("type"), "type")
    if (kind not in _TURNS and kind not in ("tool", "system")) or "message" not in line:
        return False
    message = mapping(line["message"], "message")
    if kind == "tool":
        call_id = optional_text(line.get("uuid"), "uuid")
        turns.add(call_block(call_id, message.get("tool_name"), json_value(message.get("tool_input"), "tool_input")))
        is_error = message.get("status") in ("error", "failed")
        turns.add(result_block(call_id, message.get("tool_output"), is_error=is_error))
    elif kind == "system":
        turns.add_messages([Message("system", text(message.get("content"), "message.content"))])
    elif kind == "assistant":
        session.model = optional_text(message.get("model"), "message.model") or session.model
        content = message.get("content")
        blocks = [text_block(content)] if isinstance(content, str) else items(content, "message.content")
        turns.end_turn()
        for block in blocks:
            turns.add(mapping(block, "message.content"))
    else:
        turns.add_messages(turn_from_anthropic({"role": kind, "content": message.get("content")}, "message"))
    return True


def _is_tool_line(line: Json) -> bool:
    message = line.get("message")
    return line.get("type") == "tool" and isinstance(message, dict) and "tool_name" in message


def _is_turn(line: Json) -> bool:
    message = line.get("message")
    is_turn = isinstance(line.get("type"), str) and line["type"] in _TURNS
    return is_turn and isinstance(message, dict) and "content" in message


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="Sessions exported by other tools")
