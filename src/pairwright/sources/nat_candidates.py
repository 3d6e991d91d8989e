"""Candidates in NAT's intermediate steps: each TTC_END event is one, with its prompt, its answer and its score.

What an END lacks is taken from its START. Candidates of one turn share a step, and different turns never do; nat.py
says how tasks, runs and batches are told.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.messages import Json, Message
from pairwright.records import Experience
from pairwright.sources.errors_seen import error_sites
from pairwright.sources.fields import BadRecord, identifier, index, json_text, optional_mapping, score
from pairwright.sources.format import Options, Origin, Rejected, build
from pairwright.sources.message_shapes import answers, conversation, decoded, marked_error
from pairwright.sources.nat_events import NAME, event_of, name_of, rejected

_KEYS = ("turn_id", "turn_index", "candidate_index", "score")


def read_candidates(
    item: Json, payloads: list[Json], run: int, origin: Origin, options: Options
) -> Iterator[Experience | Rejected]:
    starts = {p["UUID"]: p for p in payloads if event_of(p) == "TTC_START" and isinstance(p.get("UUID"), str)}
    ends = [payload for payload in payloads if event_of(payload) == "TTC_END"]
    names = list(dict.fromkeys(name_of(payload) for payload in ends))
    ended = {payload["UUID"] for payload in ends if isinstance(payload.get("UUID"), str)}
    for uuid in (uuid for uuid in starts if uuid not in ended and options.step_name in (None, name_of(starts[uuid]))):
        yield rejected(
            f"TTC_START {uuid!r} of {name_of(starts[uuid])!r} has no TTC_END: the candidate is not there", origin
        )
    if options.step_name is not None and options.step_name not in names:
        yield rejected(f"no TTC_END event named {options.step_name!r}; there are {', '.join(map(repr, names))}", origin)
        return
    prompts = _Prompts(item, _schemas(payloads))
    turns = {name: _Turns() for name in names}
    for payload in ends:
        name = name_of(payload)
        if options.step_name not in (None, name):
            continue
        start = starts.get(payload["UUID"], {}) if isinstance(payload.get("UUID"), str) else {}
        try:
            fields = _fields(payload, start)
            step = turns[name].step(fields)
            batch = name if len(names) > 1 else ""
            if options.reward not in (None, "score", "reward"):  # another number, which the importer looks for
                fields["score"] = None
            yield _candidate(
                payload, fields, prompts.of(fields["input"]), _Place(item.get("id"), run, step, batch), origin
            )
        except PairwrightError as error:
            yield rejected(f"TTC_END {payload.get('UUID')!r}: {error}", origin)


def _fields(payload: Json, start: Json) -> Json:
    """What an event says of its candidate: in `data`, in data.payload, in the metadata, or in its START's data."""
    data = optional_mapping(payload.get("data"), "data")
    begun = optional_mapping(start.get("data"), "data of TTC_START")
    metadata = optional_mapping(payload.get("metadata"), "metadata")
    fields: Json = dict.fromkeys(_KEYS)
    for place in (begun, metadata.get("provided_metadata"), metadata, data.get("payload"), data):  # the last one counts
        if isinstance(place, dict) and place:
            fields |= {key: place[key] for key in _KEYS if place.get(key) is not None}
    given = data.get("input")
    fields["input"] = begun.get("input") if given is None else given
    fields["output"], fields["data"] = data.get("output"), data
    return fields


class _Prompt(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    origin: str | None  # where the messages are from, if not from the event


class _Prompts:
    """What candidates were given. Those of one turn stand together and share it, so that it is read and hashed once."""

    def __init__(self, item: Json, schemas: dict[str, list[Json]]) -> None:
        self._item = item
        self._schemas = schemas
        self._last: tuple[tuple[type, str], _Prompt] | None = None

    def of(self, given: Any) -> _Prompt:
        key = (type(given), given if isinstance(given, str) else _key(given))
        if self._last is None or self._last[0] != key:
            self._last = (key, self._read(given))
        return self._last[1]

    def _read(self, given: Any) -> _Prompt:
        tools = tuple(self._schemas.get(_key(given), ()))
        if messages := conversation(given, "data.input", role="user"):
            return _Prompt(tuple(messages), tools, None)
        messages = conversation(self._item.get("question"), "question", role="user")
        origin = "the item's question: the event has no input" if messages else "nothing: no input was logged"
        return _Prompt(tuple(messages), tools, origin)


class _Place(msgspec.Struct, frozen=True):
    """Where a candidate belongs."""

    task: Any
    run: int
    step: int
    batch: str


class _Turns(msgspec.Struct):
    """The step of each turn: its turn_index, or the next free number where another turn_id has that already."""

    steps: dict[int | str, int] = {}
    taken: set[int] = set()
    free: int = 0

    def step(self, fields: Json) -> int:
        turn, given = identifier(fields["turn_id"]), index(fields["turn_index"])
        if turn is None:
            return 0 if given is None else given
        if turn not in self.steps:
            step = given if given is not None and given not in self.taken else self.free
            self.steps[turn] = step
            self.taken.add(step)
            self.free = max(self.free, step + 1)
        return self.steps[turn]


def _candidate(payload: Json, fields: Json, prompt: _Prompt, place: _Place, origin: Origin) -> Experience:
    info: Json = {"step_name": name_of(payload), "uuid": payload.get("UUID")}
    info |= {key: fields[key] for key in ("turn_id", "turn_index", "candidate_index")}
    info["metadata"] = payload.get("metadata")
    info["prompt_from"] = prompt.origin
    alternatives = answers(fields["output"], "data.output")
    if len(alternatives) > 1:
        raise BadRecord(f"data.output: {len(alternatives)} alternative answers under one score")
    if alternatives:
        completion = alternatives[0]
    else:  # kept, so that it can lose: an empty answer is an answer
        completion = [Message("assistant", "")]
        info["empty_output"] = "no output key" if "output" not in fields["data"] else json_text(fields["output"])
    return build(
        NAME,
        origin,
        task=identifier(place.task),
        batch=place.batch,
        run=place.run,
        step=place.step,
        prompt=prompt.messages,
        completion=completion,
        tools=prompt.tools,
        reward=score(fields["score"]),
        errors=error_sites([*prompt.messages, *completion], list(prompt.tools), marked_error),
        info={key: value for key, value in info.items() if value is not None},
    )


def _schemas(payloads: list[Json]) -> dict[str, list[Json]]:
    """The tools that the model had, by the input that it had them with."""
    found: dict[str, list[Json]] = {}
    for payload in payloads:
        metadata, data = payload.get("metadata"), payload.get("data")
        if event_of(payload) == "LLM_START" and isinstance(metadata, dict) and isinstance(data, dict):
            listed = metadata.get("tools_schema")
            schemas = [schema for schema in listed if isinstance(schema, dict)] if isinstance(listed, list) else []
            if schemas:
                found[_key(data.get("input"))] = schemas
    return found


def _key(value: Any) -> str:
    return json_text(decoded(value))
