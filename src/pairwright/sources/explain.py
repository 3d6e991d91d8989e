"""Explain how a file would be imported: what each field of the first records becomes; for an unknown file, a map.

The use of a field is measured: the field is changed, the record is read again, and the two results are compared. This
works for every format, since the reader itself gives the answer. Nothing is written.
"""

import shlex
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from pairwright.errors import RecordError
from pairwright.paths import Place
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, kind_of
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import Layout, detect, file_units
from pairwright.sources.suggest_map import Trial, leaves_of, sample_rows, suggest

NUM_RECORDS = 3
_MAX_FIELDS = 100  # each field costs up to two more reads of the record
_WIDTH = 60  # characters of a value in a listing
# Keys whose text is structure, not content: never changed by `_change`.
_FIXED = frozenset({"role", "from", "type", "id", "name", "tool_call_id", "call_id", "tool_use_id", "finish_reason"})
# Typical keys of each format, for naming the format nearest to an unknown file.
_KEYS = {
    "nemo-gym": "responses_create_params response reward agent_ref",
    "tau-bench": "task_id trial reward traj info",
    "atif": "schema_version session_id agent steps",
    "nat": "parent_id function_ancestry payload intermediate_steps",
    "inspect": "version status eval samples results",
    "langfuse": "trace observations scores",
    "langsmith": "id run_type inputs outputs parent_run_id dotted_order",
    "otel": "resourceSpans trace_id span_id attributes parent_id",
    "claude-code": "uuid parentUuid sessionId type message isSidechain",
    "codex": "timestamp type payload",
    "swe-agent": "trajectory history info",
    "openhands": "id source action observation messages resolved test_result",
    "trinity": "tokens prompt_length reward eid messages",
    "nemo-rl-preference": "context completions",
    "openai-preference": "input preferred_output non_preferred_output",
    "customizer": "prompt chosen_response rejected_response",
    "ultrafeedback": "instruction completions models",
    "sharegpt": "conversations system tools",
    "trl-preference": "prompt chosen rejected completion label",
    "openai-chat": "messages tools request response",
    "rows": "prompt question input completion response output reward score",
}


class FieldUse(msgspec.Struct, frozen=True):
    """A field of a record: the start of its value, and its use."""

    name: str
    value: str
    becomes: str


class RecordUse(msgspec.Struct, frozen=True):
    """A record: its location, its fields, and its experiences or the reason for its refusal."""

    where: str
    fields: list[FieldUse]
    experiences: list[str]
    reason: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    file: str
    format: str | None = None
    reason: str | None = None
    records: list[RecordUse] = []
    keys: dict[str, str] = {}
    nearest: str | None = None
    command: str | None = None
    trial: Trial | None = None

    def as_json(self) -> Json:
        return {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, [], {})}

    def lines(self) -> Iterator[str]:
        yield f"{self.file}: {self.format or 'no known format'}" + (f" ({self.reason})" if self.reason else "")
        for record in self.records:
            yield f"  {record.where}" + (f": refused: {record.reason}" if record.reason else "")
            width = max((len(use.name) for use in record.fields), default=0)
            for use in record.fields:
                yield f"    {use.name:{width}}  ->  {use.becomes:34} {use.value}"
            yield from (f"    = {text}" for text in record.experiences)
        if self.keys:
            yield "  keys of its first records:"
            width = max(map(len, self.keys))
            yield from (f"    {path:{width}}  {value}" for path, value in self.keys.items())
        if self.nearest:
            yield f"  nearest format: {self.nearest}"
        if self.trial is not None:
            trial = self.trial
            yield f"  this map reads it: {self.command}"
            more = ", and goes on" if trial.is_partial else ""
            yield f"    = {trial.num_experiences:,} experiences{more}; {trial.num_refused:,} records refused"
            yield f"    = first prompt {_preview(trial.prompt)}"
            yield f"    = first answer {_preview(trial.answer)}; reward {trial.reward}"
        elif self.keys:
            yield "  no map was found that reads it; --map prompt=FIELD,completion=FIELD,reward=FIELD names its fields"


def explain_file(path: Place, format_name: str, options: Options) -> Explanation:
    """Explain the first records of a file; for a file that no format reads, its keys and a map that may read it."""
    layout = detect(path, format_name, options)
    if isinstance(layout, Rejected):
        return _explain_unknown(path, layout, options)
    records = []
    for unit in islice(file_units(path, layout, options=options), NUM_RECORDS):
        # Units may be experiences already; only (origin, value) has fields that can be changed.
        if isinstance(unit, Rejected):
            records.append(RecordUse("a record", [], [], unit.reason))
        elif isinstance(unit, Experience):
            records.append(RecordUse("a record", [], [_describe(unit)]))
        else:
            records.append(_explain_record(*unit, layout, options))
    explanation = Explanation(str(path), layout.format, None, records)
    # A general reader takes any row with an input and an output, also one whose answer is deeper inside.
    is_refused = bool(records) and layout.reader.is_general and all(record.reason for record in records)
    return _with_suggestion(explanation, path, options) if is_refused else explanation


def _explain_record(origin: Origin, value: Any, layout: Layout, options: Options) -> RecordUse:
    where = f"record {origin.ordinal + 1}" if layout.reader.unit == "record" else "the file as one record"
    try:
        before = _read(value, origin, layout, options)
    except (BadRecord, RecordError) as error:
        fields = [FieldUse(".".join(name), _preview(part), "") for name, part in _fields_of(value).items()]
        return RecordUse(where, fields, [], str(error))
    uses = [
        FieldUse(".".join(name), _preview(part), _use_of(name, value, before, origin, layout, options))
        for name, part in islice(_fields_of(value).items(), _MAX_FIELDS)
    ]
    return RecordUse(where, uses, [_describe(exp) for exp in before[:4]])


def _fields_of(value: Any) -> dict[tuple[str, ...], Any]:
    """Return the fields of a record, or of all lines of a session: each with its first value."""
    fields: dict[tuple[str, ...], Any] = {}
    if isinstance(value, dict):
        return dict(_nested(value, ()))
    for item in value if isinstance(value, list) else ():
        for key, part in item.items() if isinstance(item, dict) else ():
            fields.setdefault((key,), part)
    return fields


def _nested(value: Json, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, part in value.items():
        # Messages are not descended into, nor large mappings, whose keys are likely data.
        is_open = isinstance(part, dict) and 0 < len(part) <= 30 and "role" not in part and len(path) < 4
        yield from _nested(part, (*path, key)) if is_open else [((*path, key), part)]


def _read(value: Any, origin: Origin, layout: Layout, options: Options) -> list[Experience]:
    read = list(layout.reader.read(value, origin, options))
    experiences = [exp for exp in read if isinstance(exp, Experience)]
    # A record with a rejected part is refused only if the rest yields no experience.
    if not experiences and read and isinstance(read[0], Rejected):
        raise BadRecord(read[0].reason)
    return experiences


def _use_of(
    path: tuple[str, ...], value: Any, before: list[Experience], origin: Origin, layout: Layout, options: Options
) -> str:
    """Return the use of a field: the parts of the record that change with it."""
    # Fields too large for `info` are listed there by name only, so changing the value has no visible effect.
    if before and path[0] in before[0].info.get("not_read", ()):
        return "not kept: more than 2,000 bytes"
    needed = False
    for change in (_change, lambda part: _GONE):
        try:
            after = _read(_with(value, path, change), origin, layout, options)
        except (BadRecord, RecordError, RecursionError):
            needed = True
            continue
        parts = _differences(before, after)
        if parts:
            return ", ".join(parts)
    return "needed to read the record" if needed else "not used"


_GONE = object()  # replaces a value whose key is to be dropped


def _with(value: Any, path: tuple[str, ...], change: Any) -> Any:
    """Return a record with one field changed; in the lines of a session, that field of every line."""
    if isinstance(value, list):
        return [_with(item, path, change) if isinstance(item, dict) else item for item in value]
    name, rest = path[0], path[1:]
    changed = {
        key: (_with(part, rest, change) if rest else change(part)) if key == name else part
        for key, part in value.items()
    }
    return {key: part for key, part in changed.items() if part is not _GONE}


def _change(value: Any) -> Any:
    """Return a different value of the same shape."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value} ~"
    if isinstance(value, list):
        return [_change(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in _FIXED else _change(item) for key, item in value.items()}
    return value


def _differences(before: list[Experience], after: list[Experience]) -> list[str]:
    # Without the field the record is not a preference; further differences would be noise.
    if before and before[0].chosen is not None and (not after or after[0].chosen is None):
        return ["which answer is chosen"]
    if len(before) != len(after):
        return [f"how many answers there are ({len(before)})"]
    parts: dict[str, None] = {}  # names in order, each once
    for old, new in zip(before, after, strict=True):
        named = _changed_turns("prompt", old.prompt, new.prompt)
        named |= _changed_turns("completion", old.completion, new.completion)
        for side in ("chosen", "rejected"):
            one, other = getattr(old, side), getattr(new, side)
            if one is not None and other is not None:
                named |= _changed_turns(side, one.messages, other.messages)
                named |= {f"reward of {side}": None} if one.reward != other.reward else {}
        # Swapped sides differ in every turn: only the swap is named.
        if old.chosen is not None and old.chosen == new.rejected and old.chosen != new.chosen:
            named = {"which answer is chosen": None}
        named |= {name: None for name in ("reward", "tools", "metrics") if getattr(old, name) != getattr(new, name)}
        # The default task is a hash of prompt and tools, so it changes with them.
        if old.eid.task != new.eid.task and not any(name.startswith(("prompt", "tools")) for name in named):
            named["task"] = None
        named |= {"run": None} if old.eid.run != new.eid.run else {}
        named |= {"model": None} if old.model_version != new.model_version else {}
        scores, new_scores = old.reward_components, new.reward_components
        changed = sorted(name for name in {*scores, *new_scores} if scores.get(name) != new_scores.get(name))
        named |= {f"reward component {name}": None for name in changed}
        changed = [name for name in {**old.info, **new.info} if old.info.get(name) != new.info.get(name)]
        parts |= named | {f"info.{name}": None for name in changed}
    return list(parts)[:4]


def _changed_turns(part: str, old: tuple[Message, ...], new: tuple[Message, ...]) -> dict[str, None]:
    if old == new:
        return {}
    roles = {one.role for one, other in zip(old, new, strict=False) if one != other}
    return {part if len(old) != len(new) else f"{part} ({', '.join(sorted(roles))})": None}


def _describe(exp: Experience) -> str:
    turns = f"prompt of {len(exp.prompt)} ({', '.join(message.role for message in exp.prompt[:4])})"
    if exp.chosen is not None and exp.rejected is not None:
        sides = f"chosen {_preview(exp.chosen.messages[0].text)}, rejected {_preview(exp.rejected.messages[0].text)}"
        return f"preference: {turns}; {sides}; task {str(exp.eid.task)[:24]}"
    answer = f"completion of {len(exp.completion)}"
    return f"experience: {turns}; {answer}; reward {exp.reward}; task {str(exp.eid.task)[:24]}, run {exp.eid.run}"


def _preview(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{kind_of(value)} of {len(value)}"
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _explain_unknown(path: Place, rejected: Rejected, options: Options) -> Explanation:
    reason = None if rejected.reason.startswith("no known format") else rejected.reason
    rows, _ = sample_rows(path, options)
    if not rows:
        return Explanation(str(path), rejected.format, reason or "no records in it")
    keys = {name: _preview(value) for name, value in islice(leaves_of(rows[0], ""), 60)}
    names = {name for row in rows for name in row}
    # Share of each format's keys that the records have, so that formats with many keys are not favoured.
    matched = {name: len(names.intersection(words.split())) / len(words.split()) for name, words in _KEYS.items()}
    nearest = max(matched, key=lambda name: matched[name])
    hits = sorted(names.intersection(_KEYS[nearest].split()))
    missing = [word for word in _KEYS[nearest].split() if word not in names]
    described = f"{nearest} (has {', '.join(hits)}; not {', '.join(missing)})" if hits else None
    return _with_suggestion(Explanation(str(path), rejected.format, reason, [], keys, described), path, options)


def _with_suggestion(explanation: Explanation, path: Place, options: Options) -> Explanation:
    trial = suggest(path, options)
    if trial is None:
        return explanation
    command = f"pairwright import {shlex.quote(str(path))} --map {shlex.quote(trial.map)} -o DIR"
    return msgspec.structs.replace(explanation, command=command, trial=trial)
