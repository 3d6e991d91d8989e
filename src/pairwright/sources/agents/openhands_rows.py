"""OpenHands rows of evaluations and logs of model requests, in the OpenAI chat shape.

    row   {instance_id, messages[], tools, resolved | test_result{report{resolved}}}
    log   {messages[], tools | kwargs{tools}, response{choices[]}, cost, latency_sec}

Also defines the fields that rows share with files of events (sources/agents/openhands.py), and finds failed results.
"""

import re
from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    mapping,
    object_or_empty,
    objects_in,
    optional_mapping,
    score,
    text_at,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat, messages_from_chat, tools_from_chat
from pairwright.sources.shapes.recorded_tokens import tokens_of_turns, turn_tokens

NAME = "openhands"
# Footer of a shell result; with several commands, the last footer counts.
_EXIT_CODE = re.compile(r"\[(?:Command finished|The command completed) with exit code (-?\d{1,12})\.?\]")
# Start of failed results; the first match wins, and the last pattern is the broadest.
_FAILURES = (
    ("file_not_found", re.compile(r"Ran into \[Errno 2\]|(ERROR:\s*)?The path .{1,500} does not exist")),
    ("invalid_arguments", re.compile(r"(ERROR:\s*)?(Invalid `|Error validating|Parameter `)")),
    ("unknown_tool", re.compile(r"(ERROR:\s*)?Tool .{1,200} not found")),
    ("tool_error", re.compile(r"ERROR:|Error: |Cannot execute multiple commands")),
)


def matches(value: Any) -> bool:
    is_row = has(value, "instance_id", messages=list) and ("resolved" in value or "test_result" in value)
    return is_row or _is_log(value)


def _is_log(value: Any) -> bool:
    has_choices = has(value, messages=list) and has(value.get("response"), choices=list)
    return has_choices and ("latency_sec" in value or "cost" in value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    if _is_log(row):
        yield from _choices(row, origin)
        return
    messages = messages_from_chat(row.get("messages"), "messages")
    tools = tools_from_chat(row.get("tools"), "tools")
    yield Parts(NAME, origin, messages=messages, tools=tools, error_kind=_error_kind, **fields_of_row(row))


def fields_of_row(row: Json) -> Json:
    """Return the fields of `Parts` other than the conversation; `info` has the row's metadata without test logs."""
    result = object_or_empty(row.get("test_result"))
    # Places of scores; a later place overrides an earlier one.
    fields: Json = {}
    for place in (result, object_or_empty(result.get("report")), row):
        fields |= filled(place)
    resolved = score(fields.get("resolved"))
    info = filled({key: row.get(key) for key in ("run_id", "error", "attempt")})
    if isinstance(row.get("test_result"), dict):
        logs = ("test_output", "apply_patch_output")
        info["test_result"] = {key: item for key, item in result.items() if key not in logs}
    return {
        "task": identifier(row.get("instance_id")),
        "reward": resolved,
        "reward_components": {} if resolved is None else {"resolved": resolved},
        "row": fields,
        "info": info,
    }


def error_kind_of_text(text: str) -> str | None:
    text = text.removeprefix("OBSERVATION:\n").lstrip()
    for kind, start in _FAILURES:
        if start.match(text):
            return kind
    # Only the end of the text: a command may print such a line, and outputs may be long.
    codes = _EXIT_CODE.findall(text[-2000:])
    if not codes or int(codes[-1]) == 0:
        return None
    return "timeout" if codes[-1] == "-1" else "nonzero_exit"  # -1: still running at the timeout


def _choices(log: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    prompt = messages_from_chat(log.get("messages"), "messages")
    tools = log.get("tools")
    if tools is None:  # older logs have them in the keyword arguments of the request
        tools = optional_mapping(log.get("kwargs"), "kwargs").get("tools")
    schemas, response = tools_from_chat(tools, "tools"), mapping(log.get("response"), "response")
    choices = response.get("choices")
    if not choices:
        raise BadRecord("response.choices: empty, so there is no completion")
    usage = object_or_empty(response.get("usage"))
    metrics: Json = {key: log[key] for key in ("cost", "latency_sec") if isinstance(log.get(key), int | float)}
    metrics |= {key: usage[key] for key in ("prompt_tokens", "completion_tokens") if isinstance(usage.get(key), int)}

    def read_choice(choice: Json, number: int) -> Iterator[Parts]:
        answer = message_from_chat(choice.get("message"), "message")
        arrays, dropped = _tokens(response, choice)
        info: Json = {"timestamp": log["timestamp"]} if "timestamp" in log else {}
        if dropped is not None:
            info["tokens_dropped"] = dropped
        yield Parts(
            NAME,
            origin,
            # Choices of one request are runs of one task; a single choice has its position in the file as run.
            run=number if len(choices) > 1 else None,
            prompt=prompt,
            completion=[answer],
            tools=schemas,
            error_kind=_error_kind,
            info=info,
            metrics=metrics,
            model_version=text_at(response, "model"),
            truncate_status="response_truncated" if choice.get("finish_reason") == "length" else None,
            arrays=arrays,
        )

    yield from read_each(NAME, origin, choices, "response.choices", read_choice)


def _tokens(response: Json, choice: Json) -> tuple[Json | None, str | None]:
    """Return the recorded token fields of a request, or the reason why they are dropped."""
    ids = choice.get("token_ids") or value_at(choice, "provider_specific_fields.token_ids")
    if not ids:
        return None, None
    content = objects_in(value_at(choice, "logprobs.content"))
    logprobs = [item.get("logprob") for item in content] if content else None
    arrays = tokens_of_turns([turn_tokens(response.get("prompt_token_ids"), ids, logprobs)])
    return arrays, None if arrays else "the ids of the prompt or of the answer are not usable"


def _error_kind(position: int, message: Message) -> str | None:
    return error_kind_of_text(message.text)


FORMAT = Format("openhands-rows", "record", matches, read, "OpenHands rows and request logs")
