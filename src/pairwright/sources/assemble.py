"""Assemble the parts that a reader found in a file into an experience, with the same rules for all formats.

A reader returns `Parts`: messages, tools, a separate system prompt, scores as found, and other known fields. This
module turns them into prompt, completion and reward:

    roles        a closed set with synonyms (sources/roles.py); anything else is refused
    system       a separate system prompt becomes the first message, unless a system message already contains it
    prompt       the messages before the first generated one, unless the reader splits them itself
    results      carry the id of their call; metrics["unanswered_calls"] counts the calls without a result
    reward       `--reward` if given: a score, a field of the record, or an expression. Else the reward that the
                 format names, else the score called "reward" or "score", else the only score, else None
    errors       failed tool results, detected by marks of the format and by marks common to all formats
    id           task, run and step from the format or from `--task`, `--run` and `--step`; the suffix is a
                 hash of content and file label, so that equal records of one or several files are all kept
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.experience import EID, Experience, Kind, Side, Source
from pairwright.records.json_text import encode
from pairwright.records.messages import ErrorSite, Json, Message, content_hash
from pairwright.sources.fields import BadRecord, items, mapping
from pairwright.sources.format import Options, Origin, PartOfAnother, Rejected
from pairwright.sources.identity import identify, label_of, task_hash
from pairwright.sources.rewards import chosen_reward, first_score, reward_by_name, reward_names
from pairwright.sources.roles import CALLS, ROLES, repeats_thought, usual_messages
from pairwright.sources.shapes.chat_messages import SHARED_MARK
from pairwright.sources.shapes.tool_errors import (
    ErrorKind,
    error_sites,
    result_error_kind,
    suspicious_results,
    tool_names,
)
from pairwright.sources.shapes.traces import pick_reward

NO_ANSWER = "no answer of the model, so there is no completion"
_RAW_CHARACTERS = 2000
_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 512, 2**22  # limits of a batch scanned for failures
_NUM_NAMED = 100  # records whose numbers are listed if no record has the requested reward
# Raised by encoders for unvalidated values: nested too deep, or invalid Unicode
_NOT_JSON = (RecursionError, TypeError, ValueError)
_SYSTEM = frozenset({"system", "developer"})
_SINGLE_TURN, _MULTI_TURN, _PREFERENCE = Kind.SINGLE_TURN, Kind.MULTI_TURN, Kind.PREFERENCE


class Parts(msgspec.Struct, gc=False):
    """The parts of one record that a reader found.

    `format` is the format's name and `origin` the record's location. The conversation is `messages`, split before the
    first answer, or `prompt` and `completion` if the file separates them. A preference has `prompt`, `chosen` and
    `rejected`.
    """

    format: str
    origin: Origin
    where: str | None = None  # location inside the unit: this part is refused alone, and the reason names it
    messages: Sequence[Message] | None = None
    prompt: Sequence[Message] = ()
    completion: Sequence[Message] = ()
    chosen: Sequence[Message] | None = None
    rejected: Sequence[Message] = ()
    system: str | None = None  # a system prompt outside the messages
    tools: Sequence[Json] = ()
    known_tools: Sequence[Json] | None = None  # if not empty, calls to other tools are errors; None: `tools`
    # None: a hash of prompt, tools and `task_metadata`
    task: int | str | None = None
    task_metadata: Any = None
    batch: int | str = ""
    run: int | None = None  # None: the position of the record in its file
    step: int = 0
    reward: float | UnsetType | None = UNSET  # the format's own reward; unset: choose among the scores
    reward_components: Json | None = None  # scores by name
    row: Any = None  # fields that `--reward` searches, if not the whole unit
    chosen_reward: float | None = None
    rejected_reward: float | None = None
    error_kind: ErrorKind | None = None  # detects this format's own marks of failed results
    errors: Sequence[ErrorSite] = ()  # failures not visible in a tool result
    info: Json | None = None
    metrics: Json | None = None
    model_version: int | str | None = None
    truncate_status: str | None = None
    arrays: Json | None = None  # token fields, as returned by `tokens_of_turns`


Found = Parts | Experience | Rejected | PartOfAnother  # an Experience already has its id
ReadParts = Callable[[Any, Origin, Options], Iterator[Found]]
Record = Experience | Rejected | PartOfAnother


UNREADABLE = (RecursionError, UnicodeError, OverflowError, msgspec.MsgspecError)  # raised by readers besides BadRecord


class Reader:
    """A reader. `parts` yields the parts of a unit, a call yields its experiences. Unusable units raise BadRecord."""

    def __init__(self, read: ReadParts) -> None:
        self.parts = read

    def __call__(self, value: Any, origin: Origin, options: Options) -> Iterator[Record]:
        assembler = Assembler(options)
        try:
            for found in self.parts(value, origin, options):
                if type(found) is Parts and found.where is None:
                    yield assembler.assemble(found, value)
                else:
                    assembler.add(origin, found, value)
                    yield from assembler.drain()
        except UNREADABLE as error:
            raise BadRecord(why_unreadable(error)) from None


def read_each(
    name: str, origin: Origin, values: Any, where: str, read: Callable[[Json, int], Iterable[Parts | Rejected]]
) -> Iterator[Parts | Rejected]:
    """Yield what `read(item, number)` yields for each object of a list; an unusable one is Rejected with its place."""
    for number, value in enumerate(items(values, where)):
        place = f"{where}[{number}]"
        try:
            for found in read(mapping(value, place), number):
                if isinstance(found, Parts):
                    found.where = place
                yield found
        except ValueError as error:  # BadRecord, RecordError, or text that is not valid Unicode
            reason = str(error).removeprefix(f"{place}: ")
            yield origin.rejected(f"{place}: {reason}", name)


def why_unreadable(error: Exception) -> str:
    """Return the reason for the quarantine from a reader's exception."""
    if isinstance(error, RecursionError):
        return "nested too deep to read"
    if isinstance(error, UnicodeError):
        return f"text that is not valid Unicode: {error}"
    return f"a value that JSON cannot hold: {error}" if isinstance(error, UNREADABLE) else str(error)


class _Scan(msgspec.Struct, gc=False):
    """Result of one pass over messages: calls, results, and whether all messages have the usual form."""

    calls: list[str | None]  # ids
    names: set[str]  # of the called tools
    answered: set[str]
    results: list[str]
    has_flags: bool  # some result has `extra` fields, which may mark a failure
    is_usual: bool  # roles of the closed set, results with ids, and no thought twice


class _Context(msgspec.Struct, gc=False):
    """Prompt and tools of a record, with their hash, the tool names, and the scan of the prompt."""

    prompt: tuple[Message, ...]
    tools: tuple[Json, ...]
    text: tuple[bytes, bytes]
    hash: str
    names: frozenset[str]
    scan: _Scan
    task: str | None = None  # hash that serves as task for records without task and metadata


def _scan(messages: Sequence[Message]) -> _Scan:
    calls: list[str | None] = []
    names: set[str] = set()
    answered: set[str] = set()
    results: list[str] = []
    has_flags, is_usual = False, True
    for message in messages:
        role = message.role
        for call in message.tool_calls:
            calls.append(call.id)
            names.add(call.name)
        if role == "tool":
            if message.tool_call_id is None:
                is_usual = False
            else:
                answered.add(message.tool_call_id)
            content = message.content
            results.append(content if type(content) is str else message.text)
            if message.extra:
                has_flags = True
        elif role not in ROLES or (message.reasoning and repeats_thought(message)):
            is_usual = False
    return _Scan(calls, names, answered, results, has_flags, is_usual)


class Assembler:
    """Assembles the records of one file or piece; runs of one task share their prompt and values derived from it.

    Parts are added one by one and drained in batches: one regular expression over the tool results of a batch
    rules out failures in most of them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last: _Context | None = None
        self._waiting: list[Record] = []
        # Records whose results have not been scanned for failures: position in `_waiting`, parts, texts of results
        self._unscanned: list[tuple[int, Parts, list[str]]] = []
        self._num_bytes = 0
        self.has_reward = False  # some record has the reward named by `--reward`
        self.reward_names: Counter[str] = Counter()  # numbers that records have instead
        self._num_named = 0

    def assemble(self, parts: Parts, unit: Any = None) -> Experience:
        """Return the experience made from parts, which were read from `unit`; raises BadRecord or RecordError."""
        exp, results = self._assemble(parts, unit)
        return _with_errors(exp, parts) if results else exp

    def add(self, origin: Origin, found: Found, unit: Any) -> None:
        """Add parts found in a unit; refused ones are drained as Rejected."""
        try:
            if isinstance(found, Parts):
                exp, results = self._assemble(found, unit)
                if results:
                    self._unscanned.append((len(self._waiting), found, results))
                self._waiting.append(exp)
            else:
                self._waiting.append(self._adopt(found, unit, origin) if isinstance(found, Experience) else found)
        except (BadRecord, RecordError) as error:
            self._waiting.append(refusal(error, origin, found, unit))

    @property
    def is_full(self) -> bool:
        return self._num_bytes > _BYTES_AT_ONCE or len(self._waiting) >= _RECORDS_AT_ONCE

    def drain(self) -> list[Record]:
        """Return the records of all added parts, in order."""
        records, unscanned = self._waiting, self._unscanned
        self._waiting, self._unscanned, self._num_bytes = [], [], 0
        texts = [text for _, _, results in unscanned for text in results]
        owners = [(position, parts) for position, parts, results in unscanned for _ in results]
        for position, parts in {owners[number][0]: owners[number][1] for number in suspicious_results(texts)}.items():
            records[position] = _with_errors(records[position], parts)
        return records

    def _adopt(self, exp: Experience, unit: Any, origin: Origin) -> Experience:
        """Apply the user's options to an experience that was stored as one in its file."""
        name = self._options.reward
        if name is not None and name.isidentifier() and exp.kind is not _PREFERENCE:
            exp = replace(exp, reward=reward_by_name(exp, name, unit))
        exp = obey(exp, self._options, unit, origin)
        if name is not None:
            self.note_reward(exp, unit)
        return exp

    def _context(self, prompt: Sequence[Message], parts: Parts) -> _Context:
        """Return prompt and tools with their hash; reuse those of the previous record if equal, as for runs of a task.

        Table cells derived from them are then computed once for all these records (`Column.shared`).
        """
        system = parts.system
        if system and not any(message.role in _SYSTEM and system in message.text for message in prompt):
            prompt = (Message("system", system), *prompt)
        last, prompt, tools = self._last, tuple(prompt), tuple(parts.tools)
        if last is not None and _is_same(prompt, last.prompt) and _is_same(tools, last.tools):
            return last
        # Compared as JSON, since 1 == 1.0 == True in Python.
        text = (encode(prompt), encode(tools))
        if last is None or text != last.text:
            names = frozenset(tool_names(tools))
            self._last = last = _Context(prompt, tools, text, content_hash(prompt, tools), names, _scan(prompt))
        return last

    def _assemble(self, parts: Parts, unit: Any) -> tuple[Experience, list[str] | None]:
        """Return the experience of parts, and the texts of its tool results if they must be scanned for failures."""
        try:
            return self._assemble_json(parts, unit)
        except _NOT_JSON as error:
            if isinstance(error, BadRecord | RecordError):
                raise
            raise BadRecord(f"a value that cannot be written as JSON: {error}") from None

    def _assemble_json(self, parts: Parts, unit: Any) -> tuple[Experience, list[str] | None]:
        options, origin = self._options, parts.origin
        prompt, completion = parts.prompt, parts.completion
        if parts.messages is not None:
            prompt, completion = split_at_answer(parts.messages)
        context, after = self._context(prompt, parts), _scan(completion)
        if not (context.scan.is_usual and after.is_usual):
            prompt, completion = _usual_conversation(prompt, completion)
            context, after = self._context(prompt, parts), _scan(completion)
        before = context.scan
        if parts.messages is not None and not completion and parts.chosen is None:
            raise BadRecord(NO_ANSWER)
        info, metrics, components = parts.info or {}, parts.metrics or {}, parts.reward_components or {}
        if (before.calls or after.calls) and parts.chosen is None:
            answered = before.answered | after.answered
            num_open = len([call for call in (*before.calls, *after.calls) if call not in answered])
            if num_open:
                metrics = {**metrics, "unanswered_calls": num_open}
        if options.reward is None or parts.chosen is not None:
            reward = pick_reward(components, None) if parts.reward is UNSET else parts.reward
        else:
            scores = {"reward": None if parts.reward is UNSET else parts.reward, **components}
            reward = first_score(options.reward, scores, parts.row, unit, info, metrics)
        completion = tuple(completion)
        chosen = rejected = results = None
        errors: Sequence[ErrorSite] = parts.errors
        if parts.chosen is not None:
            chosen, rejected, errors = _sides(parts, context)
        elif _needs_look(parts, context, after):
            errors = _error_sites(context.prompt, completion, context.tools, parts)
        elif before.results or after.results:
            results = before.results + after.results
        text = encode(completion)
        # Distinguishes records with the same prompt and completion
        sides = [None if side is None else [side.messages, side.text, side.reward] for side in (chosen, rejected)]
        body = [*sides, reward, parts.reward_components, info, label_of(origin)]
        suffix = content_hash(context.hash, text, body)[:24]  # 96 bits
        task = parts.task
        if task is None and parts.task_metadata is not None:
            task = task_hash(context.prompt, context.tools, parts.task_metadata)
        elif task is None:
            task = context.task = context.task or task_hash(context.prompt, context.tools, None)
        # With `**`, even of an empty dict, the call would take ten times as long.
        build: Callable[..., Experience] = partial(Experience, **parts.arrays) if parts.arrays else Experience
        exp = build(
            eid=EID(parts.batch, task, origin.ordinal if parts.run is None else parts.run, parts.step, suffix),
            kind=_PREFERENCE if chosen is not None else _SINGLE_TURN if len(completion) == 1 else _MULTI_TURN,
            prompt=context.prompt,
            tools=context.tools,
            completion=completion,
            chosen=chosen,
            rejected=rejected,
            reward=reward,
            reward_components=components,
            truncate_status=parts.truncate_status,
            model_version=parts.model_version,
            errors=tuple(errors),
            info=info,
            metrics=metrics,
            source=Source(origin.file, origin.line, parts.format),
        )
        exp = obey(exp, options, unit, origin)
        if options.reward is not None:
            self.note_reward(exp, unit)
        self._num_bytes += len(text)
        return exp, results

    def note_reward(self, exp: Experience, unit: Any) -> None:
        """Note whether a record has the requested reward; if not, which numbers it has."""
        if exp.kind is _PREFERENCE:
            return
        if exp.reward is not None:
            self.has_reward = True
        elif not self.has_reward and self._num_named < _NUM_NAMED:
            self._num_named += 1
            self.reward_names.update(reward_names(exp, unit))


def _with_errors(exp: Record, parts: Parts) -> Experience:
    assert isinstance(exp, Experience)
    errors = tuple(_error_sites(exp.prompt, exp.completion, exp.tools, parts))
    return replace(exp, errors=errors) if errors else exp


def _error_sites(
    prompt: Sequence[Message], completion: Sequence[Message], tools: Sequence[Json], parts: Parts
) -> list[ErrorSite]:
    known = list(tools if parts.known_tools is None else parts.known_tools)
    sites = error_sites([*prompt, *completion], known, parts.error_kind or result_error_kind)
    if not parts.errors:
        return sites
    # An error declared by the format takes precedence over one detected in the text.
    named = {site.index for site in parts.errors}
    sites = [site for site in sites if site.index not in named]
    return sorted([*sites, *parts.errors], key=lambda site: site.index)


def _sides(parts: Parts, context: _Context) -> tuple[Side, Side, list[ErrorSite]]:
    prompt, tools = context.prompt, list(context.tools)
    sides = []
    for messages, reward in ((parts.chosen or (), parts.chosen_reward), (parts.rejected, parts.rejected_reward)):
        whole = list(usual_messages((*prompt, *messages)))
        own = [site for site in error_sites(whole, tools, result_error_kind) if site.index >= len(prompt)]
        sides.append(Side(messages=tuple(whole[len(prompt) :]), reward=reward, errors=tuple(own)))
    return sides[0], sides[1], error_sites(list(prompt), tools, result_error_kind)


def _usual_conversation(
    prompt: Sequence[Message], completion: Sequence[Message]
) -> tuple[Sequence[Message], Sequence[Message]]:
    """Return prompt and completion with the roles of the closed set, and the ids of calls on their results."""
    messages = (*prompt, *completion)
    usual = usual_messages(messages)
    # A call stored as a separate message was generated: the prompt ends before the first one.
    if any(message.role in CALLS for message in messages):
        return split_at_answer(usual)
    return usual[: len(prompt)], usual[len(prompt) :]


def _needs_look(parts: Parts, context: _Context, after: _Scan) -> bool:
    """Whether a failure may be marked outside the texts of tool results: by flags, or by calls to unknown tools."""
    before = context.scan
    if parts.error_kind is not None or before.has_flags or after.has_flags:
        return True
    names = context.names if parts.known_tools is None else frozenset(tool_names(parts.known_tools))
    return bool(names) and not (before.names <= names and after.names <= names)


def _is_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two tuples hold the same objects."""
    return one is other or (len(one) == len(other) and all(map(is_, one, other)))


def obey(exp: Experience, options: Options, unit: Any, origin: Origin | None) -> Experience:
    """Apply the user's identity options, and a `--reward` that is an expression or path, to an experience."""
    if options.reward is not None and exp.kind is not _PREFERENCE and not options.reward.isidentifier():
        exp = replace(exp, reward=chosen_reward(exp, options.reward, unit))
    if options.task is options.run is options.step is None:
        return exp
    return identify(exp, options, unit, origin)


def refusal(error: Exception, origin: Origin, parts: Any, unit: Any) -> Rejected:
    """Return the quarantine line of a record that could not be assembled."""
    if type(parts) is not Parts:
        return Rejected(origin.file, origin.line, str(error), None, raw_text(unit))
    if parts.where is None:
        return parts.origin.rejected(error, parts.format, raw_text(unit))
    return parts.origin.rejected(f"{parts.where}: {error}" if parts.where else error, parts.format)


def raw_text(value: Any) -> str | None:
    """Return the start of a unit's JSON text for the quarantine."""
    try:
        return encode(value).decode()[:_RAW_CHARACTERS]
    except (TypeError, ValueError, RecursionError):
        return None


def split_at_answer(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split a conversation at the first message that the model generated, in this branch or an earlier one."""
    for position, message in enumerate(messages):
        if message.is_generated or SHARED_MARK in message.extra:
            if message.name is not None and all(other.role in _SYSTEM for other in messages[:position]):
                _check_side(messages)
            return messages[:position], messages[position:]
    return messages, messages[:0]


def split_at_first_answer(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Split a conversation of lists, as `split_at_answer` does."""
    prompt, completion = split_at_answer(messages)
    return list(prompt), list(completion)


def _check_side(messages: Sequence[Message]) -> None:
    """Refuse a history that AutoGen (AG2) saved from the perspective of the asking agent.

    Its roles are swapped: questions and tool results have the role assistant, the model's answers the role user.
    """
    own = {message.name for message in messages if message.role == "assistant"}
    others = {message.name for message in messages if message.role == "user"}
    is_proxy = any("proxy" in (name or "").lower() for name in own)
    if others and None not in own | others and (is_proxy or not others.isdisjoint(("assistant", "chat_manager"))):
        raise BadRecord(
            f"a history of AutoGen from the side of {', '.join(sorted(map(str, own)))}: its own turns have the role "
            "assistant, those of the model the role user; save the other agent's history, or swap the roles"
        )
