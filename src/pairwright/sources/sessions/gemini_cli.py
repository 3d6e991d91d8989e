"""Gemini CLI and Qwen Code sessions.

    Gemini CLI   {sessionId, messages[{type: user | gemini | info | ..., content, thoughts[], toolCalls[], model}]}, or
                 JSON Lines: the session, a message a line (a repeated id replaces it), {$set}, {$rewindTo}
    Qwen Code    JSON Lines {uuid, parentUuid, sessionId, type: user | assistant | tool_result | system, model,
                 message{role, parts[]}}: a tree; `system` lines of subtype chat_compression replace the context

A call of Gemini CLI has its result beside it, so both come from one entry. Lines of type info, error and warning were
shown to the user and not to the model. A rewind begins a branch: what was left behind is an experience too. Neither
system prompt nor tools are logged: prompts are incomplete. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, identifier, items, mapping, optional_items, optional_text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.google_genai import messages_from_genai
from pairwright.sources.shapes.session_entries import Entry, Session, as_past, read_entries

NAME = "gemini-cli"
_TYPES = frozenset({"user", "gemini", "model", "info", "error", "warning"})
_FAILED = ("error", "cancelled")
_QWEN_TURNS = frozenset({"user", "assistant", "tool_result"})
_QWEN_TYPES = _QWEN_TURNS | {"system"}


def matches(value: Any) -> bool:
    """Whether the value is a session: a document, or the lines of a file of either program."""
    if isinstance(value, dict):
        return "sessionId" in value and _has_turns(value.get("messages"))
    lines = value if isinstance(value, list) else []
    head = lines[0] if lines else None
    is_gemini = isinstance(head, dict) and "sessionId" in head and "projectHash" in head and "uuid" not in head
    return is_gemini or any(map(_is_qwen, lines))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a session: one, and one more for each branch and compaction."""
    session = Session(NAME)
    if isinstance(value, dict):
        _describe(session, value)
        listed = items(value.get("messages"), "messages")
        value = [{"id": str(n), **item} if isinstance(item, dict) else item for n, item in enumerate(listed)]
    entries: dict[str, Entry] = {}
    last: str | None = None  # id of the entry that the next one follows
    for number, item in enumerate(items(value, "session")):
        try:
            line = mapping(item, "line")
            if "$rewindTo" in line:  # back to before that message
                target = entries.get(str(line["$rewindTo"]))
                last = None if target is None else target.parent
                continue
            if _is_link(line):
                entry = _read_qwen(line, session)
            elif isinstance(line.get("type"), str):
                entry = _read_gemini(line, session, last)
            else:
                updates = line.get("$set", line)
                _describe(session, mapping(updates, "$set"))
                continue
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, None if origin.line is None else origin.line + number, str(error), NAME)
            continue
        if not entry.messages:
            session.others[line["type"]] += 1
        key = entry.id or str(number)
        if key in entries and not _is_link(line):  # a message is written again when it has grown
            entry = Entry(entry.messages, entry.id, entries[key].parent)
        entries[key] = entry
        last = key
    session.info["other_lines"] = dict(session.others)
    yield from read_entries(session, list(entries.values()), origin)


def _describe(session: Session, record: Json) -> None:
    session.id = identifier(record.get("sessionId")) or session.id
    session.note(record, "projectHash", "summary", "kind")


def _read_gemini(line: Json, session: Session, last: str | None) -> Entry:
    """Read a message of Gemini CLI, and the results of its calls."""
    entry_id, kind, content = optional_text(line.get("id"), "id"), line["type"], line.get("content")
    messages: list[Message] = []
    if kind == "user":
        messages = messages_from_genai(content, None, "content")
    elif kind in ("gemini", "model"):
        session.model = optional_text(line.get("model"), "model") or session.model
        calls = [mapping(call, "toolCalls") for call in optional_items(line.get("toolCalls"), "toolCalls")]
        parts = [_thought(thought) for thought in optional_items(line.get("thoughts"), "thoughts")]
        parts += _parts(content)
        parts += [{"functionCall": {key: call.get(key) for key in ("id", "name", "args")}} for call in calls]
        messages = _turn("model", parts)
        messages += [message for call in calls for message in _results(call)]
    return Entry(messages, entry_id, last or "")


def _results(call: Json) -> list[Message]:
    """The result of a call: its function response, and images beside it; none while it was not run."""
    if call.get("result") is None:
        return []
    parts = _parts(call["result"])
    if not any("functionResponse" in part for part in parts):
        text = "\n".join(str(part.get("text", "")) for part in parts)
        parts = [{"functionResponse": {"name": call.get("name"), "response": {"output": text}}}]
    for number, part in enumerate(parts):
        if isinstance(part.get("functionResponse"), dict):  # it may lack the id, but stands beside its call
            parts[number] = {"functionResponse": {"id": call.get("id"), **part["functionResponse"]}}
    messages = _turn("user", parts)
    return [_as_failed(message) if call.get("status") in _FAILED else message for message in messages]


def _as_failed(message: Message) -> Message:
    if message.role != "tool":
        return message
    extra = {**message.extra, "is_error": True}
    return Message("tool", message.content, tool_call_id=message.tool_call_id, name=message.name, extra=extra)


def _read_qwen(line: Json, session: Session) -> Entry:
    """Read a line of Qwen Code: contents of the Google API, in a tree of uuids."""
    session.id = identifier(line.get("sessionId")) or session.id
    session.model = optional_text(line.get("model"), "model") or session.model
    session.note(line, "cwd", "version", "gitBranch")
    messages: list[Message] = []
    restarts = line.get("subtype") == "chat_compression"
    if restarts:
        payload = mapping(line.get("systemPayload"), "systemPayload")
        history = messages_from_genai(payload.get("compressedHistory"), None, "systemPayload.compressedHistory")
        messages = [as_past(message) for message in history]
    elif line["type"] in _QWEN_TURNS:
        parts = _parts(mapping(line.get("message"), "message").get("parts"))
        messages = _turn("model" if line["type"] == "assistant" else "user", parts)
    parent = optional_text(line.get("parentUuid"), "parentUuid") or ""
    return Entry(messages, optional_text(line.get("uuid"), "uuid"), parent, restarts=restarts)


def _turn(role: str, parts: list[Json]) -> list[Message]:
    """Convert the parts of one turn; without parts there was none."""
    return messages_from_genai([{"role": role, "parts": parts}], None, "content") if parts else []


def _parts(value: Any) -> list[Json]:
    """Return text, a part, or a list of parts and texts as parts; empty texts are left out."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    parts = [{"text": part} if isinstance(part, str) else mapping(part, "content") for part in listed]
    return [part for part in parts if part != {"text": ""}]


def _thought(value: Any) -> Json:
    """A summary of the model's reasoning: its subject and description."""
    thought = mapping(value, "thoughts")
    texts = [optional_text(thought.get(key), f"thoughts.{key}") for key in ("subject", "description", "text")]
    return {"text": "\n".join(text for text in texts if text), "thought": True}


def _has_turns(value: Any) -> bool:
    """Whether the messages are told apart by `type`, and not by `role`."""
    messages = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return any("content" in item and "role" not in item and str(item.get("type")) in _TYPES for item in messages)


def _is_link(line: Json) -> bool:
    """Whether a line is of Qwen Code's tree: also one without a message, which turns may have as their parent."""
    return "uuid" in line and isinstance(line.get("type"), str)


def _is_qwen(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("type"), str) or line["type"] not in _QWEN_TYPES:
        return False
    if "uuid" not in line or "sessionId" not in line:
        return False
    message = line.get("message")
    return (line["type"] == "system" and "systemPayload" in line) or (isinstance(message, dict) and "parts" in message)


FORMAT = Format(NAME, "file", matches, read, "Gemini CLI and Qwen Code sessions")
