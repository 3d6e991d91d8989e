"""Gemini CLI and Qwen Code sessions, and streams of Gemini CLI.

    Gemini CLI   {sessionId, messages[{type: user | gemini | info | ..., content, thoughts[], toolCalls[], model}]}, or
                 JSON Lines: the session, one message per line (a repeated id replaces it), {$set}, {$rewindTo}
    stream       JSON Lines {type: init | message | tool_use | tool_result | error | result} of
                 `gemini -p --output-format stream-json`: the answer is sent in pieces, results have a tool_id
    Qwen Code    JSON Lines {uuid, parentUuid, sessionId, type: user | assistant | tool_result | system, model,
                 message{role, parts[]}}: a tree; `system` lines of subtype chat_compression replace the context

A call of Gemini CLI and its result are in the same entry. Lines of type info, error and warning were shown to the user,
not to the model. A rewind begins a branch: the abandoned branch is an experience, too. Results in a stream are those
shown to the user, which may be shorter than the model's input; info["results_from"] says so.
Neither system prompt nor tools are logged: prompts are incomplete. There is no reward.
"""

from typing import Any

from msgspec.structs import replace

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import (
    filled_text,
    has,
    identifier,
    items,
    list_or_empty,
    mapping,
    object_or_empty,
    objects_in,
    optional_objects,
    optional_text,
    text,
    text_at,
)
from pairwright.sources.format import Origin
from pairwright.sources.shapes.anthropic import call_block, result_block
from pairwright.sources.shapes.google_genai import messages_from_genai
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat, as_past, user_messages

_TYPES = frozenset({"user", "gemini", "model", "info", "error", "warning"})
_FAILED = ("error", "cancelled")
_EVENTS = frozenset({"init", "message", "tool_use", "tool_result", "result"})
_QWEN_TURNS = frozenset({"user", "assistant", "tool_result"})
_QWEN_TYPES = _QWEN_TURNS | {"system"}


def matches(value: Any) -> bool:
    """Whether the value is a session: a document, or the lines of a file of either program."""
    if isinstance(value, dict):  # its messages have a `type` instead of a `role`
        turns = [item for item in objects_in(value.get("messages")) if "content" in item and "role" not in item]
        return "sessionId" in value and any(str(turn.get("type")) in _TYPES for turn in turns)
    lines = list_or_empty(value)
    head = object_or_empty(lines[0] if lines else None)
    is_gemini = {"sessionId", "projectHash"} <= head.keys() and "uuid" not in head
    is_stream = head.get("type") == "init" and {"session_id", "model"} <= head.keys()
    return is_gemini or is_stream or any(map(_is_qwen, lines))


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    if not isinstance(value, dict):
        return value
    _describe(session, value)
    listed = items(value.get("messages"), "messages")
    return {"messages": [{"id": str(n), **item} if isinstance(item, dict) else item for n, item in enumerate(listed)]}


def _take(line: Json, session: Session) -> Entry | None:
    entries, places, kind = session.turns.entries, session.places, line.get("type")
    if "$rewindTo" in line:  # back to before that message: an empty entry as parent of the next one
        target = places.get(str(line["$rewindTo"]))
        return Entry([], f"rewind {len(entries)}", "" if target is None else entries[target].parent)
    if not isinstance(kind, str):
        _describe(session, mapping(line.get("$set", line), "$set"))
        return None
    if kind in _EVENTS and "uuid" not in line:
        _take_event(line, kind, session)
        return None
    entry = _read_qwen(line, session) if "uuid" in line else _read_gemini(line, session)
    if not entry.messages:
        session.others[kind] += 1
    if entry.id in places:  # a grown message is written again
        entries[places[entry.id]] = Entry(entry.messages, entry.id, entries[places[entry.id]].parent)
        return None
    if entry.id is not None:
        places[entry.id] = len(entries)
    return entry


def _take_event(event: Json, kind: str, session: Session) -> None:
    turns = session.turns
    if kind == "init":
        session.id, session.model = identifier(event.get("session_id")), filled_text(event.get("model"))
        session.info["results_from"] = "what was shown to the user: the stream has nothing else"
    elif kind == "message" and event.get("role") == "assistant":
        turns.add_text(text(event.get("content"), "content"))
    elif kind == "message":
        turns.add_messages(user_messages(text(event.get("content"), "content"), "content"))
    elif kind == "tool_use":
        turns.add(call_block(event.get("tool_id"), event.get("tool_name"), event.get("parameters")))
    elif kind == "tool_result":
        is_error = event.get("status") == "error"
        output = text_at(event, "error.message", "output") if is_error else event.get("output")
        turns.add(result_block(event.get("tool_id"), output, is_error=is_error))
    else:
        session.failure = text_at(event, "error.message")
        session.others[kind] += 1


def _describe(session: Session, record: Json) -> None:
    session.id = identifier(record.get("sessionId")) or session.id
    session.note(record, "projectHash", "summary", "kind")


def _read_gemini(line: Json, session: Session) -> Entry:
    """Read a message of Gemini CLI, and the results of its calls."""
    entry_id, kind, content = optional_text(line.get("id"), "id"), line["type"], line.get("content")
    messages: list[Message] = []
    if kind == "user":
        messages = messages_from_genai(content, None, "content")
    elif kind in ("gemini", "model"):
        session.model = optional_text(line.get("model"), "model") or session.model
        calls = [call for _, call in optional_objects(line.get("toolCalls"), "toolCalls")]
        parts: list[Json] = []
        for _, thought in optional_objects(line.get("thoughts"), "thoughts"):
            texts = [optional_text(thought.get(key), f"thoughts.{key}") for key in ("subject", "description", "text")]
            parts.append({"text": "\n".join(text for text in texts if text), "thought": True})
        parts += _parts(content)
        parts += [{"functionCall": {key: call.get(key) for key in ("id", "name", "args")}} for call in calls]
        messages = _turn("model", parts)
        messages += [message for call in calls for message in _results(call)]
    entries = session.turns.entries
    return Entry(messages, entry_id, (entries[-1].id or "") if entries else "")


def _results(call: Json) -> list[Message]:
    """Return the result of a call: its function response and images; [] if it was not run."""
    if call.get("result") is None:
        return []
    parts = _parts(call["result"])
    if not any("functionResponse" in part for part in parts):
        text = "\n".join(str(part.get("text", "")) for part in parts)
        parts = [{"functionResponse": {"name": call.get("name"), "response": {"output": text}}}]
    for number, part in enumerate(parts):
        if isinstance(part.get("functionResponse"), dict):  # may lack the id, but is stored with its call
            parts[number] = {"functionResponse": {"id": call.get("id"), **part["functionResponse"]}}
    messages = _turn("user", parts)
    if call.get("status") not in _FAILED:
        return messages
    mark = {"is_error": True}
    return [replace(one, extra={**one.extra, **mark}) if one.role == "tool" else one for one in messages]


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
    return messages_from_genai([{"role": role, "parts": parts}], None, "content") if parts else []


def _parts(value: Any) -> list[Json]:
    """Return text, a part, or a list of parts and texts as parts; empty texts are left out."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    parts = [{"text": part} if isinstance(part, str) else mapping(part, "content") for part in listed]
    return [part for part in parts if part != {"text": ""}]


def _is_qwen(line: Any) -> bool:
    if not has(line, "uuid", "sessionId", type=str) or line["type"] not in _QWEN_TYPES:
        return False
    return (line["type"] == "system" and "systemPayload" in line) or has(line.get("message"), "parts")


FORMAT = SessionFormat(
    "gemini-cli",
    "Gemini CLI and Qwen Code sessions and streams",
    matches,
    _take,
    paths={"lines": "messages"},
    begin=_begin,
).format
