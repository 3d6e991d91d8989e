"""OpenHands conversations as events (JSON Lines); sources/agents/openhands_rows.py reads rows and request logs.

    SystemPromptEvent   system message, tools                 MessageEvent   a user or agent message
    ActionEvent         thought, reasoning and a call; events with the same llm_response_id form one assistant message
    ObservationEvent    a tool message; is_error, timeout, exit_code become an error site
    AgentErrorEvent, UserRejectObservation    a tool message and an error site
    Condensation        removes forgotten_event_ids from the context and adds a summary: a new step starts, with the
                        remaining messages as context, not generated
    TokenEvent          the recorded token ids of one request

A row whose `history` contains such events is read as well. task = the conversation id (a full_state event) or the row's
instance_id, else a hash of prompt and tools; step = number of preceding condensations. Reward: as in rows. Events
without a row have none; options.reward="critic" selects the last critic_result.score. Events without a preceding prompt
(part of a conversation) are kept with info["prompt_missing"]. Other kinds of events are counted in
info["other_events"].
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.agents import openhands_rows
from pairwright.sources.assemble import Parts, raw_text, read_each, split_at_first_answer
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    index,
    items,
    json_text,
    mapping,
    object_or_empty,
    objects_in,
    optional_items,
    optional_objects,
    optional_text,
    score,
    text,
    text_at,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import parts_of
from pairwright.sources.shapes.chat_messages import call_from_chat, content_from_chat, message_from_chat
from pairwright.sources.shapes.recorded_tokens import TurnTokens, tokens_of_turns, turn_tokens
from pairwright.sources.shapes.session_entries import as_past

NAME = openhands_rows.NAME
MAX_CONDENSATIONS = 256  # each step repeats the kept context
# Kinds of events that become messages
_ENTRIES = ["SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent"]
_ENTRIES += ["AgentErrorEvent", "UserRejectObservation"]
_KINDS = frozenset({*_ENTRIES, "Condensation", "ConversationStateUpdateEvent", "TokenEvent", "ConversationErrorEvent"})


@dataclass(eq=False)
class Entry:
    """A message with the ids of its events, the id of its model response, and its failure kind."""

    message: Message
    ids: set[Any]
    response: str | None = None
    error: str | None = None

    def add(self, other: "Entry") -> None:
        """Merge another action of the same model response."""
        left, right = self.message, other.message
        content, reasoning = left.content, left.reasoning
        # Each action of an answer repeats its thought: equal texts are kept once.
        if right.content not in (None, content):
            content = [*parts_of(content), *parts_of(right.content)]
        if right.reasoning not in (None, reasoning):
            reasoning = "\n\n".join(thought for thought in (reasoning, right.reasoning) if thought) or None
        calls, extra = left.tool_calls + right.tool_calls, {**left.extra, **right.extra}
        self.ids |= other.ids
        self.message = Message(left.role, content, reasoning, calls, generated=left.generated, extra=extra)


@dataclass
class Conversation:
    """Parser state: data of the conversation, and the current step."""

    row: Json
    tools: list[Json] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    last: Entry | None = None  # the last entry except results, which may be between actions of one answer
    turns: list[TurnTokens | None] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    task: int | str | None = None
    model: str | None = None
    critic: float | None = None
    step: int = 0
    num_new: int = 0  # entries added in this step


def matches(value: Any) -> bool:
    if not isinstance(value, list):
        return _is_row(value)
    first = value[:100]  # some rows may be invalid
    # One event identifies a file of events; for rows, more than half of the sample must match.
    return any(map(_is_event, value)) or 2 * sum(map(_is_row, first)) > len(first)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    rows = value if isinstance(value, list) else [value]
    if not rows:
        raise BadRecord("file: an empty list")
    if any(map(_is_event, rows)):
        yield from _experiences(rows, {}, origin)
    elif len(rows) == 1:
        yield from _row(rows[0], origin, options)
    else:
        yield from read_each(
            NAME, origin, rows, "", lambda row, n: _row(row, origin.at(origin.line, origin.ordinal + n), options)
        )


def _row(row: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    if has(row, "history") and "messages" not in row:
        yield from _experiences(items(row["history"], "history"), row, origin)
    else:
        yield from openhands_rows.read(row, origin, options)


def _experiences(events: list[Any], row: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    """Process events, ending a step at each condensation, and yield one experience per step."""
    talk = Conversation(row, task=identifier(row.get("instance_id")))
    has_steps = False
    for position, value in enumerate(events):
        # Each event is a line; the history of a row is on the row's line.
        number = (origin.line or 1) + (0 if row else position)
        try:
            event = mapping(value, "event")
            if event.get("kind") != "Condensation":
                _take(talk, event)
                continue
            # Before `_end_step`: the remaining context is computed from the step's entries, which are replaced below.
            remaining = condensed(talk.entries, event, generated=False)
            has_steps |= talk.num_new > 0
            yield from _end_step(talk, origin)
            if talk.step == MAX_CONDENSATIONS:
                raise BadRecord(f"more than {MAX_CONDENSATIONS} condensations")
            talk.entries, talk.step, talk.num_new, talk.turns, talk.last = remaining, talk.step + 1, 0, [], None
        except (BadRecord, RecordError) as error:
            has_steps = True
            yield origin.at(number, 0).rejected(error, NAME, raw_text(value))
            if talk.step == MAX_CONDENSATIONS:
                return
    if not has_steps and not talk.entries:
        raise BadRecord("events: none is a message, an action or an observation")
    yield from _end_step(talk, origin)


def _take(talk: Conversation, event: Json) -> None:
    entry, kind = _entry(event), event.get("kind")
    if entry is not None:
        if kind == "SystemPromptEvent":
            talk.tools = [tool for _, tool in optional_objects(event.get("tools"), "tools")]
        # Parallel calls of one answer are separate events: merge them into one message.
        if talk.last is not None and entry.response is not None and talk.last.response == entry.response:
            talk.last.add(entry)
        else:
            talk.entries.append(entry)
            talk.num_new += 1
            talk.last = talk.last if entry.message.role == "tool" else entry
        critic = score(value_at(event, "critic_result.score"))
        talk.critic = talk.critic if critic is None else critic
    elif kind == "TokenEvent":
        ids = (event.get("prompt_token_ids"), event.get("response_token_ids"), event.get("logprobs"))
        talk.turns.append(turn_tokens(*ids))
    else:
        talk.others[kind if isinstance(kind, str) else "no kind"] += 1
        if kind == "ConversationStateUpdateEvent":
            if event.get("key") == "full_state" and talk.task is None:
                talk.task = identifier(value_at(event, "value.id"))
            talk.model = text_at(event, "value.usage_to_metrics.default.model_name") or talk.model


def condensed(entries: list[Entry], fields: Json, *, generated: bool | None = None) -> list[Entry]:
    """Return the context after a condensation: the entries without the forgotten events, and the summary."""
    listed = optional_items(fields.get("forgotten_event_ids"), "forgotten_event_ids")
    forgotten = {event_id for event_id in listed if isinstance(event_id, int | str)}
    first, last = fields.get("forgotten_events_start_id"), fields.get("forgotten_events_end_id")
    # Either a list of ids or an inclusive range.
    if isinstance(first, int) and isinstance(last, int):
        ids = {event_id for entry in entries for event_id in entry.ids}
        forgotten = {event_id for event_id in ids if isinstance(event_id, int) and first <= event_id <= last}
    # A merged message is forgotten if any of its events is.
    remaining = [replace(entry, message=as_past(entry.message)) for entry in entries if entry.ids.isdisjoint(forgotten)]
    if isinstance(fields.get("summary"), str):
        place = index(fields.get("summary_offset"))
        summary = Message("user", fields["summary"], generated=generated, extra={"is_summary": True})
        remaining.insert(len(remaining) if place is None else place, Entry(summary, set()))
    return remaining


def _entry(event: Json) -> Entry | None:
    kind = event.get("kind")
    if kind not in _ENTRIES:
        return None
    event_id = event.get("id")
    ids = {event_id} if isinstance(event_id, str) else set()
    if kind == "SystemPromptEvent":
        return Entry(Message("system", _content(event.get("system_prompt"), "system_prompt")), ids)
    if kind == "MessageEvent":
        return Entry(_message(event), ids)
    if kind == "ActionEvent":
        response = event.get("llm_response_id")
        return Entry(_action(event), ids, response if isinstance(response, str) and response else None)
    if kind == "ObservationEvent":
        message = _observation(event)
        exit_code = message.extra.get("exit_code")
        error = None
        if message.extra.get("timeout") is True:
            error = "timeout"
        elif message.extra.get("is_error") is True:
            error = openhands_rows.error_kind_of_text(message.text) or "tool_error"
        # A negative code means that the command was still running.
        elif isinstance(exit_code, int) and exit_code > 0:
            error = "nonzero_exit"
        return Entry(message, ids, error=error)
    # Remaining kinds: an error of the agent, or an action refused by the user.
    key = "error" if kind == "AgentErrorEvent" else "rejection_reason"
    content = text(event.get(key), key)
    error = openhands_rows.error_kind_of_text(content) or "tool_error"
    return Entry(_result(event, content, {"is_error": True}), ids, error=error)


def _message(event: Json) -> Message:
    message = message_from_chat(event.get("llm_message"), "llm_message")
    content = _content(message.content, "llm_message.content")
    added = optional_items(event.get("extended_content"), "extended_content")
    if added:  # text that the program added for the model
        content = [*parts_of(content), *parts_of(_content(added, "extended_content"))]
    reasoning = message.reasoning or _thinking(event.get("llm_message"))
    return Message(message.role, content, reasoning, message.tool_calls, message.tool_call_id, message.name)


def _action(event: Json) -> Message:
    if event.get("tool_call") is not None:
        call = call_from_chat(event["tool_call"], "tool_call")
    else:
        call = ToolCall(text(event.get("tool_name"), "tool_name"), json_text(event.get("action")))
    if call.id is None:
        call = ToolCall(call.name, call.arguments, optional_text(event.get("tool_call_id"), "tool_call_id"), call.type)
    reasoning = optional_text(event.get("reasoning_content"), "reasoning_content") or _thinking(event)
    return Message(
        "assistant",
        _content(event.get("thought"), "thought"),
        reasoning,
        (call,),
        # Actions of the user or the environment were not generated.
        generated=None if event.get("source") in ("agent", None) else False,
    )


def _observation(event: Json) -> Message:
    observation = mapping(event.get("observation"), "observation")
    marks = {key: observation.get(key) for key in ("is_error", "exit_code", "timeout")}
    extra = {key: mark for key, mark in marks.items() if mark not in (None, False)}
    if "content" in observation:
        return _result(event, _content(observation["content"], "observation.content"), extra)
    output = observation.get("output")  # older versions
    return _result(event, output if isinstance(output, str) else json_text(observation), extra)


def _result(event: Json, content: str | list[Json] | None, extra: Json) -> Message:
    return Message(
        "tool",
        content,
        tool_call_id=optional_text(event.get("tool_call_id"), "tool_call_id"),
        name=optional_text(event.get("tool_name"), "tool_name"),
        extra=extra,
    )


def _content(value: Any, where: str) -> str | list[Json] | None:
    """Return content without prompt cache markers: a single text part becomes text, no parts None, others are kept."""
    content = content_from_chat(value, where)
    if not isinstance(content, list):
        return content
    # `cache_prompt` is a hint for the provider's prompt cache, not content.
    parts = [{key: item for key, item in part.items() if key != "cache_prompt"} for part in content]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and isinstance(parts[0]["text"], str):
        return str(parts[0]["text"])
    return parts or None


def _thinking(value: Any) -> str | None:
    blocks = objects_in(object_or_empty(value).get("thinking_blocks"))
    return "\n\n".join(thought for block in blocks if isinstance(thought := block.get("thinking"), str)) or None


def _end_step(talk: Conversation, origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experience of the current step, if it has new entries."""
    if talk.num_new == 0:
        return
    try:
        prompt, completion = split_at_first_answer([entry.message for entry in talk.entries])
        if not completion:
            raise BadRecord("events: no answer of the agent, so there is no completion")
        # Token ids only if each generated message has exactly one recorded request.
        num_answers = sum(message.is_generated for message in completion)
        arrays = tokens_of_turns(talk.turns) if len(talk.turns) == num_answers else None
        fields = openhands_rows.fields_of_row(talk.row)
        info = fields["info"]
        if talk.others:
            info["other_events"] = dict(talk.others)
        if talk.turns and arrays is None:
            info["tokens_dropped"] = "the recorded turns are not one for each answer, or do not continue one another"
        if not prompt:
            info["prompt_missing"] = True
        if talk.critic is not None:
            fields["reward_components"]["critic"] = talk.critic
        # By identity: equal messages may be results of different calls.
        failed = {id(entry.message): entry.error for entry in talk.entries}
        yield Parts(
            NAME,
            origin,
            **{**fields, "task": talk.task},
            step=talk.step,
            prompt=prompt,
            completion=completion,
            tools=talk.tools,
            error_kind=lambda _, message: failed.get(id(message)),
            model_version=talk.model,
            task_metadata=None if prompt else sorted(talk.entries[0].ids),  # not comparable without a prompt
            arrays=arrays,
        )
    except (BadRecord, RecordError) as error:
        yield origin.rejected(error, NAME)
    talk.others.clear()


def _is_event(value: Any) -> bool:
    return has(value, kind=str) and value["kind"] in _KINDS and value.get("source") in ("user", "agent", "environment")


def _is_row(value: Any) -> bool:
    has_events = has(value, "instance_id", history=list) and any(map(_is_event, value["history"]))
    return has_events or openhands_rows.matches(value)


FORMAT = Format(NAME, "file", matches, read, "OpenHands events, rows and request logs")
