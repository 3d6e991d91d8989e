"""SWE-agent `.traj` files and mini-SWE-agent trajectories: one attempt at one instance per file.

    SWE-agent   {trajectory[{action, observation, response, thought, state, query}], history[], info, replay_config}
    mini        {messages[], info, trajectory_format}, or a bare list of messages

`history` is the conversation; if it is missing, the `query` of the last step is used (the last input of the model).
Steps and observations found only in the trajectory (the submission, the last observation) are appended as not
generated: a step contains the command but not the tool call, and may be the program's exit notice. Demonstrations
(`is_demo`) are not generated either.

task = instance id: `instance_id`, replay_config's problem_statement.id, else the file name. Reward: `resolved`, else
`score`, else `reward` of info, the file or its report; options.reward selects another. Most files have none.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.records.messages import ErrorSite, Json, Message, canonical_arguments
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.fields import (
    BadRecord,
    filled,
    filled_text,
    has,
    identifier,
    items,
    mapping,
    object_or_empty,
    objects,
    objects_in,
    optional_mapping,
    optional_objects,
    score,
    text_at,
    text_or_none,
    texts_of,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.sources.shapes.responses import messages_from_items

NAME = "swe-agent"
_REWARDS = ("resolved", "score", "reward")
# File names that do not identify an instance.
_NAMES_OF_NO_INSTANCE = ("", "traj", "trajectory", "trajectories", "output", "last_mini_run")
# First line of an observation of mini-SWE-agent.
_RETURN_CODE = re.compile(r"\s*<returncode>\s*(-?\d{1,12})\s*</returncode>")
_KEPT = ("returncode", "exception_info", "interrupt_type")  # fields of the `extra` of a turn
_MINI_FAILURES = (
    ("timeout", re.compile(r"\s*(<exception>|The last command ).{0,2000}?timed out", re.DOTALL)),
    ("invalid_arguments", re.compile(r"\s*(Please always provide EXACTLY ONE action|Tool call error|Unknown tool)")),
)
_NOT_KEPT = ("thought", "message_type", "thinking_blocks", "tool_call_ids", "cache_control", "tags")
# Start of failed observations, by kind; the first match wins.
_FAILURES = (
    ("tool_error", re.compile(r"\s*Your proposed edit has introduced new syntax error")),
    ("invalid_arguments", re.compile(r"\s*Your (bash command contained syntax errors|output (could|was) not)")),
    ("timeout", re.compile(r"\s*(The command .{0,500}? was cancelled because it took|EXECUTION TIMED OUT)", re.DOTALL)),
    ("file_not_found", re.compile(r"\s*(File .{1,300}? not found|.{1,300}?: No such file or directory)")),
    ("unknown_tool", re.compile(r".{1,200}?: command not found")),
    ("exception", re.compile(r"\s*Traceback \(most recent call last\)")),
)


def is_mini(value: Any) -> bool:
    """Whether the value is a complete mini-SWE-agent file."""
    if not has(value, messages=list):
        return is_plain_list(value)
    info = value.get("info")
    has_info = has(info, "exit_status") and ("submission" in info or "mini_version" in info)
    return has_info or str(value.get("trajectory_format")).startswith("mini-swe-agent")


def is_plain_list(value: Any) -> bool:
    """Whether a bare list of messages is from mini-SWE-agent: some observation has its return code tag."""
    if not isinstance(value, list) or not all(has(turn, "role") for turn in value):
        return False
    return any(has(turn, content=str) and _RETURN_CODE.match(turn["content"]) for turn in value)


def messages_of_mini(value: Any, where: str) -> list[Message]:
    messages: list[Message] = []
    for here, turn in objects(value, where):
        # Records how the run ended; never shown to the model.
        if turn.get("role") == "exit":
            continue
        extra = object_or_empty(turn.get("extra"))
        extra_fields = filled({key: extra.get(key) for key in _KEPT})
        plain = {key: item for key, item in turn.items() if key not in ("extra", "timestamp")}
        # A whole response of the Responses API, with several items.
        if turn.get("object") == "response":
            messages += messages_from_items(items(turn.get("output"), f"{here}.output"), f"{here}.output")
            continue
        if "role" not in turn and isinstance(turn.get("type"), str):
            found = messages_from_items([plain], here)
        else:
            found = [message_from_chat(plain, here)]
        messages += [replace(message, extra={**message.extra, **extra_fields}) for message in found]
    return messages


def mini_error_kind(message: Message) -> str | None:
    """Return the failure kind of an observation: an exception, a program message or a return code; else None."""
    code: Any = message.extra.get("returncode")
    if code is None and (match := _RETURN_CODE.match(message.text)):
        code = int(match[1])
    # An exception or a program message is more specific than the return code, which is checked last.
    if message.extra.get("exception_info"):
        return "timeout" if "timed out" in str(message.extra["exception_info"]) else "exception"
    for kind, start in _MINI_FAILURES:
        if start.match(message.text):
            return kind
    return "nonzero_exit" if isinstance(code, int) and code != 0 else None


def matches(value: Any) -> bool:
    if not isinstance(value, list) or is_plain_list(value):
        return _is_traj(value) or is_mini(value)
    first = value[:100]  # some items may be invalid
    return 2 * sum(has(item) and (_is_traj(item) or is_mini(item)) for item in first) > len(first)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    if not isinstance(value, list) or is_plain_list(value):
        # "django__django-1.traj.json.gz" -> "django__django-1"
        name = re.sub(r"(\.traj)?(\.jsonl?)?(\.gz|\.zst)?$", "", origin.path.name)
        yield _experience(value, origin, None if name in _NAMES_OF_NO_INSTANCE else name)
        return
    if not value:
        raise BadRecord("file: an empty list")
    yield from read_each(
        NAME, origin, value, "", lambda item, number: [_experience(item, origin.at(origin.line, number), None)]
    )


def _experience(value: Any, origin: Origin, file_name: str | None) -> Parts:
    row: Json = {"messages": value} if isinstance(value, list) else mapping(value, "file")
    row_info = optional_mapping(row.get("info"), "info")
    info = {
        key: item
        for key, item in row_info.items()
        if key not in ("model_stats", "config") and "edited_files" not in key
    }
    if "trajectory" in row or "history" in row:
        messages = _messages(row, info)
        model, kind_of = text_at(_replay(row), "agent.model.name"), _error_kind
    else:
        messages = messages_of_mini(row.get("messages"), "messages")
        model, kind_of = text_at(row_info, "config.model.model_name"), mini_error_kind
    fields: Json = {}  # fields that may hold scores; the last place counts
    for place in (row.get("report"), row, row_info):
        fields |= filled(object_or_empty(place))
    scores = {name: value for name in _REWARDS if (value := score(fields.get(name))) is not None}
    named = value_at(_replay(row), "problem_statement.id")
    names = (row.get("instance_id"), row_info.get("instance_id"), named, file_name)
    return Parts(
        NAME,
        origin,
        task=next((task for name in names if (task := identifier(name)) is not None), None),
        messages=messages,
        reward=next((scores[name] for name in _REWARDS if name in scores), None),
        reward_components=scores,
        row=fields,
        error_kind=lambda _, message: kind_of(message),
        errors=_failed_turns(messages, kind_of),
        info=info,
        metrics=object_or_empty(row_info.get("model_stats")),
        model_version=model,
    )


def _messages(row: Json, info: Json) -> list[Message]:
    """Return the conversation of a SWE-agent file, followed by the steps found only in its trajectory."""
    steps = [step for _, step in optional_objects(row.get("trajectory"), "trajectory")]
    turns, where = row.get("history"), "history"
    if not turns:
        turns, where = (steps[-1].get("query") if steps else None), "trajectory[-1].query"
    if not turns:
        raise BadRecord("history: missing, and no step has a query, so the prompt is unknown")
    messages = [_message(turn, place) for place, turn in objects(turns, where)]
    answers = [message for message in messages if message.is_generated]
    if not answers:
        return messages
    last = _last_told(steps, answers)
    if last >= len(answers):
        info["steps_not_in_history"] = last + 1 - len(answers)  # unparsable answers, which were requested again
    # The history ends with an answer, whose observation is only in the trajectory.
    if messages[-1] is answers[-1] and 0 <= last < len(steps):
        messages += _observation(steps[last], messages[-1])
    outside = steps[last + 1 :]
    for step in outside:
        answer = step.get("response") or step.get("thought")
        extra = {"from_trajectory": True, **texts_of(step, "action")}
        messages.append(Message("assistant", text_or_none(answer), generated=False, extra=extra))
        messages += _observation(step, messages[-1])
    if outside:
        info["steps_after_history"] = len(outside)
    return messages


def _last_told(steps: list[Json], answers: list[Message]) -> int:
    """Return the position of the step that matches the last answer of the history."""
    # Searched from the end, since answers may repeat; without an equal answer, steps and answers are matched by count.
    last = answers[-1].text.strip()
    for position in range(len(steps) - 1, -1, -1):
        response = steps[position].get("response")
        if isinstance(response, str) and response.strip() == last:
            return position
    return min(len(answers), len(steps)) - 1


def _observation(step: Json, asked: Message) -> list[Message]:
    content = filled_text(step.get("observation"))
    if content is None:
        return []
    role, call_id = ("tool", asked.tool_calls[0].id) if asked.tool_calls else ("user", None)
    return [Message(role, content, tool_call_id=call_id, extra={"from_trajectory": True})]


def _message(turn: Json, where: str) -> Message:
    plain = {key: item for key, item in turn.items() if key not in _NOT_KEPT}
    ids = turn.get("tool_call_ids")
    # SWE-agent lists the ids of all calls that a result answers; a message has one id.
    if plain.get("tool_call_id") is None and isinstance(ids, list) and ids:
        plain["tool_call_id"] = ids[0]
        if len(ids) > 1:
            plain["tool_call_ids"] = ids
    blocks = turn.get("thinking_blocks")
    if isinstance(blocks, list):
        thoughts = [text for block in objects_in(blocks) if isinstance(text := block.get("thinking"), str)]
        plain["reasoning"] = "\n\n".join(thoughts) or None
    return message_from_chat(plain, where, generated=False if turn.get("is_demo") is True else None)


def _failed_turns(messages: list[Message], kind_of: Callable[[Message], str | None]) -> list[ErrorSite]:
    """Return error sites for failed observations in user turns, used by models without tool calls."""
    start = next((place for place, message in enumerate(messages) if message.is_generated), len(messages))
    return [
        ErrorSite(index=place, kind=kind, text=message.text)
        for place, message in enumerate(messages)
        if place > start and message.role == "user" and (kind := kind_of(message)) is not None
    ]


def _error_kind(message: Message) -> str | None:
    return next((kind for kind, start in _FAILURES if start.match(message.text)), None)


def _replay(row: Json) -> Json:
    """Return the run configuration from an object or JSON text."""
    config = row.get("replay_config")
    return object_or_empty(canonical_arguments(config) if isinstance(config, str) else config)


def _is_traj(value: Any) -> bool:
    if has(value) and "trajectory" not in value:  # a demonstration has only the history
        return any(has(turn, "role", "message_type") for turn in objects_in(value.get("history")))
    if not has(value, trajectory=list):
        return False
    steps = value["trajectory"][:5]
    is_whole = has(value, history=list) or (bool(steps) and has(value, info=dict))
    return is_whole and all(has(step, action=str) for step in steps)


FORMAT = Format(NAME, "file", matches, read, "SWE-agent and mini-SWE-agent trajectories")
