"""Columns of the experience table, shared by Parquet, Arrow, HF datasets and the command line.

Narrow columns are for queries: ids, reward, hashes, lengths, source. They are computed from the record; all but `uid`,
`kind`, the rewards, `prompt_length` and the source can be recomputed from the content. Content columns are JSON text,
so that Arrow does not unify schemas across rows. Arrays are native lists if the column type represents the values
exactly; `dtypes` has the original dtypes. `arrays` is a packed blob of everything else: other float widths, more
dimensions, multi-modal inputs, arrays of the sides of a preference.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import pyarrow as pa

from pairwright.records.experience import Experience
from pairwright.records.json_text import to_json
from pairwright.records.messages import Message, canonical_messages, content_hash, prompt_hash
from pairwright.store.block import side_meta

encode = msgspec.json.encode
_TEXT, _LONG = pa.string(), pa.large_string()


@dataclass(frozen=True)
class Column:
    """A column: name, type, a function that computes it from an experience, and its meaning.

    `shared` names the fields that determine the value: if they are the same objects as in the previous row, as for the
    runs of one task, its value is reused.
    """

    name: str
    type: pa.DataType
    of: Callable[[Experience], Any]
    meaning: str
    shared: tuple[str, ...] = ()

    def values(self, experiences: Sequence[Experience]) -> list[Any]:
        """Compute the values of the column for a batch of experiences."""
        if not self.shared:
            return list(map(self.of, experiences))
        # By identity, since comparing long prompts would be as slow as computing the column.
        ids = zip(*(map(id, map(attrgetter(name), experiences)) for name in self.shared), strict=True)
        values: list[Any] = []
        for _, some in groupby(zip(ids, experiences, strict=True), key=itemgetter(0)):
            alike = [exp for _, exp in some]
            values += [self.of(alike[0])] * len(alike)
        return values


def _json_column(
    name: str,
    meaning: str,
    *,
    kind: pa.DataType = _LONG,
    write: Callable[[Any], str | bytes] = encode,
    shared: tuple[str, ...] = (),
) -> Column:
    """Return the column of a field of the record as JSON text; null where the field is None or empty."""
    field = attrgetter(name)

    def text_of(exp: Experience) -> str | bytes | None:
        value = field(exp)
        return write(value) if value else None

    return Column(name, kind, text_of, meaning, shared)


def num_characters(messages: Iterable[Message]) -> int:
    """Count the characters of messages: text, reasoning and tool call arguments."""
    total = 0
    for message in messages:
        total += len(message.content) if type(message.content) is str else len(message.text)
        if message.reasoning is not None:
            total += len(message.reasoning)
        for call in message.tool_calls:
            total += len(call.arguments)
    return total


def _completion_hash(exp: Experience) -> str | None:
    if exp.completion:
        return content_hash(canonical_messages(exp.completion))
    # Raw-text records (Trinity) have no messages; their response is the completion.
    return None if exp.response_text is None else content_hash(exp.response_text)


def _odd_reward(exp: Experience) -> str | None:
    """Return a NaN or infinite reward as text; it is not in `reward`, where NaN would match `reward > 0.5`."""
    return None if exp.reward is None or exp.is_scored else str(exp.reward)


def _model_version(exp: Experience) -> str | None:
    return None if exp.model_version is None else encode(exp.model_version).decode()


NARROW = (
    Column("uid", _TEXT, lambda e: e.eid.uid, "the whole id: [batch, task, run, step, suffix]"),
    Column("tid", _TEXT, lambda e: e.eid.tid, "the task: [batch, task]"),
    Column("batch", _TEXT, lambda e: str(e.eid.batch), "collection round"),
    Column("task", _TEXT, lambda e: str(e.eid.task), "problem put to the agent"),
    Column("run", pa.int64(), attrgetter("eid.run"), "attempt at the task"),
    Column("step", pa.int64(), attrgetter("eid.step"), "decision point in the run"),
    Column("kind", _TEXT, attrgetter("kind"), "single_turn, multi_turn or preference"),
    Column("reward", pa.float64(), lambda e: e.reward if e.is_scored else None, "score; null where unscored"),
    Column("reward_unscored", _TEXT, _odd_reward, "nan, inf or -inf where that was the reward"),
    Column("model_version", _TEXT, _model_version, "model that answered, as JSON"),
    Column(
        "prompt_hash",
        _TEXT,
        lambda e: prompt_hash(e.prompt, e.tools),
        "equal for prompts that may be compared",
        shared=("prompt", "tools"),
    ),
    Column("completion_hash", _TEXT, _completion_hash, "equal for completions that mean the same"),
    Column("num_prompt_messages", pa.int32(), lambda e: len(e.prompt), "messages in the prompt"),
    Column("num_completion_messages", pa.int32(), lambda e: len(e.completion), "messages in the completion"),
    Column("num_completion_characters", pa.int64(), lambda e: num_characters(e.completion), "its text and calls"),
    Column(
        "num_tool_calls", pa.int32(), lambda e: sum(len(m.tool_calls) for m in e.completion), "calls in the completion"
    ),
    Column("num_errors", pa.int32(), lambda e: len(e.errors), "error sites"),
    Column("num_tokens", pa.int32(), lambda e: None if e.tokens is None else len(e.tokens), "token ids recorded"),
    Column("prompt_length", pa.int32(), attrgetter("prompt_length"), "of them, the prompt's"),
    Column("truncate_status", _TEXT, attrgetter("truncate_status"), "prompt_truncated or response_truncated"),
    Column("source_format", _TEXT, lambda e: e.source and e.source.format, "format it was read from"),
    Column("source", _TEXT, lambda e: e.source and e.source.file, "file it was read from"),
    Column("source_line", pa.int64(), lambda e: e.source and e.source.line, "and the line, from 1"),
)

CONTENT = (
    _json_column("prompt", "messages, as JSON", shared=("prompt",)),
    _json_column("tools", "tool schemas, as JSON", shared=("tools",)),
    _json_column("completion", "messages, as JSON"),
    _json_column("chosen", "side, as JSON", write=lambda side: encode(side_meta(side))),
    _json_column("rejected", "side, as JSON", write=lambda side: encode(side_meta(side))),
    Column("prompt_text", _LONG, attrgetter("prompt_text"), "prompt as plain text"),
    Column("response_text", _LONG, attrgetter("response_text"), "response as plain text"),
    _json_column("reward_components", "as JSON", write=to_json),
    _json_column("errors", "error sites, as JSON"),
    _json_column("info", "as JSON", write=to_json),
    _json_column("metrics", "as JSON", write=to_json),
    _json_column("side_of", "preference it was split from", kind=_TEXT),
    _json_column("custom_fields", "as JSON", kind=_TEXT),
)

# Native list columns -> the dtype that they represent exactly, which is the record's dtype unless `dtypes` differs.
ARRAY_TYPES = {
    "tokens": ("int32", pa.int32()),
    "logprobs": ("float32", pa.float32()),
    "action_mask": ("bool", pa.bool_()),
    "token_level_reward": ("float32", pa.float32()),
    "advantages": ("float32", pa.float32()),
    "returns": ("float32", pa.float32()),
    "teacher_logprobs": ("float32", pa.float32()),
}

SCHEMA = pa.schema(
    # The order of the columns in a file; `to_batch` builds its arrays in the same order.
    [pa.field(column.name, column.type) for column in (*NARROW, *CONTENT)]
    + [pa.field(name, pa.list_(item_type)) for name, (_, item_type) in ARRAY_TYPES.items()]
    + [pa.field("dtypes", pa.string()), pa.field("arrays", pa.large_binary())],
    metadata={"pairwright.table": "1"},
)
NARROW_NAMES = tuple(column.name for column in NARROW)
# Columns with repeated values, stored with a dictionary; large texts are left to the compressor.
DICTIONARY_NAMES = ("tid", "batch", "task", "kind", "model_version", "prompt_hash", "source_format", "source", "dtypes")
