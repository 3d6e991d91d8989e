"""Traces with their own preferences, in the form of S1:

    {trace_id, turns: [{role, content, tool_call, tool_error, error_meta}], final_reward,
     dpo_pairs: [{state_messages, chosen, rejected}]}

The turns are one experience with `final_reward`; each pair is a preference. A turn with `tool_call` calls a tool, and
the tool turns after it are its results, in order. A turn whose `tool_error` is true, or a text, is an error site with
`error_meta`. task = task_id or the like, else a hash of the prompt; run = a hash of trace_id.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import ErrorSite, Json, Message, ToolCall
from pairwright.sources.datasets.preference_rows import answer_from, conversations_from, preference_from, prompt_from
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    items,
    json_text,
    mapping,
    optional_items,
    optional_text,
    score,
    small_fields,
    text,
)
from pairwright.sources.format import Format, Options, Origin, Record, Rejected, build, guarded, split_at_first_answer
from pairwright.sources.shapes.chat_messages import content_from_chat
from pairwright.sources.shapes.row_fields import task_of, tools_of
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import run_of

NAME = "s1"
_READ = frozenset({"turns", "dpo_pairs", "final_reward", "tools"})


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("turns"), list) or "trace_id" not in value:
        return False
    return "final_reward" in value or isinstance(value.get("dpo_pairs"), list)


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Record | Rejected]:
    """Yield the experience of the turns, then the preferences; one that cannot be read is Rejected."""
    row = mapping(value, "trace")
    tools, info = tools_of(row), small_fields(row, _READ)
    messages, errors = _messages(items(row.get("turns"), "turns"))
    prompt, completion = split_at_first_answer(messages)
    pairs = optional_items(row.get("dpo_pairs"), "dpo_pairs")
    if completion and prompt:
        yield build(
            NAME,
            origin,
            task=task_of(row),
            run=run_of(identifier(row.get("trace_id")), origin.ordinal),
            prompt=prompt,
            completion=completion,
            tools=tools,
            reward=score(row.get(options.reward or "final_reward")),
            errors=errors,
            info=info,
        )
    elif not pairs:
        raise BadRecord("turns: no prompt with an answer of the assistant after it")
    for number, pair in enumerate(pairs):
        where = f"dpo_pairs[{number}]"
        try:
            yield _preference(mapping(pair, where), where, origin, tools, info)
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, origin.line, f"{where}: {error}", NAME)


def _preference(pair: Json, where: str, origin: Origin, tools: list[Json], info: Json) -> Record:
    state = prompt_from(pair.get("state_messages"), f"{where}.state_messages")
    chosen, rejected = (answer_from(pair.get(side), f"{where}.{side}") for side in ("chosen", "rejected"))
    prompt, chosen, rejected = conversations_from(state, chosen, rejected)
    details = {**info, **small_fields(pair, frozenset({"state_messages", "chosen", "rejected"}))}
    return preference_from(NAME, origin, prompt=prompt, chosen=chosen, rejected=rejected, tools=tools, info=details)


def _messages(turns: list[Any]) -> tuple[list[Message], list[ErrorSite]]:
    """Return the messages of the turns and their error sites."""
    messages: list[Message] = []
    errors: list[ErrorSite] = []
    waiting: list[ToolCall] = []  # calls without a result
    for number, turn in enumerate(turns):
        where = f"turns[{number}]"
        turn = mapping(turn, where)
        role = text(turn.get("role"), f"{where}.role")
        calls = [_call(call, f"{where}.tool_call", number) for call in _listed(turn.get("tool_call"))]
        is_result = role == "tool"
        call = waiting.pop(0) if is_result and waiting else None
        # A result may name its call itself.
        call_id = optional_text(turn.get("tool_call_id"), f"{where}.tool_call_id") or (call.id if call else None)
        messages.append(
            Message(
                role,
                content_from_chat(turn.get("content"), f"{where}.content"),
                tool_calls=tuple([] if is_result else calls),
                tool_call_id=call_id if is_result else None,
                name=optional_text(turn.get("name"), f"{where}.name") or (call.name if call else None),
            )
        )
        if not is_result:
            waiting = calls if calls else waiting
        error = turn.get("tool_error")
        if error:
            text_of_error = error if isinstance(error, str) else messages[-1].text
            meta = turn.get("error_meta")
            meta = meta if isinstance(meta, dict) else {}
            kind = failure_kind(meta.get("type", text_of_error), failure_kind(text_of_error, "tool_error"))
            tool = call.name if call else calls[0].name if calls else None
            errors.append(ErrorSite(number, kind, text_of_error, tool=tool, call_id=call_id, meta=meta))
    return messages, errors


def _listed(value: Any) -> list[Any]:
    return [] if not value else value if isinstance(value, list) else [value]


def _call(value: Any, where: str, number: int) -> ToolCall:
    call = mapping(value, where)
    function = mapping(call["function"], f"{where}.function") if "function" in call else call
    arguments = next((function[key] for key in ("arguments", "args", "input", "parameters") if key in function), None)
    call_id = optional_text(call.get("id", call.get("call_id")), f"{where}.id")
    return ToolCall(
        text(function.get("name", function.get("tool")), f"{where}.name"),
        "" if arguments is None else json_text(arguments),
        call_id or f"call_{number}",
    )


read = guarded(read_unit)

FORMAT = Format(name=NAME, unit="record", matches=matches, read=read, summary="Traces of S1 with their preferences")
