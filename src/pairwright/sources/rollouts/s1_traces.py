"""Traces and preferences in the form of the Composer collator (composer-replication-framework):

    {trace_id, turns: [{role, content, tool_call, tool_error, error_meta}], final_reward,
     dpo_pairs: [{state_messages, chosen, rejected}]}
    {state_messages, chosen, rejected}     a pair alone

The turns are one experience with `final_reward`; each pair is a preference. A pair without `state_messages` uses the
prompt of its trace. A turn with `tool_call` calls a tool, and the following tool turns are its results, in order. Turns
without text and calls are left out and counted in info["empty_turns"].

An assistant turn with `tool_error` is the recovery: the previous message shows the failure and is the error site. On
any other turn, `tool_error` marks the turn itself. `tool_error` is the kind of the error, `error_meta` its details.

task = task_id or a synonym, else a hash of the prompt; run = a hash of trace_id. `pairwright.composer` also uses
`read_turns` and `read_pair`, so that a file and a batch give the same training data.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import ErrorSite, Json, Message, ToolCall
from pairwright.sources.assemble import Parts, read_each, split_at_first_answer
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    preference_of_row,
    prompt_from,
)
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    has,
    identifier,
    items,
    json_text,
    list_or_empty,
    mapping,
    object_or_empty,
    objects,
    objects_in,
    optional_items,
    optional_text,
    score,
    small_fields,
    text,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import content_from_chat
from pairwright.sources.shapes.row_fields import task_of, tools_of
from pairwright.sources.shapes.tool_errors import failure_kind, tool_names
from pairwright.sources.shapes.traces import run_of

NAME = "s1"
_PAIR = frozenset({"state_messages", "chosen", "rejected"})
_PAIR_READ = _PAIR | SCORES | {"tools"}
_READ = frozenset({"turns", "dpo_pairs", "final_reward", "tools"})


def matches(value: Any) -> bool:
    is_trace = has(value, "trace_id", turns=list) and ("final_reward" in value or has(value, dpo_pairs=list))
    return is_trace or has(value, *_PAIR)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of the turns, then the preferences; unreadable ones are Rejected."""
    row = mapping(value, "trace")
    if has(row, *_PAIR):
        yield preference_of_row(NAME, origin, row, read_pair(row, "pair", []), small_fields(row, _PAIR_READ))
        return
    tools, info = tools_of(row), small_fields(row, _READ)
    messages, errors, num_empty = read_turns(items(row.get("turns"), "turns"))
    if num_empty:
        info["empty_turns"] = num_empty
    prompt, completion = split_at_first_answer(messages)
    pairs = optional_items(row.get("dpo_pairs"), "dpo_pairs")
    if completion and prompt:
        yield Parts(
            NAME,
            origin,
            task=task_of(row),
            run=run_of(identifier(row.get("trace_id")), origin.ordinal),
            prompt=prompt,
            completion=completion,
            tools=tools,
            reward=score(row.get("final_reward")),
            errors=errors,
            info=info,
        )
    elif not pairs:
        raise BadRecord("turns: no prompt with an answer of the assistant after it")

    def read_preference(pair: Json, number: int) -> Iterator[Parts]:
        state, chosen, rejected = read_pair(pair, f"dpo_pairs[{number}]", prompt)
        details = {**info, **small_fields(pair, _PAIR)}
        yield Parts(NAME, origin, prompt=state, chosen=chosen, rejected=rejected, tools=tools, info=details)

    yield from read_each(NAME, origin, pairs, "dpo_pairs", read_preference)


def read_pair(pair: Json, where: str, prompt: list[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the prompt and both answers; the default for `state_messages` is `prompt`."""
    state = pair.get("state_messages")
    state = prompt_from(state, f"{where}.state_messages") if state else prompt
    chosen, rejected = (answer_from(pair.get(side), f"{where}.{side}") for side in ("chosen", "rejected"))
    return conversations_from(state, chosen, rejected)


def read_turns(turns: list[Any]) -> tuple[list[Message], list[ErrorSite], int]:
    """Return the messages of the turns, their error sites, and the number of turns without text and calls."""
    messages: list[Message] = []
    errors: list[ErrorSite] = []
    num_empty = 0
    waiting: list[ToolCall] = []  # calls without a result
    last_call: ToolCall | None = None
    for number, (where, turn) in enumerate(objects(turns, "turns")):
        role = text(turn.get("role"), f"{where}.role")
        content = content_from_chat(turn.get("content"), f"{where}.content")
        is_result = role == "tool"
        calls = [] if is_result else _calls(turn.get("tool_call"), f"{where}.tool_call", number)
        if not (content or calls or is_result):
            num_empty += 1
            continue
        call = waiting.pop(0) if is_result and waiting else None

        call_id = optional_text(turn.get("tool_call_id"), f"{where}.tool_call_id") or (call.id if call else None)
        messages.append(
            Message(
                role,
                content,
                tool_calls=tuple(calls),
                tool_call_id=call_id if is_result else None,
                name=optional_text(turn.get("name"), f"{where}.name") or (call.name if call else None),
            )
        )
        error = turn.get("tool_error")
        # The error site of a recovery is the previous message, which a first turn lacks.
        index = len(messages) - (2 if role == "assistant" else 1)
        if error is not None and error is not False and index >= 0:
            errors.append(_error_site(index, messages[index], error, turn.get("error_meta"), last_call))
        # Updated last: the calls of a recovery come after the failure.
        if calls:
            waiting, last_call = list(calls), calls[-1]
    return messages, errors, num_empty


def _error_site(index: int, shown: Message, error: Any, meta: Any, last_call: ToolCall | None) -> ErrorSite:
    """Return the error site of `shown`, the message with the failure; its tool is in `meta`, else the last called."""
    meta = object_or_empty(meta)
    tools = (meta.get("tool"), meta.get("tool_name"), shown.name, last_call.name if last_call else None)
    kind = error
    if not isinstance(error, str):  # a flag: the kind is in the details, or in the tool's text
        kind = failure_kind(meta.get("type"), failure_kind(shown.text, "tool_error"))
    available = list_or_empty(meta.get("available_tools"))
    named = [item for item in available if isinstance(item, str)]
    return ErrorSite(
        index,
        kind,
        shown.text,
        tool=next(filter(None, map(filled_text, tools)), None),
        call_id=shown.tool_call_id,
        available_tools=(*named, *tool_names(objects_in(available))),
        meta=meta,
    )


def _calls(value: Any, where: str, number: int) -> list[ToolCall]:
    """Read one call or a list of calls; a call without an id gets one from the number of its turn."""
    calls = []
    for place, item in enumerate([] if not value else value if isinstance(value, list) else [value]):
        call = mapping(item, where)
        function = mapping(call["function"], f"{where}.function") if "function" in call else call
        keys = (key for key in ("arguments", "args", "input", "parameters") if key in function)
        arguments = function.get(next(keys, "arguments"))
        call_id = optional_text(call.get("id", call.get("call_id")), f"{where}.id")
        calls.append(
            ToolCall(
                text(function.get("name", function.get("tool")), f"{where}.name"),
                "" if arguments is None else json_text(arguments),
                call_id or (f"call_{number}_{place}" if place else f"call_{number}"),
            )
        )
    return calls


FORMAT = Format(NAME, "record", matches, read, "Traces and pairs of the Composer collator")
