"""Claude Code sessions: JSON Lines `{type, uuid, parentUuid, sessionId, isSidechain, message{role, content[]}}`.

A file is a tree (sources/sessions/claude_session.py); every path from a root to a leaf is an experience. task = hash of
the session's first prompt and its agent, so that sessions with the same start are runs of one task; step = index of the
root in its session (a compaction, a `/clear` and a sidechain each start a new root), run = a hash of sessionId plus the
index of the branch. Branches of one root share task, step and prompt, so they are comparable from their divergence
point. Assistant turns shared with an earlier branch are `generated=False`, so that nothing is
trained twice. Also not generated: lines copied from another session (`forkedFrom`), program notices in the assistant's
name (model `<synthetic>`), and compaction summaries. A result with `is_error` is an error site. A conversation whose
start is not in the file is kept with info["prompt_missing"]. There is no reward.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.assemble import Parts, raw_text, split_at_answer
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    index,
    items,
    mapping,
    optional_text,
    text,
    text_or_none,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.identity import session_run, session_task
from pairwright.sources.sessions.claude_session import Line, Turn, branches_of, messages_of, roots_of
from pairwright.sources.shapes.anthropic import assistant_from_blocks, text_block, user_from_blocks
from pairwright.sources.shapes.chat_messages import as_context, content_from_chat

NAME = "claude-code"
MAX_BRANCHES = 256  # per root; each repeats the shared turns, so this bounds the size of the result
_INFO_KEYS = ("cwd", "gitBranch", "version", "slug", "agentId")  # of the first line of a conversation
# Start of results with `is_error`, by kind; the first match wins.
_ERROR_STARTS = (
    ("unknown_tool", re.compile(r"(<tool_use_error>)?\s*(Error: )?No such tool available")),
    ("invalid_arguments", re.compile(r"(<tool_use_error>)?\s*InputValidationError")),
    ("file_not_found", re.compile(r"(<tool_use_error>)?\s*(Error: )?(File does not exist|ENOENT)")),
    ("timeout", re.compile(r"(<tool_use_error>)?\s*(Error: )?Command timed out")),
    ("nonzero_exit", re.compile(r"(Error: )?Exit code [1-9]")),
)


def matches(value: Any) -> bool:
    """Whether a line is a message of Claude Code, and no line is a call exported by other tools (session_lines.py)."""
    if not isinstance(value, list) or any(has(line) and line.get("type") == "tool" for line in value):
        return False
    return any(
        has(line, uuid=str, message=dict)
        and line.get("type") in ("user", "assistant")
        and "parts" not in line["message"]
        and ("sessionId" in line or "parentUuid" in line)
        for line in value
    )


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Read a session: parse its lines, build the trees, and yield one experience per branch."""
    lines: list[Line] = []
    others: Counter[str] = Counter()
    summaries: list[str] = []
    agent: str | None = None
    places: dict[str, int] = {}  # uuid -> index in `lines` of its first line
    refused: set[str | None] = set()  # uuids of refused lines, which another line may use
    is_session = False
    for number, item in enumerate(items(value, "session"), origin.line or 1):
        try:
            line = _read_line(item, number, places.keys() - refused if refused else places)
        except (BadRecord, RecordError) as error:
            is_session = True
            yield origin.at(number, 0).rejected(error, NAME, raw_text(item))
            if not isinstance(item, dict):
                continue
            line = _line(item, number)  # still links its children to its parent
            if line.uuid not in places:
                refused.add(line.uuid)
        else:
            refused.discard(line.uuid)
            if item["type"] == "summary" and isinstance(item.get("summary"), str):
                summaries.append(item["summary"])
            elif line.role is None:
                others[item["type"]] += 1
                if agent is None and item["type"] == "agent-setting":
                    agent = text_or_none(item.get("agentSetting"))
        if line.uuid is not None:
            places.setdefault(line.uuid, len(lines))
        lines.append(line)
    file_info: Json = {key: value for key, value in (("other_lines", dict(others)), ("summaries", summaries)) if value}
    steps: Counter[Any] = Counter()  # session -> number of conversations so far
    tasks: dict[Any, int | str | None] = {}  # by session
    for root in roots_of(lines, places):
        is_session = True
        session = root.first.thread[0]
        yield from _experiences(root, origin, steps[session], file_info, tasks, agent)
        steps[session] += 1
        file_info = {}  # file-level info is attached once, to the first conversation
    if not is_session:
        raise BadRecord("session: no line is a message of the user or the assistant")


def _experiences(
    root: Turn, origin: Origin, step: int, file_info: Json, tasks: dict[Any, int | str | None], agent: str | None
) -> Iterator[Parts | Rejected]:
    """Yield one experience per branch of a root; turns shared with an earlier branch become context."""
    known: dict[Turn, list[Message]] = {}  # turns of earlier branches -> their messages, as context once repeated
    first = root.first
    session = first.thread[0]
    for run, branch in enumerate(branches_of(root)):
        last = branch[-1].lines[-1]
        if run >= MAX_BRANCHES:
            reason = f"more than {MAX_BRANCHES} branches from line {first.number}"
            yield origin.at(last.number, 0).rejected(reason, NAME)
            continue
        # Turns that only this branch has; they provide its line, usage and model.
        own = [turn for turn in branch if turn not in known]
        try:
            messages: list[Message] = []
            for turn in branch:
                known[turn] = list(map(as_context, known[turn])) if turn in known else messages_of(turn)
                messages += known[turn]
            before, completion = split_at_answer(messages)
            prompt = tuple(before)  # equal in all branches of a root
            # A completion without a generated message occurs only if an earlier branch has all of them.
            if not completion or (run and not any(message.is_generated for message in completion)):
                raise BadRecord(f"the branch from line {first.number} to {last.number} has no answer of its own")
            if session not in tasks:
                tasks[session] = session_task(session, prompt, metadata=agent)
            info = _info(first, last, agent) | ({"branch": run} if run else {})
            if not prompt:
                info["prompt_missing"] = True
            metrics, model = _usage_and_model(own)
            is_cut = last.record["message"].get("stop_reason") == "max_tokens"
            # Failed requests, which the program logs as assistant messages.
            failed = [place for place, message in enumerate(messages) if "is_api_error" in message.extra]
            errors = [ErrorSite(place, "exception", messages[place].text) for place in failed]
            yield Parts(
                NAME,
                origin.at(own[0].first.number, origin.ordinal),
                "",
                task=tasks[session],
                run=session_run(session, origin, run),
                step=step,
                prompt=prompt,
                completion=completion,
                error_kind=_error_kind if any("is_error" in message.extra for message in messages) else None,
                errors=errors,
                info=info if run else info | file_info,
                metrics=metrics,
                model_version=model,
                truncate_status="response_truncated" if is_cut else None,
            )
        except (BadRecord, RecordError) as error:
            yield origin.at(last.number, 0).rejected(error, NAME)


def _read_line(value: Any, number: int, taken: Any) -> Line:
    """Read a line and its messages; raises BadRecord if its uuid is in `taken`."""
    role = text(mapping(value, "line").get("type"), "line.type")
    if role not in ("user", "assistant"):
        return _line(value, number)
    uuid = optional_text(value.get("uuid"), "uuid")
    if uuid in taken:
        raise BadRecord(f"uuid: {uuid!r} is on an earlier line already")
    message = mapping(value.get("message"), "message")
    content = content_from_chat(message.get("content"), "message.content")
    if content is None:
        raise BadRecord("message.content: expected text or a list of parts, got null")
    blocks = [text_block(content)] if isinstance(content, str) else content
    if role == "assistant":
        is_notice = value.get("isApiErrorMessage") is True
        is_own = value.get("forkedFrom") is None and not is_notice and message.get("model") != "<synthetic>"
        extra: Json = {"is_api_error": True} if is_notice else {}
        generated = None if is_own else False
        messages = [assistant_from_blocks(blocks, "message.content", generated=generated, extra=extra)]
    else:
        marks = {"is_compact_summary": "isCompactSummary", "is_meta": "isMeta"}
        extra = {mark: True for mark, key in marks.items() if value.get(key) is True}
        generated = False if "is_compact_summary" in extra else None
        messages = user_from_blocks(blocks, "message.content", generated=generated, extra=extra)
    return _line(value, number, role, text_or_none(message.get("id")), messages)


def _line(value: Json, number: int, *message: Any) -> Line:
    thread = identifier(value.get("sessionId")), value.get("isSidechain") is True, text_or_none(value.get("agentId"))
    uuid, parent = text_or_none(value.get("uuid")), text_or_none(value.get("parentUuid"))
    return Line(number, uuid, parent, thread, value, *message)


def _error_kind(position: int, message: Message) -> str | None:
    if "is_error" not in message.extra:
        return None
    return next((kind for kind, start in _ERROR_STARTS if start.match(message.text)), "tool_error")


def _info(first: Line, last: Line, agent: str | None) -> Json:
    info: Json = {"session_id": first.thread[0], "agent": agent}
    info |= {key: text_or_none(first.record.get(key)) for key in _INFO_KEYS}
    info["is_sidechain"] = first.is_sidechain or None
    info["begins_after"] = None if first.clears else first.parent  # not a message, or not in the file
    info["leaf"] = last.uuid or None
    return filled(info)


def _usage_and_model(turns: list[Turn]) -> tuple[Json, str | None]:
    """Return the summed token usage and the last model. Lines of one message repeat its usage: the last line counts."""
    totals = {"input_tokens": 0, "output_tokens": 0}
    model = None
    for turn in turns:
        message = turn.lines[-1].record["message"]
        for key in totals:
            totals[key] += index(value_at(message.get("usage"), key)) or 0
        name = message.get("model")
        if isinstance(name, str) and name != "<synthetic>" and turn.first.role == "assistant":
            model = name
    return {key: count for key, count in totals.items() if count}, model


FORMAT = Format(NAME, "file", matches, read, "Claude Code session files")
