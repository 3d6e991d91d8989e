"""Gemini CLI and Qwen Code sessions.

    Gemini CLI   {sessionId, messages[{type: user | gemini | info | ..., content, thoughts[], toolCalls[], model}]}, or
                 JSON Lines: the session, a message a line (a repeated id replaces it), {$set}, {$rewindTo}
    Qwen Code    JSON Lines {uuid, parentUuid, sessionId, type: user | assistant | tool_result | system, model,
                 message{role, parts[]}}: a tree; `system` lines of subtype chat_compression replace the context

A call of Gemini CLI has its result beside it, so both come from one entry. Lines of type info, error and warning were
shown to the user and not to the model. A rewind begins a branch: what was left behind is an experience too. Neither
system prompt nor tools are logged: prompts are incomplete. There is no reward.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, identifier, items, mapping, optional_items, optional_text
from pairwright.sources.format import Format, Options, Origin, Rejected, guarded
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

NAME = "gemini-cli"
_TYPES = frozenset({"user", "gemini", "model", "info", "error", "warning"})
_FAILED = ("error", "cancelled")
_QWEN_TYPES = frozenset({"user", "assistant", "tool_result", "system"})


def matches(value: Any) -> bool:
    """Whether the value is a session: a document, or the lines of a file of either program."""
    if isinstance(value, dict):
        return "sessionId" in value and _has_turns(value.get("messages"))
    lines = value if isinstance(value, list) else []
    head = lines[0] if lines else None
    is_gemini = isinstance(head, dict) and "sessionId" in head and "projectHash" in head and "uuid" not in head
    return is_gemini or any(map(_is_qwen, lines))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    """Yield the experiences of a session: one, and one more for each branch and compaction."""
    session = Session(NAME)
    if isinstance(value, dict):
        _describe(session, value)
        listed = items(value.get("messages"), "messages")
        value = [{"id": str(n), **item} if isinstance(item, dict) else item for n, item in enumerate(listed)]
    entries: dict[str, Entry] = {}
    others: Counter[str] = Counter()
    last: str | None = None  # id of the entry that the next one follows
    for number, item in enumerate(items(value, "session")):
        try:
            line = mapping(item, "line")
            if "$rewindTo" in line:  # back to before that message
                target = entries.get(str(line["$rewindTo"]))
                last = None if target is None else target.parent
                continue
            if _is_qwen(line):
                entry = _read_qwen(line, session)
            elif isinstance(line.get("type"), str):
                entry = _read_gemini(line, session, last)
            else:
                updates = line.get("$set", line)
                _describe(session, mapping(updates, "$set"))
                continue
        except (BadRecord, RecordError) as error:
            yield rejected_line(session, origin, number, error)
            continue
        if not entry.messages:
            others[line["type"]] += 1
        key = entry.id or str(number)
        if key in entries and not _is_qwen(line):  # a message is written again when it has grown
            entry = Entry(entry.messages, entry.id, entries[key].parent)
        entries[key] = entry
        last = key
    if others:
        session.info["other_lines"] = dict(others)
    yield from read_entries(session, list(entries.values()), origin)


def _describe(session: Session, record: Json) -> None:
    session.id = identifier(record.get("sessionId")) or session.id
    for key in ("projectHash", "summary", "kind"):
        if isinstance(record.get(key), str):
            session.info[key] = record[key]


def _read_gemini(line: Json, session: Session, last: str | None) -> Entry:
    """Read a message of Gemini CLI, and the results of its calls."""
    entry_id, kind = optional_text(line.get("id"), "id"), line["type"]
    messages: list[Message] = []
    if kind == "user":
        messages = user_messages(_content(line.get("content"), "content"), "content")
    elif kind in ("gemini", "model"):
        session.model = optional_text(line.get("model"), "model") or session.model
        blocks = [_thought(thought) for thought in optional_items(line.get("thoughts"), "thoughts")]
        blocks += _content(line.get("content"), "content")
        for number, item in enumerate(optional_items(line.get("toolCalls"), "toolCalls")):
            call = mapping(item, f"toolCalls[{number}]")
            blocks.append(call_block(call.get("id"), call.get("name"), call.get("args")))
            blocks += _results(call)
        messages = turn_messages(blocks, "content")
    return Entry(messages, entry_id, last or "")


def _results(call: Json) -> list[Json]:
    """The result of a call: its function response, else its text; none while it was not run."""
    result = call.get("result")
    if result is None:
        return []
    parts = result if isinstance(result, list) else [result]
    response = next((part["functionResponse"] for part in parts if _has(part, "functionResponse")), None)
    if isinstance(response, dict):
        return [_result(call.get("id"), response, is_error=call.get("status") in _FAILED)]
    content = _content(result, "result")
    return [result_block(call.get("id"), content, is_error=call.get("status") in _FAILED)]


def _result(call_id: Any, response: Json, *, is_error: bool = False) -> Json:
    """A function response: {output} or {error} is text, other objects are JSON text."""
    body = response.get("response")
    content = body
    if isinstance(body, dict) and len(body) == 1:
        key, inner = next(iter(body.items()))
        is_error = is_error or key == "error"
        content = inner if key in ("output", "error") else body
    return result_block(call_id, content, is_error=is_error)


def _read_qwen(line: Json, session: Session) -> Entry:
    """Read a line of Qwen Code: parts of the Google API, in a tree of uuids."""
    session.id = identifier(line.get("sessionId")) or session.id
    session.model = optional_text(line.get("model"), "model") or session.model
    for key in ("cwd", "version", "gitBranch"):
        if isinstance(line.get(key), str):
            session.info[key] = line[key]
    message = line.get("message")
    blocks = _parts(mapping(message, "message").get("parts"), "message.parts") if message is not None else []
    messages: list[Message] = []
    if line["type"] == "assistant":
        messages = turn_messages(blocks, "message.parts")
    elif line["type"] != "system" and blocks:
        messages = user_messages(blocks, "message.parts")
    restarts = line.get("subtype") == "chat_compression"
    if restarts:
        payload = mapping(line.get("systemPayload"), "systemPayload")
        history = optional_items(payload.get("compressedHistory"), "systemPayload.compressedHistory")
        messages = [message for item in history for message in _past(mapping(item, "compressedHistory"))]
    parent = optional_text(line.get("parentUuid"), "parentUuid") or ""
    return Entry(messages, optional_text(line.get("uuid"), "uuid"), parent, restarts=restarts)


def _past(content: Json) -> list[Message]:
    blocks = _parts(content.get("parts"), "parts")
    is_model = content.get("role") == "model"
    return turn_messages(blocks, "parts", generated=False) if is_model else user_messages(blocks, "parts")


def _content(value: Any, where: str) -> list[Json]:
    """Content as blocks: text, a part, or a list of parts and texts."""
    if value is None or value == "":
        return []
    return _parts(value if isinstance(value, list) else [value], where)


def _parts(value: Any, where: str) -> list[Json]:
    """Parts of the Google API as blocks."""
    blocks: list[Json] = []
    for number, item in enumerate(items(value, where)):
        part: Json = {"text": item} if isinstance(item, str) else mapping(item, f"{where}[{number}]")
        if _has(part, "functionCall"):
            call = part["functionCall"]
            blocks.append(call_block(call.get("id"), call.get("name"), call.get("args")))
        elif _has(part, "functionResponse"):
            blocks.append(_result(part["functionResponse"].get("id"), part["functionResponse"]))
        elif part.get("thought") is True and isinstance(part.get("text"), str):
            blocks.append({"type": "thinking", "thinking": part["text"]})
        elif isinstance(part.get("text"), str):
            blocks.append(text_block(part["text"]))
        else:  # an image or a file
            blocks.append({"type": next(iter(part), "part"), **part})
    return blocks


def _thought(value: Any) -> Json:
    """A summary of the model's reasoning: its subject and description."""
    thought = mapping(value, "thoughts")
    texts = [optional_text(thought.get(key), f"thoughts.{key}") for key in ("subject", "description")]
    return {"type": "thinking", "thinking": "\n".join(text for text in texts if text)}


def _has(part: Any, key: str) -> bool:
    return isinstance(part, dict) and isinstance(part.get(key), dict)


def _has_turns(value: Any) -> bool:
    """Whether the messages are told apart by `type`, and not by `role`."""
    messages = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return any("content" in item and "role" not in item and str(item.get("type")) in _TYPES for item in messages)


def _is_qwen(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("type"), str) or line["type"] not in _QWEN_TYPES:
        return False
    if "uuid" not in line or "sessionId" not in line:
        return False
    message = line.get("message")
    return (line["type"] == "system" and "systemPayload" in line) or (isinstance(message, dict) and "parts" in message)


FORMAT = Format(
    name=NAME, unit="file", matches=matches, read=guarded(read), summary="Gemini CLI and Qwen Code sessions"
)
