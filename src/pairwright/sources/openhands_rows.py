"""OpenHands rows and logs of single requests, in the OpenAI chat shape; openhands.py reads events.

    row        {instance_id, run_id, messages[], tools[], resolved, test_result{report{resolved}, git_patch}}
    log        {messages[], tools[], kwargs, response{choices[{message}], model, usage}, cost, latency_sec, timestamp}

Row: task = instance_id; reward = `resolved` of the row, else of test_result.report, else of test_result; options.reward
names another key of these. Log: one request, so the prompt is `messages` and every choice is a run of its own; there is
no task and no reward. Recorded token ids of a log (prompt_token_ids, token_ids) are kept.

Failed calls are told from their results, which say so in fixed words.
"""

import re
from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.messages import Json, Message
from pairwright.records import Experience
from pairwright.sources.boundary import guarded
from pairwright.sources.chat import message_from_chat, messages_from_chat, tools_from_chat
from pairwright.sources.errors_seen import error_sites
from pairwright.sources.fields import BadRecord, identifier, items, mapping, optional_mapping, score
from pairwright.sources.format import Format, Options, Origin, Rejected, build, split_at_first_answer
from pairwright.sources.tokens_seen import tokens_of_turns, turn_tokens

NAME = "openhands"
_EXIT_CODE = re.compile(r"\[(?:Command finished|The command completed) with exit code (-?\d{1,12})\.?\]")
_FAILURES = (
    ("file_not_found", re.compile(r"Ran into \[Errno 2\]|(ERROR:\s*)?The path .{1,500} does not exist")),
    ("invalid_arguments", re.compile(r"(ERROR:\s*)?(Invalid `|Error validating|Parameter `)")),
    ("unknown_tool", re.compile(r"(ERROR:\s*)?Tool .{1,200} not found")),
    ("tool_error", re.compile(r"ERROR:|Error: |Cannot execute multiple commands")),
)


def is_row(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    return "instance_id" in value and ("resolved" in value or "test_result" in value)


def is_log(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    response = value.get("response")
    has_choices = isinstance(response, dict) and isinstance(response.get("choices"), list)
    return has_choices and ("latency_sec" in value or "cost" in value)


def matches(value: Any) -> bool:
    return is_row(value) or is_log(value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    value = mapping(value, "row")
    if is_log(value):
        yield from _choices(value, origin)
    else:
        yield _row(value, origin, options)


def scores_of(row: Json, name: str | None) -> tuple[float | None, Json]:
    """The reward of a row and the scores that it was chosen from."""
    result = row.get("test_result")
    report = result.get("report") if isinstance(result, dict) else None
    places = [place for place in (row, report, result) if isinstance(place, dict)]
    found: Json = {}
    for key in ("resolved", *([name] if name is not None else [])):
        values = [score(place.get(key)) for place in places]
        value = next((value for value in values if value is not None), None)
        if value is not None:
            found[key] = value
    return found.get("resolved" if name is None else name), found


def info_of(row: Json) -> Json:
    """What a row says beside the conversation, without the logs of its tests."""
    info: Json = {key: row[key] for key in ("run_id", "error", "attempt") if row.get(key) is not None}
    result = row.get("test_result")
    if isinstance(result, dict):
        info["test_result"] = {
            key: item for key, item in result.items() if key not in ("test_output", "apply_patch_output")
        }
    return info


def said_error_kind(said: str) -> str | None:
    """The kind of failure that the text of a result tells of."""
    said = said.removeprefix("OBSERVATION:\n").lstrip()
    for kind, start in _FAILURES:
        if start.match(said):
            return kind
    codes = _EXIT_CODE.findall(said[-2000:])
    if not codes or int(codes[-1]) == 0:
        return None
    return "timeout" if codes[-1] == "-1" else "nonzero_exit"  # -1: given up on while it ran


def _row(row: Json, origin: Origin, options: Options) -> Experience:
    messages = messages_from_chat(row.get("messages"), "messages")
    tools = tools_from_chat(row.get("tools"), "tools")
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("messages: no assistant message, so there is no completion")
    reward, components = scores_of(row, options.reward)
    return build(
        NAME,
        origin,
        task=identifier(row.get("instance_id")),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=error_sites(messages, tools, _error_kind),
        info=info_of(row),
    )


def _choices(log: Json, origin: Origin) -> Iterator[Experience | Rejected]:
    prompt = messages_from_chat(log.get("messages"), "messages")
    given = log.get("tools")
    tools = tools_from_chat(
        optional_mapping(log.get("kwargs"), "kwargs").get("tools") if given is None else given, "tools"
    )
    response = mapping(log.get("response"), "response")
    choices = items(response.get("choices"), "response.choices")
    if not choices:
        raise BadRecord("response.choices: empty, so there is no completion")
    model = response.get("model")
    for number, value in enumerate(choices):
        where = f"response.choices[{number}]"
        try:
            choice = mapping(value, where)
            answer = message_from_chat(choice.get("message"), f"{where}.message")
            arrays, dropped = _tokens(response, choice)
            info: Json = {"timestamp": log["timestamp"]} if "timestamp" in log else {}
            yield build(
                NAME,
                origin,
                task=None,
                run=number if len(choices) > 1 else None,
                prompt=prompt,
                completion=[answer],
                tools=tools,
                errors=error_sites([*prompt, answer], tools, _error_kind),
                info={**info, **dropped},
                metrics=_metrics(log, response),
                model_version=model if isinstance(model, str) else None,
                truncate_status="response_truncated" if choice.get("finish_reason") == "length" else None,
                arrays=arrays,
            )
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, origin.line, str(error), format=NAME)


def _tokens(response: Json, choice: Json) -> tuple[Json | None, Json]:
    """The recorded ids of one request, and why they were dropped if they were."""
    fields = choice.get("provider_specific_fields")
    ids = choice.get("token_ids") or (fields.get("token_ids") if isinstance(fields, dict) else None)
    if not ids:
        return None, {}
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = [item.get("logprob") if isinstance(item, dict) else None for item in content or []] if content else None
    arrays = tokens_of_turns([turn_tokens(response.get("prompt_token_ids"), ids, values)])
    return arrays, {} if arrays else {"tokens_dropped": "the ids of the prompt or of the answer are not usable"}


def _metrics(log: Json, response: Json) -> Json:
    metrics: Json = {key: log[key] for key in ("cost", "latency_sec") if isinstance(log.get(key), int | float)}
    usage = response.get("usage")
    for key in ("prompt_tokens", "completion_tokens"):
        if isinstance(usage, dict) and isinstance(usage.get(key), int):
            metrics[key] = usage[key]
    return metrics


def _error_kind(position: int, message: Message) -> str | None:
    return said_error_kind(message.text)


FORMAT = Format(
    name="openhands-rows", unit="record", matches=matches, read=guarded(read), summary="OpenHands rows and request logs"
)
