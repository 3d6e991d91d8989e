"""Plain pairs, whole batches at a time: their texts are looked at once each, and are the pieces of their lines.

A pair is plain where its messages hold text, and calls that can be moved as they stand to where a chat has them, and
nothing else; its sides begin with the assistant. For targets whose prompt is text, it is one user message and each side
one of the assistant's, without calls. What is not plain is null here, and null in the lines.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.jsontext import encode
from pairwright.pairs.exporters.stream import Context

_BYTES = pa.large_binary()
_SIDE, _USER = (b'[{"role":"%b","content":"' % role for role in (b"assistant", b"user"))
_WORD, _STRING = r'"[^"\\]*"', r'"[^"\\]*(?:\\.[^"\\]*)*"'
_CALL = rf'\{{("name":{_WORD},"arguments":{_STRING}),("id":{_WORD})\}}'
_CHAT_CALL = '{$2,"type":"function","function":{$1}}'
_SILENT, _CHAT_SILENT = '"role":"assistant","tool_calls":[', '"role":"assistant","content":"","tool_calls":['
# Keys cannot be mistaken: inside text their quotes would be escaped. A call that was not moved begins with its name.
_NOT_PLAIN = ['"reasoning":', '"generated":', '"extra":', '"content":[', '"role":"text"']
_NOT_MOVED = ('[{"name":"', ',{"name":"')
_SYSTEM = ("system", "developer")


class PlainChats(NamedTuple):
    """Prompt, chosen and rejected as the JSON text of messages, and which pairs have several messages a side."""

    prompt: pa.DictionaryArray
    chosen: pa.DictionaryArray
    rejected: pa.DictionaryArray
    several: npt.NDArray[np.bool_]


def plain_chats(batch: pa.RecordBatch, context: Context) -> PlainChats:
    """The chats of a batch's pairs, with the arguments of calls as text."""
    prompt, *sides = (batch.column(name) for name in ("prompt", "chosen", "rejected"))
    with_calls = context.options.arguments == "text"
    several, chats = np.zeros(batch.num_rows, np.bool_), []
    for side in sides:
        found = _chats(side, with_calls=with_calls, odd=~_begins_with("assistant"))
        chats.append(_coded(side, found["text"]))
        longer = np.append((found["num_messages"] > 1).to_numpy(), False)
        several |= longer[side.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    num_system = pl.sum_horizontal(
        pl.col("text").str.count_matches(f'"role":"{role}"', literal=True) for role in _SYSTEM
    )
    at_first = pl.any_horizontal(_begins_with(role) for role in _SYSTEM)
    # TRL refuses a prompt that ends with a system message: one is plain if it stands at the beginning, before others
    odd = (num_system > at_first.cast(pl.UInt32)) | (num_system == pl.col("num_messages"))
    chats.append(_coded(prompt, _chats(prompt, with_calls=with_calls, odd=odd)["text"]))
    return PlainChats(chats[2], chats[0], chats[1], several)


def plain_texts(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Prompt, chosen and rejected as JSON strings, of pairs without tools whose prompt is one user message."""
    prompt = _of_rows(batch.column("prompt"), _user_texts)
    return (
        without_tools(batch, prompt),
        _of_rows(batch.column("chosen"), _side_texts),
        _of_rows(batch.column("rejected"), _side_texts),
    )


def tools_texts(batch: pa.RecordBatch) -> pa.Array:
    """The tools as JSON strings that hold JSON; no tools are the text of an empty list."""
    tools = _each(batch.column("tools"), lambda stored: encode(stored.decode()))
    return tools.dictionary_decode().fill_null(b'"[]"') if tools.null_count else tools


def without_tools(batch: pa.RecordBatch, column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The column, null where a pair has tools."""
    indices = pc.if_else(batch.column("tools").is_null(), column.indices, pa.scalar(None, column.indices.type))
    return pa.DictionaryArray.from_arrays(indices, column.dictionary)


def numbers(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column of floats as JSON numbers."""
    texts = encode(batch.column(name).to_pylist())[1:-1].split(b",") if batch.num_rows else []
    return pa.array(texts, _BYTES)


def _each(column: pa.DictionaryArray, make: Callable[[bytes], bytes | None]) -> pa.Array:
    """What `make` gives for each text of a column, made once for each different one."""
    values = column.dictionary.cast(_BYTES).to_pylist()
    return pa.DictionaryArray.from_arrays(column.indices, pa.array([make(value) for value in values], _BYTES))


def _of_rows(column: pa.DictionaryArray, make: Callable[[pa.Array], pa.Array]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(column.indices, make(column.dictionary.cast(_BYTES)))


def _chats(column: pa.DictionaryArray, *, with_calls: bool, odd: pl.Expr) -> pl.DataFrame:
    """The texts of a column as chats, null where they are odd or have more than text and calls, and how many messages
    each has. Without `with_calls` those with calls are null too."""
    text, num_messages = pl.col("text"), pl.col("num_messages")
    frame = pl.DataFrame({"text": pl.Series(column.dictionary)})
    frame = frame.with_columns(
        num_messages=text.str.count_matches('"role":"', literal=True), odd=text.str.contains_any(_NOT_PLAIN)
    )
    if frame["text"].str.contains('"tool_calls":[', literal=True).any():
        if with_calls:
            moved = text.str.replace_all(_CALL, _CHAT_CALL)
            frame = frame.with_columns(moved.str.replace_all(_SILENT, _CHAT_SILENT, literal=True))
        not_moved = pl.any_horizontal(text.str.contains(call, literal=True) for call in _NOT_MOVED)
        frame = frame.with_columns(pl.col("odd") | not_moved)
    num_texts = text.str.count_matches('"content":"', literal=True)
    odd = odd | pl.col("odd") | (num_messages == 0) | (num_messages != num_texts)
    return frame.select(pl.when(~odd).then(text).alias("text"), num_messages)


def _begins_with(role: str) -> pl.Expr:
    return pl.col("text").str.starts_with(f'[{{"role":"{role}"')


def _coded(column: pa.DictionaryArray, texts: pl.Series) -> pa.DictionaryArray:
    """The column with other texts in place of its own."""
    return pa.DictionaryArray.from_arrays(column.indices, texts.to_arrow().cast(_BYTES))


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags, min_count=0).as_py())


def _side_texts(values: pa.Array) -> pa.Array:
    return _only_texts(values, _SIDE)


def _user_texts(values: pa.Array) -> pa.Array:
    return _only_texts(values, _USER)


def _only_texts(values: pa.Array, head: bytes) -> pa.Array:
    """As `only_text` has it, of many at once."""
    starts = pc.starts_with(values, head)
    plain = pc.and_(starts, pc.invert(pc.starts_with(values, head + b'"')))
    plain = pc.and_(plain, pc.and_(_has_keys(values, 2, at_least=_all(starts)), pc.ends_with(values, b'"}]')))
    texts = pc.binary_slice(values, len(head) - 1, -2)
    return pc.if_else(plain, texts, pa.scalar(None, _BYTES))


def _has_keys(values: pa.Array, number: int, *, at_least: bool) -> pa.Array:
    """Which values have so many ends of keys. Where each has `at_least` so many, one look at all of them may tell.

    Values are JSON arrays, so that none begins in one and ends in the next.
    """
    text = values.buffers()[2]
    if at_least and text is not None:
        offsets = memoryview(values.buffers()[1]).cast("q")
        data = np.frombuffer(text, np.uint8)[offsets[values.offset] : offsets[values.offset + len(values)]]
        is_end = (data[:-1] == ord('"')) & (data[1:] == ord(":"))  # several times as fast as bytes.count
        if np.count_nonzero(is_end) == number * len(values):
            return pa.scalar(True)
    return pc.equal(pc.count_substring(values, b'":'), number)
