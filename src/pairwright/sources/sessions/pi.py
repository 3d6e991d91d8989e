"""Pi and OpenClaw sessions: JSON Lines `{type, id, parentId, timestamp, ...}`, the first of type "session".

    message          user, assistant (text, thinking, toolCall), toolResult, bashExecution, custom
    custom_message   context added by an extension           branch_summary   summary of another branch
    compaction       `summary` replaces the context before `firstKeptEntryId`
    model_change     the model, if the answers do not name it; other lines are counted in info

The ids form a tree: every path from its root to a leaf is an experience. An assistant turn without content was a
failed request (`errorMessage`) and yields no message. OpenClaw's telemetry is read, too: `agent.start` and `agent.end`
lines hold all messages of a session at that time; if they do not continue the previous messages, a new step begins, and
repeated messages are context. Neither system prompt nor tools are logged: prompts are incomplete. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.records.messages import Json, Message, content_hash
from pairwright.sources.assemble import UNREADABLE, Parts, why_unreadable
from pairwright.sources.fields import BadRecord, has, identifier, items, mapping, objects_in, optional_text, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import call_block, result_block, text_block
from pairwright.sources.shapes.session_entries import (
    Entry,
    Session,
    SessionFormat,
    as_past,
    read_entries,
    summary_message,
    turn_messages,
    user_messages,
)

NAME = "pi"
# The program's turns are sent to the model as user turns.
_AS_USER = {"user": {}, "custom": {"is_meta": True}, "hookMessage": {"is_meta": True}}
_CALLS = {"toolCall": "arguments", "tool_use": "input", "toolUse": "input"}


def matches(value: Any) -> bool:
    lines = objects_in(value)
    is_session = any(line.get("type") == "session" and "id" in line and "timestamp" in line for line in lines[:1])
    return is_session or any(map(_has_history, lines))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a session file, or of each session in a telemetry file."""
    histories: dict[str, list[list[Any]]] = {}
    for line in items(value, "session"):
        if _has_history(line):
            histories.setdefault(line["sessionKey"], []).append(line["messages"])
    if not histories:
        yield from _SESSION.read(value, origin, options)
    for key, lists in histories.items():
        session = Session(NAME, key)
        try:
            yield from read_entries(session, _entries(lists, session), origin)
        except (ValueError, *UNREADABLE) as error:
            yield origin.rejected(f"{key}: {why_unreadable(error)}", NAME)


def _entries(lists: list[list[Any]], session: Session) -> list[Entry]:
    """Join the message lists of one session at different times; repeated messages are context."""
    entries: list[Entry] = []
    known: set[str] = set()
    current: list[str] = []  # hashes of the session's current messages
    for messages in lists:
        hashes = [content_hash(message) for message in messages]
        num_old = max((place + 1 for place, value in enumerate(hashes) if value in known), default=0)
        turns = [_messages(message, f"messages[{place}]", session) for place, message in enumerate(messages)]
        if num_old == len(hashes):
            continue
        if hashes[: len(current)] != current:
            entries.append(Entry([as_past(turn) for listed in turns[:num_old] for turn in listed], restarts=True))
        entries += [Entry(listed) for listed in turns[num_old:]]
        known.update(hashes)
        current = hashes
    return entries


def _take(line: Json, session: Session) -> Entry | None:
    kind = text(line.get("type"), "type")
    if kind == "session":
        session.id = identifier(line.get("id"))
        session.note(line, "cwd", "parentSession")
        return None
    if kind == "model_change" and session.model is None:  # usually each answer names its model
        session.model = optional_text(line.get("modelId"), "modelId")
    messages: list[Message] = []
    if kind == "message":
        messages = _messages(line.get("message"), "message", session)
    elif kind == "custom_message":
        messages = user_messages(line.get("content"), "content", extra={"is_meta": True})
    elif kind in ("compaction", "branch_summary"):
        messages = [replace(summary_message(text(line.get("summary"), "summary")), generated=False)]
    if not messages:
        session.others[kind] += 1
    # A null parent marks the root of a tree; older versions have no parents.
    parent = optional_text(line["parentId"], "parentId") or "" if "parentId" in line else None
    return Entry(
        messages,
        id=optional_text(line.get("id"), "id"),
        parent=parent,
        restarts=kind == "compaction",
        keeps_from=line.get("firstKeptEntryId"),
    )


def _messages(value: Any, where: str, session: Session) -> list[Message]:
    message = mapping(value, where)
    role = text(message.get("role"), f"{where}.role")
    content = message.get("content")
    if role == "assistant":
        session.model = optional_text(message.get("model"), f"{where}.model") or session.model
        session.failure = optional_text(message.get("errorMessage"), f"{where}.errorMessage") or session.failure
        blocks = [text_block(content)] if isinstance(content, str) else items(content, f"{where}.content")
        return turn_messages([_block(mapping(block, f"{where}.content")) for block in blocks], f"{where}.content")
    if role == "toolResult":
        block = result_block(message.get("toolCallId") or None, content, is_error=message.get("isError") is True)
        return user_messages([block], where)
    if role == "bashExecution":
        if message.get("excludeFromContext") is True:
            return []
        command, output = (text(message.get(key), f"{where}.{key}") for key in ("command", "output"))
        return [Message("user", f"$ {command}\n{output}", extra={"is_meta": True})]
    if role in ("branchSummary", "compactionSummary"):
        return [summary_message(text(message.get("summary"), f"{where}.summary"))]
    if role not in _AS_USER:
        raise BadRecord(f"{where}.role: expected user, assistant or toolResult, got {role!r}")
    return user_messages(content, f"{where}.content", extra=_AS_USER[role])


def _block(block: Json) -> Json:
    arguments = _CALLS.get(str(block.get("type")))
    return block if arguments is None else call_block(block.get("id"), block.get("name"), block.get(arguments))


def _has_history(line: Any) -> bool:
    has_messages = has(line, sessionKey=str, messages=list) and bool(line["messages"])
    return has_messages and line.get("type") in ("agent.start", "agent.end")


_SUMMARY = "Pi and OpenClaw sessions"
_SESSION = SessionFormat(NAME, _SUMMARY, matches, _take)
FORMAT = Format(NAME, "file", matches, read, _SUMMARY)
