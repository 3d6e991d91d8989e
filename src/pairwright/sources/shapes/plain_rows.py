"""Plain conversations straight to table rows: what all formats with `read_rows` share.

Runs of a task have one prompt, which is read and hashed once (`PlainPrompt`). Turns of the completion need no Message
objects: they are decoded by type, and encode like messages. Failed tool results are looked for later, in many rows
at once (`find_errors`, which an import calls for each batch). The row then equals that of `build` (sources/format.py);
tests/sources/test_gym_rows.py, test_chat_rows.py and test_langfuse_rows.py compare them.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.json_text import MAX_DEPTH, decode, encode
from pairwright.records.messages import (
    TEXT,
    ErrorSite,
    Json,
    Message,
    canonical_arguments,
    canonical_messages,
    digest,
    pack,
)
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import UNUSUAL, Origin, ReadRows, ReadyRow, label_of, task_hash
from pairwright.sources.roles import ROLES
from pairwright.sources.shapes.chat_messages import PlainCall, PlainTurn
from pairwright.sources.shapes.tool_errors import (
    error_sites,
    result_error_kind,
    suspicious_results,
    text_error_kind,
    tool_names,
)

NO_ARRAYS: Json = {}
_ROLES = ROLES - {TEXT}
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode


class PlainTools(Struct, gc=False):
    """Checked tools, which many prompts share."""

    schemas: tuple[Json, ...]
    names: tuple[str, ...]
    packed: bytes  # as in a hash
    text: bytes | None


class PlainPrompt(Struct, gc=False):
    """What the runs of a task share: prompt and tools, with their cells, hashes and errors."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    tool_names: tuple[str, ...]
    errors: tuple[ErrorSite, ...]
    hash: str  # of the record's identity, as `build` has it
    prompt_hash: str
    text: bytes | None
    tools_text: bytes | None
    metadata: Any = None  # of the task, for the id of a task that has none
    ids_key: tuple[str, int | str | None] | None = None  # of what `ids` were made
    ids: tuple[str, str] = ("", "")


class Completion(Struct, gc=False):
    """A completion as it is stored, and what is counted and hashed of it."""

    turns: Sequence[Any]  # encode like messages
    canonical: list[Any]  # as `canonical_messages` has them
    num_characters: int
    num_calls: int
    errors: Sequence[ErrorSite] = ()  # of the whole conversation, but for those of `results`
    results: Sequence[str] = ()  # of tools, which nobody has looked at yet
    num_open: int = 0  # calls without a result
    arrays: Json = NO_ARRAYS  # recorded tokens


class PlainRecord(Struct, gc=False):
    """A plain conversation and what belongs to it; `info`, components and metrics are JSON values."""

    prompt: PlainPrompt
    completion: Completion
    task: int | str | None
    run: int
    reward: float | None
    info: Json
    batch: str = ""
    model: str | None = None
    step: int = 0
    reward_components: Json | None = None
    metrics: Json | None = None


def plain_reader(
    format_name: str, decode: Callable[[bytes], Any], read: Callable[[Any, Origin], PlainRecord | None]
) -> ReadRows:
    """Return the `read_rows` of a format: None, and no error, for a line that needs its general code.

    Each stage runs over all lines before the next one begins: the caches of a processor hold the code of one stage,
    not of all of them, which saves a fifth of the time.

    Args:
        format_name: Name of the format.
        decode: Decodes a line by type.
        read: Reads what `decode` returned. Both may raise one of UNUSUAL.
    """

    def read_rows(lines: Sequence[bytes | int], origins: Sequence[Origin]) -> list[ReadyRow | None]:
        rows: list[Any] = []  # of each line, what the last stage made of it; None from where it needs the general code
        for line in lines:
            try:
                rows.append(decode(line) if isinstance(line, bytes) else None)
            except UNUSUAL:
                rows.append(None)
        for number, value in enumerate(rows):
            try:
                rows[number] = None if value is None else read(value, origins[number])
            except UNUSUAL:
                rows[number] = None
        for number, record in enumerate(rows):
            try:
                rows[number] = None if record is None else plain_row(format_name, origins[number], record)
            except UNUSUAL:
                rows[number] = None
        return rows

    return read_rows


def read_tools(schemas: Sequence[Json]) -> PlainTools:
    """Check tools; raises one of UNUSUAL for those that have no cell."""
    schemas = tuple(schemas)
    if schemas:
        Experience(kind=Kind.SINGLE_TURN, tools=schemas)  # checks them
    # An integer of more than 64 bits raises here; `content_hash` takes another way for it.
    return PlainTools(schemas, tool_names(list(schemas)), pack(schemas), encode(schemas) if schemas else None)


NO_TOOLS = read_tools(())


def read_prompt(messages: Sequence[Message], tools: PlainTools = NO_TOOLS, metadata: Any = None) -> PlainPrompt:
    """Check a prompt, and compute what its runs share; raises one of UNUSUAL for raw text."""
    messages = tuple(messages)
    for message in messages:
        if message.role == TEXT:
            raise BadRecord("raw text before a chat")
        if message.tool_calls or message.role == "tool" or message.role not in _ROLES:
            raise BadRecord("calls before the completion, or a role for the general code")
    # What `pack` writes of (messages, tools): MessagePack has an array of two as 0x92 and its items behind it.
    return PlainPrompt(
        messages,
        tools.schemas,
        tools.names,
        (),
        digest(b"\x92" + pack(messages) + tools.packed),
        digest(b"\x92" + pack(canonical_messages(messages)) + tools.packed),
        encode(messages) if messages else None,
        tools.text,
        metadata,
    )


def read_turns(turns: list[PlainTurn], prompt: PlainPrompt) -> Completion | None:
    """Return decoded turns as a completion, and make their calls plain; None if a turn is not of a chat."""
    canonical: list[Any] = []
    # Call ids as numbers in order of appearance: canonical messages do not depend on how ids were made.
    call_numbers: dict[str, int] = {}
    names = prompt.tool_names
    results: list[str] = []
    called: list[str] = []
    answered: set[str | None] = set()
    num_characters = num_calls = 0
    has_errors = bool(prompt.errors)
    for turn in turns:
        role, content, call_id = turn.role, turn.content, turn.tool_call_id
        if content is None:
            content = ""
        else:
            num_characters += len(content)
        if role == "tool":
            results.append(content)
            answered.add(call_id)
            if call_id is None:
                return None
        elif role not in _ROLES:
            return None
        calls: Any = turn.tool_calls
        if not calls:
            turn.tool_calls = None
            if call_id is None:
                canonical.append((role, content, "", turn.name))
                continue
            canonical.append((role, content, "", turn.name, (), call_numbers.get(call_id, call_id)))
            continue
        plain: list[Any] = []
        canonical_calls = []
        for call in calls:
            name, arguments = call.function.name, call.function.arguments
            if names and name not in names:
                has_errors = True
            plain.append(PlainCall(name, arguments, call.id, call.type))
            called.append(call.id)
            number = call_numbers.setdefault(call.id, len(call_numbers))
            canonical_calls.append((number, name, canonical_arguments(arguments)))
            num_characters += len(arguments)
        num_calls += len(plain)
        turn.tool_calls = plain
        result_of = None if call_id is None else call_numbers.get(call_id, call_id)
        canonical.append((role, content, "", turn.name, canonical_calls, result_of))
    if has_errors:
        errors: Sequence[ErrorSite] = errors_of(prompt, encode(turns))
        results = []
    else:
        errors = ()
    num_open = sum(call_id not in answered for call_id in called)
    return Completion(turns, canonical, num_characters, num_calls, errors, results, num_open)


def answer_of(text: str, prompt: PlainPrompt) -> Completion:
    """Return a completion that is one text of the model."""
    return Completion([PlainTurn("assistant", text)], [("assistant", text, "", None)], len(text), 0, prompt.errors)


def errors_of(prompt: PlainPrompt, completion: bytes) -> list[ErrorSite]:
    """Return the error sites of a whole conversation; the completion is as it is stored."""
    messages = [*prompt.messages, *_decode_messages(completion)]
    return error_sites(messages, list(prompt.tools), result_error_kind)


def find_errors(rows: Sequence[ReadyRow]) -> None:
    """Add the failed tool results of rows, all at once, since most texts are cleared by one look at all of them."""
    texts: list[str] = []
    owners: list[ReadyRow] = []
    for row in rows:
        if row.unchecked is not None:
            results = row.unchecked[0]
            texts += results
            owners += [row] * len(results)
    for position in suspicious_results(texts) if texts else ():
        row = owners[position]
        # None: an earlier result of the row has failed, and all of them were looked at
        if row.unchecked is not None and text_error_kind(texts[position]) is not None:
            errors = errors_of(row.unchecked[1], row.completion or b"[]")
            row.unchecked, row.num_errors, row.errors = None, len(errors), encode(errors)


def plain_row(format_name: str, origin: Origin, record: PlainRecord) -> ReadyRow:
    """Return the row of a plain conversation; raises one of UNUSUAL for what has no cell of its own."""
    prompt, completion, reward, info = record.prompt, record.completion, record.reward, record.info
    batch, run, step, reward_components = record.batch, record.run, record.step, record.reward_components
    model, metrics = record.model, record.metrics
    if completion.num_open:
        metrics = {**(metrics or {}), "unanswered_calls": completion.num_open}
    if reward is not None and not math.isfinite(reward):
        raise BadRecord("a reward that is no number")
    turns, errors = completion.turns, completion.errors
    task_id, tid = _task_ids(prompt, batch, record.task)
    text = encode(turns)
    # The same values in the same order as in `build`, or ids would differ between the two ways.
    body = [None, None, reward, reward_components, info, label_of(origin)]
    row = ReadyRow(  # by position: with names, this would take longer than all hashes
        # `tid` is the JSON text [batch, task]; `uid` goes on behind it with run, step and suffix.
        f'{tid[:-1]},{run},{step},"{digest(pack((prompt.hash, text, body)))[:24]}"]',
        tid,
        batch,
        task_id,
        run,
        step,
        "single_turn" if len(turns) == 1 else "multi_turn",
        reward,
        None if model is None else _text_cell(model),
        prompt.prompt_hash,
        digest(pack((completion.canonical,))),
        len(prompt.messages),
        len(turns),
        completion.num_characters,
        completion.num_calls,
        len(errors),
        None,
        format_name,
        origin.file,
        origin.line,
        prompt.text,
        prompt.tools_text,
        text,
        _cell(reward_components) if reward_components else None,
        encode(errors) if errors else None,
        _cell(info) if info else None,
        _cell(metrics) if metrics else None,
    )
    if completion.results:
        row.unchecked = completion.results, prompt
    if completion.arrays is not NO_ARRAYS:
        for name, value in completion.arrays.items():
            setattr(row, name, value)
    return row


def _task_ids(prompt: PlainPrompt, batch: str, task: int | str | None) -> tuple[str, str]:
    """Return the cells `task` and `tid`, which the runs of a task share."""
    key = (batch, task)
    # Types are compared as well: 1 and True are equal in Python, and one of them is no id.
    if prompt.ids_key != key or type(prompt.ids_key[1]) is not type(task):
        own = task_hash(prompt.messages, prompt.tools, prompt.metadata) if task is None else task
        prompt.ids_key, prompt.ids = key, (str(own), EID(batch, own, suffix="a").tid)
    return prompt.ids


@lru_cache(maxsize=64)
def _text_cell(text: str) -> str:
    return encode(text).decode()


def _cell(value: Json) -> bytes:
    """Return an object of JSON values as JSON text; raises BadRecord where `to_json` would write another."""
    data = encode(value)
    is_deep = len(data) > MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH
    # Repaired files may have NaN, which is encoded as null. A single character is looked for much faster than several.
    is_tagged = b"$" in data and b'"$float"' in data
    if is_deep or is_tagged or (b"null" in data and decode(data) != value):
        raise BadRecord("a value that JSON does not hold, or not as it is")
    return data
