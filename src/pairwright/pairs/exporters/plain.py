"""Plain pairs, whole batches at a time: their texts are looked at once each, and are the pieces of their lines.

A pair is plain where each side is one assistant message that holds text and nothing else, and its prompt is messages of
that kind, or one user message for targets whose prompt is text. What is not plain is null here, and null in the lines.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pairwright.jsontext import encode
from pairwright.pairs.exporters.chat import chat_of
from pairwright.pairs.exporters.stream import Unfit

_BYTES = pa.large_binary()
_MORE = (b'"tool_calls":', b'"reasoning":', b'"generated":', b'"extra":', b'"content":[')
_SIDE, _USER = (b'[{"role":"%b","content":"' % role for role in (b"assistant", b"user"))


def plain_chats(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Prompt, chosen and rejected as the JSON text of messages."""
    chosen, rejected = (_of_rows(batch.column(side), _plain_sides) for side in ("chosen", "rejected"))
    if chosen.dictionary.null_count == len(chosen.dictionary):  # none is plain: the prompts need not be looked at
        return chosen, chosen, rejected
    return _each(batch.column("prompt"), _plain_prompt), chosen, rejected


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
    return tools.dictionary_decode().fill_null(b'"[]"')


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


def _plain_prompt(stored: bytes) -> bytes | None:
    try:
        chat = chat_of(stored)
    except Unfit:
        return None
    return chat.json if chat.json is stored and chat.last_role not in ("system", "developer") else None


def _plain_sides(values: pa.Array) -> pa.Array:
    plain = pc.starts_with(values, _SIDE)
    if not pc.any(plain, min_count=0).as_py():
        return pa.nulls(len(values), _BYTES)
    once = _all(plain)
    for key, number in ((b'"role":"', 1), (b'"content":', 1), *((key, 0) for key in _MORE)):
        plain = pc.and_(plain, _has(values, key, number, at_least=once or not number))
    return pc.if_else(plain, values, pa.scalar(None, _BYTES))


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
    plain = pc.and_(plain, pc.and_(_has(values, b'":', 2, at_least=_all(starts)), pc.ends_with(values, b'"}]')))
    texts = pc.binary_slice(values, len(head) - 1, -2)
    return pc.if_else(plain, texts, pa.scalar(None, _BYTES))


def _has(values: pa.Array, part: bytes, number: int, *, at_least: bool) -> pa.Array:
    """Which values have a part so many times. Where each has it `at_least` so often, one look at all of them may tell.

    Values are JSON arrays, so that no part begins in one and ends in the next.
    """
    text = values.buffers()[2]
    if at_least and text is not None:
        offsets = memoryview(values.buffers()[1]).cast("q")
        first, last = offsets[values.offset], offsets[values.offset + len(values)]
        if text.slice(first, last - first).to_pybytes().count(part) == number * len(values):
            return pa.scalar(True)
    return pc.equal(pc.count_substring(values, part), number)
