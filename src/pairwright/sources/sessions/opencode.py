"""opencode sessions: an export, or the files of its storage folder.

    export     {info{id, title, directory}, messages[{info{role, modelID}, parts[]}]}, output of `opencode export`
    storage    session/<project>/<id>.json, message/<session>/<id>.json and part/<message>/<id>.json

    text, file   content     reasoning   reasoning     tool   a call and its result (state{status, input, output})
    compaction   the following summary (`info.summary`) replaces the previous context
    others       step-start, step-finish, snapshot, patch, agent, retry: not part of the conversation

A storage folder is read through its session files; message and part files yield no records, and are refused if their
session file is missing. A result is in the part of its call. Parts with `ignored` are not sent to the model. `system`
of a user message is the system prompt, if logged; tools are not logged: prompts are incomplete. There is no reward.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pairwright.records.json_text import decode
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, has, mapping, objects, optional_text, text, text_at, value_at
from pairwright.sources.format import Format, Options, Origin, PartOfAnother, Rejected
from pairwright.sources.shapes.anthropic import call_block, result_block, text_block, thought_block
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat, turn_messages, user_messages

MAX_FILES = 100_000  # per folder
MAX_FILE_BYTES = 64 * 2**20
_NOT_SENT = ("step-start", "step-finish", "snapshot", "patch", "agent", "retry", "compaction")
_ROLES = frozenset({"user", "assistant"})


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if has(value, info=dict, messages=list):
        return any(has(item, "info", "parts") for item in value["messages"])
    is_message = text_at(value, "role") in _ROLES and has(value, "sessionID", "id") and "content" not in value
    return _is_session(value) or is_message or has(value, "messageID", "id", type=str)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected | PartOfAnother]:
    """Yield the experiences of an export or of a session file and the files that belong to it."""
    record = mapping(value, "session")
    if isinstance(record.get("messages"), list):
        yield from _SESSION.read(record, origin, options)
    elif _is_session(record):
        messages = _stored_messages(origin.path, text(record.get("id"), "id"))
        yield from _SESSION.read({"info": record, "messages": messages}, origin, options)
    else:
        _find_session(record, origin.path)
        yield PartOfAnother()


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    session.note(mapping(value.get("info"), "info"), "title", "directory", "parentID", "version")
    return value


def _take(item: Json, session: Session) -> Entry:
    info = mapping(item.get("info"), "info")
    parts = [part for _, part in objects(item.get("parts"), "parts")]
    if text(info.get("role"), "info.role") == "user":
        system = text_at(info, "system")
        if system is not None and not session.system:
            session.system = [Message("system", system)]
        blocks = [block for part in parts for block in _blocks(part)]
        return Entry(user_messages(blocks, "parts") if blocks else [])
    session.model = optional_text(info.get("modelID"), "info.modelID") or session.model
    if isinstance(value_at(info, "error.data"), dict):
        session.failure = str(info["error"]["data"].get("message", info["error"].get("name")))
    # A message may hold several requests; each begins with step-start.
    turns: list[list[Json]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and turns[-1]:
            turns.append([])
        turns[-1] += _blocks(part)
    is_summary = info.get("summary") is True
    generated = False if is_summary else None
    messages = [message for blocks in turns for message in turn_messages(blocks, "parts", generated=generated)]
    return Entry(messages, restarts=is_summary)


def _blocks(part: Json) -> list[Json]:
    """Convert a part to blocks: a tool part becomes a call and, if it has ended, its result."""
    kind = part.get("type")
    if kind in _NOT_SENT or part.get("ignored") is True:
        return []
    if kind in ("text", "reasoning"):
        block = text_block if kind == "text" else thought_block
        return [block(part["text"])] if part.get("text") else []
    if kind == "subtask":
        return [text_block(text(part.get("prompt"), "parts.prompt"))]
    if kind != "tool":
        return [{key: item for key, item in part.items() if key not in ("id", "sessionID", "messageID")}]
    state = mapping(part.get("state"), "parts.state")
    blocks = [call_block(part.get("callID"), part.get("tool"), state.get("input"))]
    if state.get("status") == "completed":
        blocks.append(result_block(part.get("callID"), state.get("output")))
    elif state.get("status") == "error":
        blocks.append(result_block(part.get("callID"), state.get("error"), is_error=True))
    return blocks


def _stored_messages(path: Path, session_id: str) -> list[Json]:
    """Return the messages of a session with their parts, in the order of their ids, which ascend with time."""
    storage = path.parent.parent.parent
    messages = []
    for info in _records(storage / "message" / _safe(session_id)):
        parts = _records(storage / "part" / _safe(text(info.get("id"), "id")))
        messages.append({"info": info, "parts": parts})
    if not messages:
        raise BadRecord("an opencode session without its messages: import its whole storage folder")
    return sorted(messages, key=lambda message: (_created(message["info"]), str(message["info"]["id"])))


def _records(folder: Path) -> list[Json]:
    """Read the JSON objects of a folder, in the order of their names; no symbolic links."""
    records = []
    files = sorted(folder.glob("*.json")) if folder.is_dir() and not folder.is_symlink() else []
    for path in files[:MAX_FILES]:
        if path.is_symlink() or path.stat().st_size > MAX_FILE_BYTES:
            raise BadRecord(f"{path.name}: a link, or a file of more than {MAX_FILE_BYTES:,} bytes")
        try:
            records.append(mapping(decode(path.read_bytes()), path.name))
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise BadRecord(f"{path.name}: cannot be read: {error}") from None
    return records


def _find_session(record: Json, path: Path) -> None:
    """Check that the session of a message or part file is in the same storage folder; else BadRecord."""
    storage = path.parent.parent.parent
    session_id = record.get("sessionID")
    if session_id is None:  # older parts have only the message id
        name = _safe(str(record.get("messageID")))
        session_id = next((file.parent.name for file in storage.glob(f"message/*/{name}.json")), "none")
    if not any(storage.glob(f"session/*/{_safe(str(session_id))}.json")):
        raise BadRecord("a message or part without its opencode session: import its whole storage folder")


def _safe(name: str) -> str:
    """Return an id that is a valid file name; else BadRecord."""
    if not name or not all(character.isalnum() or character in "_-" for character in name):
        raise BadRecord(f"an id that is not a file name: {name!r}")
    return name


def _created(info: Json) -> float:
    created = value_at(info, "time.created")
    return float(created) if isinstance(created, int | float) else 0.0


def _is_session(value: Json) -> bool:
    return has(value, "projectID", "directory", id=str) and "role" not in value


_SUMMARY = "opencode sessions"
_PATHS = {"id": "info.id", "lines": "messages"}
_SESSION = SessionFormat("opencode", _SUMMARY, matches, _take, paths=_PATHS, begin=_begin)
FORMAT = Format("opencode", "file", matches, read, _SUMMARY)
