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
from dataclasses import dataclass, field
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json
from pairwright.sources.agents import openhands_rows
from pairwright.sources.agents.openhands_events import KINDS, Entry, condensed, entry_of_event
from pairwright.sources.assemble import Parts, raw_text, read_each, split_at_first_answer
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    items,
    mapping,
    optional_objects,
    score,
    text_at,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.recorded_tokens import TurnTokens, tokens_of_turns, turn_tokens

NAME = openhands_rows.NAME
MAX_CONDENSATIONS = 256  # each step repeats the kept context


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
    """Yield the experiences of a file of events, or of one or more rows."""
    rows = value if isinstance(value, list) else [value]
    if any(map(_is_event, rows)):
        yield from _experiences(rows, {}, origin)
    elif len(rows) == 1:
        yield from _row(rows[0], origin, options)
    elif rows:

        def read_row(row: Json, number: int) -> Iterator[Parts | Rejected]:
            return _row(row, origin.at(origin.line, origin.ordinal + number), options)

        yield from read_each(NAME, origin, rows, "", read_row)
    else:
        raise BadRecord("file: an empty list")


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
            yield Rejected(origin.file, number, str(error), format=NAME, raw=raw_text(value))
            if talk.step == MAX_CONDENSATIONS:
                return
    if not has_steps and not talk.entries:
        raise BadRecord("events: none is a message, an action or an observation")
    yield from _end_step(talk, origin)


def _take(talk: Conversation, event: Json) -> None:
    """Process one event: add it to the conversation, its tokens or the event counts."""
    entry, kind = entry_of_event(event), event.get("kind")
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
        yield Rejected(origin.file, origin.line, str(error), format=NAME)
    talk.others.clear()


def _is_event(value: Any) -> bool:
    return has(value, kind=str) and value["kind"] in KINDS and value.get("source") in ("user", "agent", "environment")


def _is_row(value: Any) -> bool:
    has_events = has(value, "instance_id", history=list) and any(map(_is_event, value["history"]))
    return has_events or openhands_rows.matches(value)


FORMAT = Format(NAME, "file", matches, read, "OpenHands events, rows and request logs")
