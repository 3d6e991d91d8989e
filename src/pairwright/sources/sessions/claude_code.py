"""Claude Code sessions: JSON Lines `{type, uuid, parentUuid, sessionId, isSidechain, message{role, content[]}}`.

A file is a tree (sources/sessions/claude_session.py); every path from a root to a leaf is an experience. task = hash of
the session's first prompt and its agent, so that sessions that begin alike are runs of one task; step = number of the
root in its session (a compaction, a `/clear` and a sidechain each start a new one), run = a number made from sessionId,
plus the number of the branch. Branches of one root therefore share task, step and prompt and can be compared from the
point where they diverge. Assistant turns shared with an earlier branch are `generated=False`, so that nothing is
trained twice. Also not generated: lines copied from another session (`forkedFrom`), program notices in the assistant's
name (model `<synthetic>`), and compaction summaries. A result with `is_error` is an error site. A conversation whose
start is not in the file is kept with info["prompt_missing"]. There is no reward.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.errors import RecordError
from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.fields import BadRecord, identifier, index, items, json_text, mapping, optional_text, text
from pairwright.sources.format import (
    Format,
    Options,
    Origin,
    Record,
    Rejected,
    build,
    guarded,
    session_run,
    session_task,
)
from pairwright.sources.sessions.claude_session import (
    Line,
    PlainLine,
    Turn,
    assistant_messages,
    branches_of,
    decode_line,
    field,
    message_field,
    messages_of,
    plain_line_messages,
    roots_of,
    user_messages,
)
from pairwright.sources.shapes.chat_messages import as_context, content_from_chat, split_at_answer
from pairwright.sources.shapes.tool_errors import error_sites

NAME = "claude-code"
MAX_BRANCHES = 256  # of one root: each repeats what it shares, so their number bounds what a file can grow to
_CLEAR = re.compile(r"\s*<command-name>/clear</command-name>")
_INFO_KEYS = ("cwd", "gitBranch", "version", "slug", "agentId")
# Start of results with `is_error`, by kind; the first match wins.
_ERROR_STARTS = (
    ("unknown_tool", re.compile(r"(<tool_use_error>)?\s*(Error: )?No such tool available")),
    ("invalid_arguments", re.compile(r"(<tool_use_error>)?\s*InputValidationError")),
    ("file_not_found", re.compile(r"(<tool_use_error>)?\s*(Error: )?(File does not exist|ENOENT)")),
    ("timeout", re.compile(r"(<tool_use_error>)?\s*(Error: )?Command timed out")),
    ("nonzero_exit", re.compile(r"(Error: )?Exit code [1-9]")),
)


def matches(value: Any) -> bool:
    """Whether a line is a message of Claude Code, and none is a call as other tools export it (session_lines.py)."""
    if not isinstance(value, list) or any(isinstance(line, dict) and line.get("type") == "tool" for line in value):
        return False
    return any(_is_message_line(line) for line in value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Record | Rejected]:
    """Read a session: parse its lines, build the trees, and yield one experience per branch."""
    lines: list[Line] = []
    others: Counter[str] = Counter()
    summaries: list[str] = []
    uuids: set[str] = set()
    is_session = False
    for position, item in enumerate(items(value, "session")):
        number = (origin.line or 1) + position
        try:
            line = _plain_line(item, number, uuids) if type(item) is PlainLine else _line(item, number, uuids)
        except (BadRecord, RecordError) as error:
            is_session = True
            item = msgspec.json.decode(item.raw) if type(item) is PlainLine else item
            yield _rejected(origin, number, str(error), item)
            if not isinstance(item, dict):
                continue
            line = _link(item, number)  # it still joins its children to its parent
        else:
            if line.uuid is not None:
                uuids.add(line.uuid)
            if not line.messages:
                if item["type"] == "summary" and isinstance(item.get("summary"), str):
                    summaries.append(item["summary"])
                else:
                    others[item["type"]] += 1
        lines.append(line)
    file_info: Json = {"other_lines": dict(others)} if others else {}
    if summaries:
        file_info["summaries"] = summaries
    steps: Counter[Any] = Counter()
    tasks: dict[Any, int | str | None] = {}  # by session
    agent = next((item["agentSetting"] for item in value if _names_agent(item)), None)
    for root in roots_of(lines):
        is_session = True
        session = identifier(field(root.first.value, "sessionId"))
        yield from _experiences(root, origin, session, steps[session], file_info, tasks, agent)
        steps[session] += 1
        file_info = {}  # what is said of the file stands once, on its first conversation
    if not is_session:
        raise BadRecord("session: no line is a message of the user or the assistant")


def _experiences(
    root: Turn,
    origin: Origin,
    session: int | str | None,
    step: int,
    file_info: Json,
    tasks: dict[Any, int | str | None],
    agent: str | None,
) -> Iterator[Record | Rejected]:
    """Yield one experience per branch of a root; turns shared with an earlier branch become context."""
    shared: dict[Turn, list[Message]] = {}  # turns that an earlier branch has; as context once they are met again
    for run, branch in enumerate(branches_of(root)):
        leaf = branch[-1].lines[-1].number
        if run >= MAX_BRANCHES:
            yield _rejected(origin, leaf, f"more than {MAX_BRANCHES} branches from line {root.first.number}")
            continue
        # The turns that only this branch has: its own line, usage and model come from them.
        own = [turn for turn in branch if turn not in shared]
        try:
            messages: list[Message] = []
            for turn in branch:
                if turn in shared:
                    shared[turn] = [as_context(message) for message in shared[turn]]
                else:
                    shared[turn] = messages_of(turn)
                messages += shared[turn]
            before, completion = split_at_answer(messages)
            prompt = tuple(before)  # equal in all branches of a root
            if not any(message.is_generated for message in messages):
                raise BadRecord(f"the branch from line {root.first.number} to {leaf} has no answer of its own")
            if session not in tasks:
                tasks[session] = session_task(session, prompt, metadata=agent)
            yield build(
                NAME,
                origin.at(own[0].first.number, origin.ordinal),
                task=tasks[session],
                run=session_run(session, origin, run),
                step=step,
                prompt=prompt,
                completion=completion,
                errors=_errors(messages),
                info={
                    **_info(root, branch, session, agent),
                    **({"branch": run} if run else {}),
                    **({} if prompt else {"prompt_missing": True}),
                    **(file_info if run == 0 else {}),
                },
                metrics=_usage(own),
                model_version=_model(own),
                truncate_status="response_truncated" if _stop_reason(branch[-1]) == "max_tokens" else None,
            )
        except (BadRecord, RecordError) as error:
            yield _rejected(origin, leaf, str(error))


def _line(value: Any, number: int, seen: set[str]) -> Line:
    """Parse one line and its messages; raise BadRecord if its uuid is in `seen`."""
    kind = text(mapping(value, "line").get("type"), "line.type")
    if kind not in ("user", "assistant"):
        return _link(value, number)
    uuid = optional_text(value.get("uuid"), "uuid")
    if uuid in seen:
        raise BadRecord(f"uuid: {uuid!r} stands on an earlier line already")
    message = mapping(value.get("message"), "message")
    content = content_from_chat(message.get("content"), "message.content")
    if content is None:
        raise BadRecord("message.content: expected text or a list of parts, got null")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    read_blocks = assistant_messages if kind == "assistant" else user_messages
    messages = tuple(read_blocks(value, message, blocks))
    # `/clear` is a line of the user that starts an empty context: the tree is cut there.
    is_clear = kind == "user" and len(messages) == 1 and _CLEAR.match(messages[0].text) is not None
    parent, message_id = _text_or_none(value.get("parentUuid")), _text_or_none(message.get("id"))
    return Line(number, value, _thread(value), uuid, parent, messages, message_id, is_clear, kind == "assistant")


def _plain_line(value: PlainLine, number: int, seen: set[str]) -> Line:
    """Do what `_line` does for a line that was decoded by type."""
    if value.uuid in seen:
        raise BadRecord(f"uuid: {value.uuid!r} stands on an earlier line already")
    messages = plain_line_messages(value)
    if messages is None:
        return _line(msgspec.json.decode(value.raw), number, seen)
    is_assistant = value.type == "assistant"
    is_clear = not is_assistant and len(messages) == 1 and _CLEAR.match(messages[0].text) is not None
    parent, message_id = value.parentUuid, value.message.id
    parent = parent if type(parent) is str else None
    message_id = message_id if type(message_id) is str else None
    thread = identifier(value.sessionId), value.isSidechain is True, _text_or_none(value.agentId)
    return Line(number, value, thread, value.uuid, parent, messages, message_id, is_clear, is_assistant)


def _link(value: Json, number: int) -> Line:
    """Return a line that is no message, as it joins its children to its parent."""
    return Line(number, value, _thread(value), _text_or_none(value.get("uuid")), _text_or_none(value.get("parentUuid")))


def _thread(value: Json) -> tuple[object, bool, object]:
    return identifier(value.get("sessionId")), value.get("isSidechain") is True, _text_or_none(value.get("agentId"))


def _errors(messages: list[Message]) -> list[ErrorSite]:
    sites = error_sites(messages, [], _error_kind)
    for position, message in enumerate(messages):
        if "is_api_error" in message.extra:
            sites.append(ErrorSite(index=position, kind="exception", text=message.text))
    return sorted(sites, key=lambda site: site.index)


def _error_kind(position: int, message: Message) -> str | None:
    if "is_error" not in message.extra:
        return None
    return next((kind for kind, start in _ERROR_STARTS if start.match(message.text)), "tool_error")


def _names_agent(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "agent-setting" and isinstance(item.get("agentSetting"), str)


def _info(root: Turn, branch: list[Turn], session: int | str | None, agent: str | None) -> Json:
    first = root.first.value
    named = {"session_id": session, "agent": agent}
    info: Json = {key: name for key, name in named.items() if name is not None}
    info |= {key: text for key in _INFO_KEYS if isinstance(text := field(first, key), str)}
    if root.first.is_sidechain:
        info["is_sidechain"] = True
    if root.first.parent is not None and not root.first.clears:
        info["begins_after"] = root.first.parent  # a line that is no message, or is not in the file
    if leaf := branch[-1].lines[-1].uuid:
        info["leaf"] = leaf
    return info


def _usage(turns: list[Turn]) -> Json:
    """Sum the token usage of the turns; each line of a message repeats its usage, so only the last line counts."""
    usages = [usage for turn in turns if isinstance(usage := message_field(turn.lines[-1].value, "usage"), dict)]
    totals = {key: sum([index(usage.get(key)) or 0 for usage in usages]) for key in ("input_tokens", "output_tokens")}
    return {key: count for key, count in totals.items() if count}


def _model(turns: list[Turn]) -> str | None:
    models = [message_field(turn.lines[-1].value, "model") for turn in turns if turn.first.is_assistant]
    return next((model for model in reversed(models) if isinstance(model, str) and model != "<synthetic>"), None)


def _stop_reason(turn: Turn) -> Any:
    return message_field(turn.lines[-1].value, "stop_reason")


def _is_message_line(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and line.get("type") in ("user", "assistant")
        and isinstance(line.get("message"), dict)
        and "parts" not in line["message"]
        and isinstance(line.get("uuid"), str)
        and ("sessionId" in line or "parentUuid" in line)
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _rejected(origin: Origin, number: int, reason: str, value: Any = None) -> Rejected:
    try:
        raw = None if value is None else json_text(value)
    except BadRecord:
        raw = None
    return Rejected(origin.file, number, reason, format=NAME, raw=raw)


FORMAT = Format(
    name=NAME,
    unit="file",
    matches=matches,
    read=guarded(read),
    summary="Claude Code session files",
    decode=decode_line,
)
