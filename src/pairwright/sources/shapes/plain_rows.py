"""Plain conversations straight to table rows: what all formats with a `read_row` share.

Runs of a task have one prompt, which is read and hashed once (`PlainPrompt`). Turns of the completion need no Message
objects: they are decoded by type, and encode like messages. The row equals that of `build` (sources/format.py);
tests/sources/test_gym_rows.py, test_chat_rows.py and test_langfuse_rows.py compare them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from pairwright.records.canonical import canonical_arguments, canonical_messages, digest, pack
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.json_text import MAX_DEPTH, decode, encode
from pairwright.records.messages import TEXT, ErrorSite, Json, Message, ToolCall
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import UNUSUAL, Origin, ReadRow, ReadyRow, label_of, task_hash
from pairwright.sources.shapes.chat_messages import PlainCall, PlainTurn
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind, text_error_kind, tool_names

_NO_ARRAYS: Json = {}


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
    errors: Sequence[ErrorSite] = ()  # of the whole conversation
    arrays: Json = _NO_ARRAYS  # recorded tokens


def plain_reader(read: Callable[[bytes, Origin], ReadyRow | None]) -> ReadRow:
    """Return the `read_row` of a format: None, and no error, for a line that needs its general code."""

    def read_row(line: bytes, origin: Origin) -> ReadyRow | None:
        try:
            return read(line, origin)
        except UNUSUAL:
            return None

    return read_row


def read_prompt(messages: Sequence[Message], tools: Sequence[Json], metadata: Any = None) -> PlainPrompt:
    """Check a prompt and its tools, and compute what their runs share; raises one of UNUSUAL for raw text."""
    messages, tools = tuple(messages), tuple(tools)
    if tools:
        Experience(kind=Kind.SINGLE_TURN, tools=tools)  # checks them
    if any(message.role == TEXT for message in messages):
        raise BadRecord("raw text before a chat")
    # as `content_hash`, but for integers of more than 64 bits, which raise here
    return PlainPrompt(
        messages=messages,
        tools=tools,
        tool_names=tool_names(list(tools)),
        errors=tuple(error_sites(list(messages), list(tools), result_error_kind)),
        hash=digest(pack((messages, tools))),
        prompt_hash=digest(pack((canonical_messages(messages), tools))),
        text=encode(messages) if messages else None,
        tools_text=encode(tools) if tools else None,
        metadata=metadata,
    )


def read_turns(turns: list[PlainTurn], prompt: PlainPrompt) -> Completion | None:
    """Return decoded turns as a completion, and make their calls plain; None if a turn is not of a chat."""
    canonical: list[Any] = []
    # Call ids as numbers in order of appearance: canonical messages do not depend on how ids were made.
    call_numbers: dict[str, int] = {}
    names = prompt.tool_names
    num_characters = num_calls = 0
    has_errors = bool(prompt.errors)
    for turn in turns:
        role, content, call_id = turn.role, turn.content, turn.tool_call_id
        if content is None:
            content = ""
        else:
            num_characters += len(content)
        if role == "tool":
            has_errors = has_errors or text_error_kind(content) is not None
        elif not role or role == TEXT:
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
            number = call_numbers.setdefault(call.id, len(call_numbers))
            canonical_calls.append((number, name, canonical_arguments(arguments)))
            num_characters += len(arguments)
        num_calls += len(plain)
        turn.tool_calls = plain
        result_of = None if call_id is None else call_numbers.get(call_id, call_id)
        canonical.append((role, content, "", turn.name, canonical_calls, result_of))
    errors = errors_of(prompt, turns) if has_errors else ()
    return Completion(turns, canonical, num_characters, num_calls, errors)


def answer_of(text: str, prompt: PlainPrompt) -> Completion:
    """Return a completion that is one text of the model."""
    return Completion([PlainTurn("assistant", text)], [("assistant", text, "", None)], len(text), 0, prompt.errors)


def errors_of(prompt: PlainPrompt, turns: Sequence[Any]) -> list[ErrorSite]:
    """Return the error sites of a whole conversation."""
    messages = list(prompt.messages)
    for turn in turns:
        calls = tuple([ToolCall(call.name, call.arguments, call.id, call.type) for call in turn.tool_calls or ()])
        messages.append(Message(turn.role, turn.content, None, calls, turn.tool_call_id, turn.name))
    return error_sites(messages, list(prompt.tools), result_error_kind)


def plain_row(
    format_name: str,
    origin: Origin,
    prompt: PlainPrompt,
    completion: Completion,
    *,
    task: int | str | None,
    run: int,
    step: int = 0,
    batch: str = "",
    reward: float | None,
    info: Json,
    reward_components: Json | None = None,
    metrics: Json | None = None,
    model: str | None = None,
) -> ReadyRow:
    """Return the row of a plain conversation; `info`, components and metrics are JSON values.

    Raises one of UNUSUAL for what has no cell of its own.
    """
    if reward is not None and not math.isfinite(reward):
        raise BadRecord("a reward that is no number")
    turns, errors = completion.turns, completion.errors
    task_id, tid = _task_ids(prompt, batch, task)
    text = encode(turns)
    # The same values in the same order as in `build`, or ids would differ between the two ways.
    body = [None, None, reward, reward_components, info, label_of(origin)]
    return ReadyRow(
        # `tid` is the JSON text [batch, task]; `uid` goes on behind it with run, step and suffix.
        uid=f'{tid[:-1]},{run},{step},"{digest(pack((prompt.hash, text, body)))[:24]}"]',
        tid=tid,
        batch=batch,
        task=task_id,
        run=run,
        step=step,
        kind="single_turn" if len(turns) == 1 else "multi_turn",
        reward=reward,
        model_version=None if model is None else encode(model).decode(),
        prompt_hash=prompt.prompt_hash,
        completion_hash=digest(pack((completion.canonical,))),
        num_prompt_messages=len(prompt.messages),
        num_completion_messages=len(turns),
        num_completion_characters=completion.num_characters,
        num_tool_calls=completion.num_calls,
        num_errors=len(errors),
        source_format=format_name,
        source=origin.file,
        source_line=origin.line,
        prompt=prompt.text,
        tools=prompt.tools_text,
        completion=text,
        reward_components=_cell(reward_components) if reward_components else None,
        errors=encode(errors) if errors else None,
        info=_cell(info) if info else None,
        metrics=_cell(metrics) if metrics else None,
        **completion.arrays,
    )


def _task_ids(prompt: PlainPrompt, batch: str, task: int | str | None) -> tuple[str, str]:
    """Return the cells `task` and `tid`, which the runs of a task share."""
    key = (batch, task)
    # Types are compared as well: 1 and True are equal in Python, and one of them is no id.
    if prompt.ids_key != key or type(prompt.ids_key[1]) is not type(task):
        own = task_hash(prompt.messages, prompt.tools, prompt.metadata) if task is None else task
        prompt.ids_key, prompt.ids = key, (str(own), EID(batch, own, suffix="a").tid)
    return prompt.ids


def _cell(value: Json) -> bytes:
    """Return an object of JSON values as JSON text; raises BadRecord where `to_json` would write another."""
    data = encode(value)
    is_deep = len(data) > MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH
    # Repaired files may have NaN, which is encoded as null.
    if is_deep or b'"$float"' in data or (b"null" in data and decode(data) != value):
        raise BadRecord("a value that JSON does not hold, or not as it is")
    return data
