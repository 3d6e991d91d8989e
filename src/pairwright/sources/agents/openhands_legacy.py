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
from pairwright.sources.agents.openhands_events import error_kind_of_text, info_of, scores_of
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    items,
    json_text,
    mapping,
    optional_items,
    optional_mapping,
    score,
    text,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat, tools_from_chat
from pairwright.sources.shapes.session_entries import as_past
from pairwright.sources.shapes.tool_errors import result_error_kind

NAME = "openhands"
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

    messages: list[tuple[Any, Message]] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    model: str | None = None
    response_ids: set[str] = field(default_factory=set)
    others: Counter[str] = field(default_factory=Counter)


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("history"), list) and any(map(_is_event, _flat(value["history"])))
    return isinstance(value, list) and any(map(_is_event, value[:100]))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a list of events, or of the rows of a file."""
    if isinstance(value, dict) or any(map(_is_event, items(value, "events")[:100])):
        yield from _read_row(value if isinstance(value, dict) else {"history": value}, origin)
        return
    for number, item in enumerate(value):
        line = None if origin.line is None else origin.line + number
        inner = origin.at(line, number)
        try:
            yield from _read_row(mapping(item, f"[{number}]"), inner)
        except ValueError as error:  # BadRecord or RecordError: refuse this row only
            yield Rejected(origin.file, line, str(error), NAME)


def _read_row(row: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experience of one conversation, and one more for each condensation in it."""
    talk, step = Talk(), 0
    for number, item in enumerate(_flat(items(row.get("history"), "history"))):
        event = mapping(item, f"history[{number}]")
        if event.get("action") == "condensation":
            # Without an answer since the last condensation there is nothing to train on.
            if any(message.is_generated for _, message in talk.messages):
                yield _experience(talk, row, origin, step)
            _condense(talk, event)
            step += 1
        else:
            _take(talk, event, f"history[{number}]")
    # Step 0 is also read without an answer, so that its refusal gives the reason.
    if step == 0 or any(message.is_generated for _, message in talk.messages):
        yield _experience(talk, row, origin, step)


def _experience(talk: Talk, row: Json, origin: Origin, step: int) -> Parts:
    messages = [message for _, message in talk.messages]
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("history: no action of the agent, so there is no completion")
    reward, components, fields = scores_of(row)
    if reward is None and (success := score(row.get("success"))) is not None:
        reward, components = success, {**components, "success": success}
    info = {**info_of(row), "other_events": dict(talk.others), "prompt_missing": None if prompt else True}
    return Parts(
        NAME,
        origin,
        task=identifier(row.get("instance_id")),
        step=step,
        prompt=prompt,
        completion=completion,
        tools=talk.tools,
        reward=reward,
        reward_components=components,
        row=fields,
        error_kind=_error_kind,
        info={key: item for key, item in info.items() if item},
        metrics=optional_mapping(row.get("metrics"), "metrics"),
        model_version=talk.model,
    )


def _take(talk: Talk, event: Json, where: str) -> None:
    """Add the messages of one event."""
    action, observation = event.get("action"), event.get("observation")
    # Fields in `args` or `extras` override those of the event.
    fields = {**event, **optional_mapping(event.get("args", event.get("extras")), f"{where}.args")}
    kind = action if isinstance(action, str) else observation
    if not isinstance(kind, str) or kind in _SILENT:
        talk.others[kind if isinstance(kind, str) else "no kind"] += 1
    elif isinstance(action, str):
        for message in _action(talk, action, event, fields, where):
            talk.messages.append((event.get("id"), message))
    else:
        content = fields.get("content")
        content = content if isinstance(content, str) else json_text(content)
        call_id, extra = _answered(talk, event), _outcome(kind, fields)
        # An observation without a call, made by the controller, is a user turn for the model.
        role = "user" if call_id is None else "tool"
        talk.messages.append((event.get("id"), Message(role, content, tool_call_id=call_id, extra=extra)))


def _action(talk: Talk, action: str, event: Json, fields: Json, where: str) -> list[Message]:
    """Return the message of an action; [] if its answer was already added with another call."""
    if action == "system":
        talk.tools = tools_from_chat(fields.get("tools"), f"{where}.tools")
        return [Message("system", text(fields.get("content"), f"{where}.content"))]
    # In files without sources, the first message is the user's task.
    is_first = not any(message.role == "user" for _, message in talk.messages)
    if event.get("source") == "user" or (action == "message" and "source" not in event and is_first):
        return [Message("user", text(fields.get("content"), f"{where}.content"))]
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, dict) else None
    if isinstance(response, dict) and optional_items(response.get("choices"), f"{where}.choices"):
        talk.model = response["model"] if isinstance(response.get("model"), str) else talk.model
        response_id = response.get("id")
        # An answer with several calls is logged as several actions, each with the whole answer.
        if isinstance(response_id, str) and response_id in talk.response_ids:
            return []
        talk.response_ids.add(str(response_id))
        choice = mapping(response["choices"][0], f"{where}.choices[0]")
        chat = mapping(choice.get("message"), f"{where}.choices[0].message")
        known = {key: chat[key] for key in ("content", "tool_calls", "reasoning_content") if key in chat}
        return [message_from_chat({"role": "assistant", **known}, f"{where}.message")]
    thought = fields.get("thought")
    if action == "message":
        return [Message("assistant", text(fields.get("content"), f"{where}.content"))]
    arguments = {key: item for key, item in fields.items() if key not in _NO_ARGUMENTS and item is not None}
    # The id is derived from the position, so that `_answered` can link the observation.
    call = ToolCall(action, json_text(arguments), f"call_{len(talk.messages)}")
    return [Message("assistant", thought if isinstance(thought, str) and thought else None, tool_calls=(call,))]


def _answered(talk: Talk, event: Json) -> str | None:
    """Return the id of the call that an observation answers, or None."""
    metadata = event.get("tool_call_metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("tool_call_id"), str):
        return str(metadata["tool_call_id"])
    cause = event.get("cause")
    answered = {message.tool_call_id for _, message in talk.messages[-50:]}
    for event_id, message in reversed(talk.messages):
        # An observation never answers a call before the last answered one.
        if message.tool_calls and message.tool_calls[0].id in answered:
            break
        if message.tool_calls and (cause is None or event_id == cause):
            call: ToolCall = message.tool_calls[0]
            return call.id
    return None


def _outcome(kind: str, fields: Json) -> Json:
    metadata = fields.get("metadata")
    code = metadata.get("exit_code", fields.get("exit_code")) if isinstance(metadata, dict) else fields.get("exit_code")
    extra: Json = {"exit_code": code} if isinstance(code, int) and code != 0 else {}
    return {**extra, "is_error": True} if kind == "error" else extra


def _condense(talk: Talk, event: Json) -> None:
    """Replace the forgotten events by the summary; the remaining messages become context."""
    fields = {**event, **optional_mapping(event.get("args"), "args")}
    gone = optional_items(fields.get("forgotten_event_ids"), "forgotten_event_ids")
    first, last = fields.get("forgotten_events_start_id"), fields.get("forgotten_events_end_id")
    # Either a list of ids or an inclusive range.
    if isinstance(first, int) and isinstance(last, int):
        gone = [event_id for event_id, _ in talk.messages if isinstance(event_id, int) and first <= event_id <= last]
    remaining = [(event_id, as_past(message)) for event_id, message in talk.messages if event_id not in gone]
    if isinstance(fields.get("summary"), str):
        at = fields.get("summary_offset")
        summary = Message("user", fields["summary"], extra={"is_summary": True})
        remaining.insert(at if isinstance(at, int) and 0 <= at <= len(remaining) else len(remaining), (None, summary))
    talk.messages = remaining


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
    if not isinstance(value, dict) or "kind" in value or "role" in value:
        return False
    kind = value.get("action", value.get("observation"))
    if not isinstance(kind, str):
        return False
    has_fields = not {"args", "extras", "is_confirmed", "cause"}.isdisjoint(value)
    return has_fields or ("observation" in value and "content" in value) or ("source" in value and "timestamp" in value)


FORMAT = Format(NAME, "record", matches, read, "OpenHands events before its SDK")
