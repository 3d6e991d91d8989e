"""Codex CLI sessions: JSON Lines `{timestamp, type, payload}`, or older files with bare items.

    session_meta    id, instructions (a system message), cwd, versions    turn_context   the model
    response_item   an item of the Responses API (sources/shapes/responses.py): the conversation
    compacted       the context was replaced by `replacement_history`, else by the summary in `message`. The answer with
                    the summary is the last item before it; its request is not logged (see `--compaction-prompt`)
    event_msg       UI events. They repeat the items; only additional data is read: the outcome of calls (`*_end` with
                    exit_code or success), calls that are not items, and `thread_rolled_back`

task = hash of the session's first prompt, so that sessions with the same start are runs of one task. step = number of
preceding compactions: each starts an experience whose prompt is the new context, not generated. If the text of the
request is given, the summary is a separate step between the two; otherwise it is only part of the new context. run = a
hash of the session id, plus the number of rollbacks in that step: the rolled-back part is an experience, and the next
one repeats the remaining turns as context. There is no reward. A call whose result indicates a nonzero exit code, a
failure or a timeout is an error site.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message, canonical_arguments
from pairwright.sources.assemble import NO_ANSWER, Parts, raw_text, split_at_answer
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    identifier,
    index,
    items,
    mapping,
    objects_in,
    text,
    text_at,
    texts_of,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.identity import session_run, session_task
from pairwright.sources.shapes.chat_messages import as_context
from pairwright.sources.shapes.responses import messages_from_items

NAME = "codex"
MAX_ROLLBACKS = 256  # each attempt repeats the kept turns, so this bounds the size of the result
_WRAPPED = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_BARE = ("message", "reasoning", "function_call", "function_call_output", "local_shell_call")
_INFO_KEYS = ("cwd", "cli_version", "originator", "source", "model_provider", "forked_from_id")
# Start of user messages written by the program; they do not count as turns in a rollback.
_NOT_A_TURN = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
# Either form of a shell result: "Exit code: 1" at the start, "Process exited with code 1" at the start of a line.
_EXIT_CODE = re.compile(r"(?:^Exit code:|^Process exited with code|\nProcess exited with code) (-?\d+)")
_FAILURES = (
    ("unknown_tool", re.compile(r"unsupported (custom tool )?call: ")),
    ("invalid_arguments", re.compile(r"failed to parse (function )?arguments")),
    ("timeout", re.compile(r"command timed out")),
)


@dataclass
class Session:
    """Parser state: data of the session, and the current attempt."""

    meta: Json = field(default_factory=dict)
    model: str | None = None
    failed: dict[str, str] = field(default_factory=dict)  # call id -> kind of error, from events
    others: Counter[str] = field(default_factory=Counter)
    context: list[Message] = field(default_factory=list)  # left by a compaction or rollback
    items: list[Json] = field(default_factory=list)
    first_line: int | None = None
    step: int = 0
    run: int = 0
    num_attempts: int = 0
    task: int | str | None = None  # set by the first attempt


def matches(value: Any) -> bool:
    lines = objects_in(value)
    if any(line.get("type") in _WRAPPED and isinstance(line.get("payload"), dict) for line in lines):
        return True
    # Older files: the first line is the session's metadata without a type, the others are bare items.
    starts = bool(lines) and "id" in lines[0] and "timestamp" in lines[0] and "type" not in lines[0]
    return starts and any(line.get("type") in _BARE for line in lines)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Read a session, ending an attempt at each compaction and rollback, and yield one experience per attempt."""
    session = Session()
    lines = items(value, "session")
    # Calls logged as items, which events repeat.
    payloads = [line.get("payload", line) for line in objects_in(lines) if line.get("type") != "event_msg"]
    call_ids = {call_id for payload in payloads if (call_id := text_at(payload, "call_id")) is not None}
    for position, line in enumerate(lines):
        number = (origin.line or 1) + position
        try:
            kind, payload = _unwrap_line(line)
            if kind == "compacted":
                context = _compact_context(payload)
                summary = _take_summary(session, payload)
                history = _conversation(session)
                yield from _end_attempt(session, origin)
                if summary and options.compaction_prompt is not None:
                    session.step += 1
                    prompt = [*map(as_context, history), Message("user", options.compaction_prompt)]
                    parts = _parts(session, prompt, summary, 0, origin.at(number, origin.ordinal))
                    yield replace(parts, info={**_info(session), "is_compaction": True})
                session.context, session.step, session.run = context, session.step + 1, 0
            elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
                # Before the attempt ends: ending it empties `items`.
                remaining = _roll_back(session, payload)
                yield from _end_attempt(session, origin)
                if session.run == MAX_ROLLBACKS:
                    reason = f"more than {MAX_ROLLBACKS} roll-backs: the rest is not read"
                    yield origin.at(number, 0).rejected(reason, NAME)
                    return
                session.context, session.run = remaining, session.run + 1
            else:
                _take(session, kind, payload, call_ids, number)
        except (BadRecord, RecordError) as error:
            yield origin.at(number, 0).rejected(error, NAME, raw_text(line))
    yield from _end_attempt(session, origin)
    if session.num_attempts == 0:
        raise BadRecord("session: no line is an item of a conversation")


def _take(session: Session, kind: str, payload: Json, call_ids: set[str], number: int) -> None:
    item: Json | None = None
    if kind == "session_meta":
        session.meta = session.meta or payload  # a resumed or forked file repeats this line
    elif kind == "turn_context":
        session.model = text_at(payload, "model") or session.model
    elif kind == "response_item":
        item = _with_plain_output(payload, session.failed)
    elif payload.get("type") == "tool_call" and text_at(payload, "call_id") not in call_ids:
        item = {"type": "function_call", "name": payload.get("name"), "call_id": payload.get("call_id")}
        item["arguments"] = payload.get("input", payload.get("arguments"))
    else:
        event, call_id, exit_code = (payload.get(key) for key in ("type", "call_id", "exit_code"))
        session.others[event if isinstance(event, str) else "no type"] += 1
        has_code = isinstance(exit_code, int) and exit_code != 0
        if isinstance(call_id, str) and (has_code or payload.get("success") is False):
            session.failed[call_id] = "nonzero_exit" if has_code else "tool_error"
    if item is not None:
        messages_from_items([item], "item")  # an item that cannot be used is rejected here, with its line
        session.items.append(item)
        session.first_line = session.first_line or number


def _end_attempt(session: Session, origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experience of the current attempt, if it has any items, and reset it."""
    if not session.items:
        return
    number = session.first_line or 1
    session.num_attempts += 1
    try:
        messages = _conversation(session)
        if not any(message.is_generated for message in messages):
            raise BadRecord(NO_ANSWER)
        prompt, completion = split_at_answer(messages)
        yield _parts(session, prompt, completion, session.run, origin.at(number, origin.ordinal))
    except (BadRecord, RecordError) as error:
        yield origin.at(number, 0).rejected(error, NAME)
    session.items, session.first_line = [], None
    session.others.clear()


def _parts(
    session: Session, prompt: Sequence[Message], completion: Sequence[Message], run: int, origin: Origin
) -> Parts:
    name = identifier(session.meta.get("id"))
    session.task = session.task or session_task(name, prompt)
    return Parts(
        NAME,
        origin,
        "",
        task=session.task,
        run=session_run(name, origin, run),
        step=session.step,
        prompt=prompt,
        completion=completion,
        error_kind=lambda _, message: _error_kind(message, session.failed),
        info=_info(session),
        model_version=session.model,
    )


def _conversation(session: Session) -> list[Message]:
    messages = session.context + messages_from_items(session.items, "items")
    instructions = session.meta.get("base_instructions")
    if isinstance(instructions, dict):
        instructions = instructions.get("text")
    if instructions is None:
        instructions = session.meta.get("instructions")
    instructions = filled_text(instructions)
    # Older versions repeat them in a user message.
    if instructions is None or any(instructions in turn.text for turn in messages if turn.role != "assistant"):
        return messages
    return [Message("system", instructions), *messages]


def _compact_context(payload: Json) -> list[Message]:
    history = payload.get("replacement_history")
    if isinstance(history, list) and history:
        return [replace(message, generated=False) for message in messages_from_items(history, "replacement_history")]
    summary = text(payload.get("message"), "compacted.message")
    return [Message("user", summary, generated=False, extra={"is_compact_summary": True})]


def _take_summary(session: Session, payload: Json) -> list[Message]:
    """Remove the answer with the summary from the items and return its messages; [] if it is not logged."""
    message, last = payload.get("message"), session.items[-1] if session.items else {}
    if last.get("type") != "message" or last.get("role") != "assistant" or not isinstance(message, str):
        return []
    summary = messages_from_items([last], "items")[0].text
    if not summary or (message != summary and not message.endswith(f"\n{summary}")):
        return []  # an answer to the user
    start = len(session.items) - 1
    while start and session.items[start - 1].get("type") == "reasoning":
        start -= 1
    answer = messages_from_items(session.items[start:], "items")
    del session.items[start:]
    return answer


def _roll_back(session: Session, payload: Json) -> list[Message]:
    """Return the messages before the last `num_turns` user turns, as context."""
    num_turns = index(payload.get("num_turns"))
    if num_turns is None:
        raise BadRecord("thread_rolled_back.num_turns: expected a number of turns")
    messages = session.context + messages_from_items(session.items, "items")
    turns = [at for at, m in enumerate(messages) if m.role == "user" and not m.text.lstrip().startswith(_NOT_A_TURN)]
    end = turns[-min(num_turns, len(turns))] if num_turns and turns else len(messages)
    return [as_context(message) for message in messages[:end]]


def _unwrap_line(line: Any) -> tuple[str, Json]:
    line = mapping(line, "line")
    kind = line.get("type")
    if kind in _WRAPPED:
        return str(kind), mapping(line.get("payload"), "payload")
    if kind is None and "id" in line and "timestamp" in line:  # the first line of an older file
        return "session_meta", line
    if kind is None and "record_type" in line:
        return "event_msg", {"type": line["record_type"]}
    if "payload" not in line and (isinstance(kind, str) or "role" in line):
        return "response_item", line
    raise BadRecord("line.type: expected session_meta, response_item, event_msg, turn_context, compacted or an item")


def _with_plain_output(item: Json, failed: dict[str, str]) -> Json:
    """Replace a result logged as {content, success} by its content; record a failure in `failed`."""
    output = item.get("output")
    if not isinstance(output, dict) or "content" not in output:
        return item
    if output.get("success") is False and isinstance(item.get("call_id"), str):
        failed.setdefault(item["call_id"], "tool_error")
    return {**item, "output": output["content"]}


def _error_kind(message: Message, failed: dict[str, str]) -> str | None:
    """Return the failure kind of a tool result from its text, its exit code or `failed`."""
    text = message.text
    for kind, start in _FAILURES:
        if start.match(text):
            return kind
    exit_code: Any = None
    if text.startswith("{"):
        exit_code = value_at(canonical_arguments(text), "metadata.exit_code")
    elif match := _EXIT_CODE.search(text[:2000]):
        # Only zero or nonzero matters, so very long numbers become 1.
        exit_code = int(match[1]) if len(match[1]) < 12 else 1
    has_failed = isinstance(exit_code, int) and exit_code != 0
    return "nonzero_exit" if has_failed else failed.get(message.tool_call_id or "")


def _info(session: Session) -> Json:
    more = {key: session.meta.get(key) for key in ("git", "dynamic_tools")}
    more |= {"session_id": identifier(session.meta.get("id")), "branch": session.run, "events": dict(session.others)}
    return texts_of(session.meta, *_INFO_KEYS) | {key: value for key, value in more.items() if value}


FORMAT = Format(NAME, "file", matches, read, "Codex CLI session files")
