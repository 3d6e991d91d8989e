"""OpenHands before its SDK: a list of events, or rows with such events under `history`, written by evaluations.

    action        of the agent; `tool_call_metadata.model_response` has the model's answer, with all its calls
    observation   the result of an action: by tool_call_id, by `cause`, else of the previous unanswered action
    message       text of the user or the agent        system   the system prompt and the tools
    condensation  the forgotten events are replaced by its summary: a new step
    others        state changes, recalls and empty observations: counted in info

An action without the model's answer (older versions) is a call named after the action, with its arguments; its thought
is the text before it. Events may have their fields in `args` and `extras` or at the top level, and may be in pairs.
task = instance_id, else a hash of the prompt. The reward is `resolved` of the row or its test report, else `success`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.agents.openhands import Entry, condensed
from pairwright.sources.agents.openhands_rows import NAME, error_kind_of_text, fields_of_row
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    has,
    items,
    json_text,
    list_or_empty,
    mapping,
    object_or_empty,
    objects,
    optional_items,
    optional_mapping,
    score,
    text,
    text_at,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat, tools_from_chat
from pairwright.sources.shapes.tool_errors import result_error_kind

# Actions and observations that are not part of the conversation.
_SILENT = frozenset({"change_agent_state", "agent_state_changed", "null", "recall", "condensation_request", "noop"})
# Fields of an action that are not arguments of its call: fields of the event, and the thought.
_NO_ARGUMENTS = frozenset(
    {"thought", "is_confirmed", "confirmation_state", "action_risk", "security_risk", "keep_prompt", "action", "id"}
    | {"timestamp", "source", "message", "hidden", "args", "tool_call_metadata", "cause"}
)


@dataclass
class Talk:
    """Parser state: the messages, each with the id of its event, and other data from the events."""

    entries: list[Entry] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    model: str | None = None
    response_ids: set[str] = field(default_factory=set)
    others: Counter[str] = field(default_factory=Counter)

    @property
    def has_answer(self) -> bool:
        return any(entry.message.is_generated for entry in self.entries)


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_event, _flat(list_or_empty(value.get("history")))))
    return isinstance(value, list) and any(map(_is_event, value[:100]))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    if isinstance(value, dict) or any(map(_is_event, items(value, "events")[:100])):
        yield from _read_row(value if isinstance(value, dict) else {"history": value}, origin)
        return
    for number, item in enumerate(value):
        line = None if origin.line is None else origin.line + number
        inner = origin.at(line, number)
        try:
            yield from _read_row(mapping(item, f"[{number}]"), inner)
        except ValueError as error:  # BadRecord or RecordError: refuse this row only
            yield inner.rejected(error, NAME)


def _read_row(row: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experience of one conversation, and one more for each condensation in it."""
    talk, step = Talk(), 0
    for where, event in objects(_flat(items(row.get("history"), "history")), "history"):
        if event.get("action") == "condensation":
            # Without an answer since the last condensation there is nothing to train on.
            if talk.has_answer:
                yield _experience(talk, row, origin, step)

            talk.entries = condensed(talk.entries, {**event, **optional_mapping(event.get("args"), "args")})
            step += 1
        else:
            _take(talk, event, where)
    # Step 0 is read even without an answer, so that it is refused with the reason.
    if step == 0 or talk.has_answer:
        yield _experience(talk, row, origin, step)


def _experience(talk: Talk, row: Json, origin: Origin, step: int) -> Parts:
    prompt, completion = split_at_first_answer([entry.message for entry in talk.entries])
    if not completion:
        raise BadRecord("history: no action of the agent, so there is no completion")
    fields = fields_of_row(row)
    if fields["reward"] is None and (success := score(row.get("success"))) is not None:
        fields |= {"reward": success, "reward_components": {**fields["reward_components"], "success": success}}
    info = {**fields["info"], "other_events": dict(talk.others), "prompt_missing": None if prompt else True}
    return Parts(
        NAME,
        origin,
        **{**fields, "info": {key: item for key, item in info.items() if item}},
        step=step,
        prompt=prompt,
        completion=completion,
        tools=talk.tools,
        error_kind=_error_kind,
        metrics=optional_mapping(row.get("metrics"), "metrics"),
        model_version=talk.model,
    )


def _take(talk: Talk, event: Json, where: str) -> None:
    action, observation = event.get("action"), event.get("observation")
    # Fields in `args` or `extras` override those of the event.
    fields = {**event, **optional_mapping(event.get("args", event.get("extras")), f"{where}.args")}
    kind = action if isinstance(action, str) else observation
    if not isinstance(kind, str) or kind in _SILENT:
        talk.others[kind if isinstance(kind, str) else "no kind"] += 1
        return
    if isinstance(action, str):
        message = _action(talk, action, event, fields, where)
    else:
        content = json_text(fields.get("content"))
        call_id = _answered(talk, event)
        code = object_or_empty(fields.get("metadata")).get("exit_code", fields.get("exit_code"))
        extra: Json = {"exit_code": code} if isinstance(code, int) and code != 0 else {}
        if kind == "error":
            extra["is_error"] = True
        # An observation without a call, made by the controller, is a user turn for the model.
        message = Message("user" if call_id is None else "tool", content, tool_call_id=call_id, extra=extra)
    if message is not None:
        event_id = event.get("id")
        talk.entries.append(Entry(message, {event_id} if isinstance(event_id, int | str) else set()))


def _action(talk: Talk, action: str, event: Json, fields: Json, where: str) -> Message | None:
    """Return the message of an action; None if its answer was already added with another call."""
    if action == "system":
        talk.tools = tools_from_chat(fields.get("tools"), f"{where}.tools")
        return Message("system", text(fields.get("content"), f"{where}.content"))
    # In files without sources, the first message is the user's task.
    is_first = not any(entry.message.role == "user" for entry in talk.entries)
    if event.get("source") == "user" or (action == "message" and "source" not in event and is_first):
        return Message("user", text(fields.get("content"), f"{where}.content"))
    response = object_or_empty(value_at(event, "tool_call_metadata.model_response"))
    if choices := optional_items(response.get("choices"), f"{where}.choices"):
        talk.model = text_at(response, "model") or talk.model
        response_id = response.get("id")
        # An answer with several calls is logged as several actions, each with the whole answer.
        if isinstance(response_id, str) and response_id in talk.response_ids:
            return None
        talk.response_ids.add(str(response_id))
        chat = mapping(mapping(choices[0], f"{where}.choices[0]").get("message"), f"{where}.choices[0].message")
        known = {key: chat[key] for key in ("content", "tool_calls", "reasoning_content") if key in chat}
        return message_from_chat({"role": "assistant", **known}, f"{where}.message")
    if action == "message":
        return Message("assistant", text(fields.get("content"), f"{where}.content"))
    arguments = {key: item for key, item in fields.items() if key not in _NO_ARGUMENTS and item is not None}
    # The id is derived from the position, so that `_answered` can link the observation.
    call = ToolCall(action, json_text(arguments), f"call_{len(talk.entries)}")
    return Message("assistant", filled_text(fields.get("thought")), tool_calls=(call,))


def _answered(talk: Talk, event: Json) -> str | None:
    """Return the id of the call that an observation answers, or None."""
    call_id = value_at(event, "tool_call_metadata.tool_call_id")
    if isinstance(call_id, str):
        return call_id
    cause = event.get("cause")
    answered = {entry.message.tool_call_id for entry in talk.entries[-50:]}
    for entry in reversed(talk.entries):
        calls = entry.message.tool_calls
        # An observation never answers a call before the last answered one.
        if calls and calls[0].id in answered:
            break
        if calls and (cause is None or cause in list(entry.ids)):
            return calls[0].id
    return None


def _error_kind(position: int, message: Message) -> str | None:
    if message.extra.get("is_error") is True:
        return result_error_kind(position, message) or "tool_error"
    if "exit_code" in message.extra:
        # -1: the command was still running at the timeout.
        return "timeout" if message.extra["exit_code"] == -1 else "nonzero_exit"
    return error_kind_of_text(message.text)


def _flat(history: list[Any]) -> list[Any]:
    """Return the events; the (action, observation) pairs of older files are flattened."""
    return [event for item in history for event in (item if isinstance(item, list) else [item])]


def _is_event(value: Any) -> bool:
    # `kind` marks events of the SDK, `role` chat messages.
    if not has(value) or "kind" in value or "role" in value:
        return False
    kind = value.get("action", value.get("observation"))
    if not isinstance(kind, str):
        return False
    has_fields = not {"args", "extras", "is_confirmed", "cause"}.isdisjoint(value)
    return has_fields or ("observation" in value and "content" in value) or ("source" in value and "timestamp" in value)


FORMAT = Format(NAME, "record", matches, read, "OpenHands events before its SDK")
