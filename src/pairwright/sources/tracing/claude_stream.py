"""Streams of the Claude Agent SDK and of `claude -p --output-format stream-json`: one message per line, or a list.

    {type: system, subtype: init, session_id, model, tools}     {type: assistant | user, message{content}, ...}
    {type: result, subtype, is_error, result, total_cost_usd}    {type: stream_event, ...}: pieces, left out

Messages with the same `parent_tool_use_id` are the conversation of one subagent, whose prompt is in the call that
started it; all others belong to the session. The session's prompt is given on the command line and usually not logged:
the prompt is then empty, `info["prompt_from"]` says so, and the task is the session, so that runs of different prompts
are never compared. A result ends a turn of the session; the next turn's prompt is not logged either, so each turn is a
separate experience, a step of the session.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import BadRecord, filled, has, objects, objects_in, text_at, value_at
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import turn_from_anthropic
from pairwright.sources.shapes.traces import run_of

NAME = "claude-stream"
_TYPES = ("system", "assistant", "user", "result", "stream_event", "rate_limit_event")


def matches(value: Any) -> bool:
    rows = value if isinstance(value, list) else []
    if not rows or not all(has(row) and row.get("type") in _TYPES for row in rows[:50]):
        return False
    has_start = any(row["type"] == "system" and row.get("subtype") == "init" for row in rows[:50])
    # Lines of a Claude Code session have a `parentUuid`.
    has_turn = any(row["type"] == "assistant" and isinstance(row.get("message"), dict) for row in rows[:50])
    return has_start and has_turn and not any("parentUuid" in row for row in rows[:50])


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    rows = [row for _, row in objects(value, "stream")]
    session: Json = next((row for row in rows if row.get("subtype") == "init"), {})
    turns: list[tuple[list[Json], Json]] = []  # (messages, result)
    agents: dict[str, list[Json]] = {}
    current: list[Json] = []
    for row in rows:
        parent = row.get("parent_tool_use_id")
        if row.get("type") == "result":
            turns.append((current, row))
            current = []
        elif row.get("type") in ("assistant", "user") and isinstance(row.get("message"), dict):
            (agents.setdefault(parent, []) if isinstance(parent, str) else current).append(row)
    if current:
        turns.append((current, {}))
    if not turns and not agents:
        raise BadRecord("no message of the assistant")
    prompts = _agent_prompts(rows)
    conversations = [*turns, *((lines, {"agent": name, "prompt": prompts.get(name)}) for name, lines in agents.items())]
    for step, (lines, result) in enumerate(conversations):
        try:
            yield _experience(lines, result, session, origin, step)
        except PairwrightError as error:
            yield origin.rejected(f"turn {step}: {error}", NAME)


def _agent_prompts(rows: list[Json]) -> dict[str, str]:
    """Return the prompts of subagents, by the id of the call that started them."""
    prompts: dict[str, str] = {}
    for row in rows:
        for block in objects_in(value_at(row, "message.content")):
            prompt = value_at(block, "input.prompt")
            if block.get("type") == "tool_use" and isinstance(prompt, str):
                prompts[str(block.get("id"))] = prompt
    return prompts


def _experience(lines: list[Json], result: Json, session: Json, origin: Origin, step: int) -> Parts:
    messages: list[Message] = []
    model = None
    for number, line in enumerate(_join(lines)):
        message = line["message"]
        role = "assistant" if line["type"] == "assistant" else "user"
        messages += turn_from_anthropic({**message, "role": role}, f"[{number}].message")
        model = text_at(message, "model") or model if role == "assistant" else model
    if isinstance(result.get("prompt"), str) and messages and messages[0].role == "assistant":
        messages.insert(0, Message("user", result["prompt"]))
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("no message of the assistant")
    name = session.get("session_id")
    info: Json = {"session_id": name, "subagent_of": result.get("agent")}
    if not prompt:
        info["prompt_from"] = "nothing: the stream does not hold what the model was told"
    info |= {key: result.get(key) for key in ("is_error", "num_turns", "total_cost_usd")}
    tools = session.get("tools")
    info["tools"] = tools if isinstance(tools, list) else None  # only names: schemas are not logged
    return Parts(
        NAME,
        origin,
        # Without a logged prompt, no other session may share this task.
        task=None if prompt else f"{name or origin.file}#{step}",
        run=run_of(name if isinstance(name, str) else None, origin.ordinal),
        step=step,
        prompt=prompt,
        completion=completion,
        info=filled(info),
        model_version=model,
        truncate_status="response_truncated" if result.get("subtype") == "error_max_turns" else None,
    )


def _join(lines: list[Json]) -> list[Json]:
    """Join the lines of one message: the stream sends its blocks one by one, with the message's id."""
    joined: list[Json] = []
    for line in lines:
        message, last = line["message"], joined[-1] if joined else {}
        known = last.get("message", {})
        name, blocks, content = message.get("id"), message.get("content"), known.get("content")
        is_same = line["type"] == last.get("type") == "assistant" and name is not None and name == known.get("id")
        if is_same and isinstance(blocks, list) and isinstance(content, list):
            content = content + [block for block in blocks if block not in content]
            joined[-1] = {**last, "message": {**known, **message, "content": content}}
        else:
            joined.append(line)
    return joined


FORMAT = Format(NAME, "file", matches, read, "Streams of the Claude Agent SDK")
