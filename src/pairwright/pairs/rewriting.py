"""Texts of pairs that are not copied: plain text as a message, trajectories that are cut, given preferences."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.canonical import canonical_messages, content_hash, prompt_hash
from pairwright.jsontext import encode
from pairwright.messages import TEXT, Message, completion_of_text, text_prompt
from pairwright.pairs.candidates import Indices
from pairwright.pairs.chains import messages_of
from pairwright.pairs.given import side_messages
from pairwright.pairs.identity import pair_key

_LONG = pa.large_string()
_OF_TEXT = ("prompt_text", "response_text")
REWRITTEN = ("cut", "row_uid", "chosen_at", "rejected_at")  # a draft that has one of them is not a mere copy
_MADE = ("id", "prompt_hash", "prompt", "tools", "chosen", "rejected")


def with_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with plain text as one message; `prompt_hash` and `completion_hash` are there where that was so.

    A prompt that is text becomes a message of role text, and so does the completion that follows it.
    """
    columns = {name: rows.column(name) for name in rows.schema.names if name not in _OF_TEXT}
    for name, text in (("prompt", "prompt_text"), ("completion", "response_text")):
        hashes: list[str | None] = []
        if rows.column(text).null_count < len(rows) and columns[name].null_count:
            values = columns[name].to_pylist()
            for row, messages in enumerate(_messages_of_text(rows, name, text)):
                is_text = bool(messages) and values[row] is None
                values[row] = encode(messages).decode() if is_text else values[row]
                hashes.append(_hash(name, messages, columns["tools"][row].as_py()) if is_text else None)
            columns[name] = pa.array(values, _LONG)
        columns[f"{name}_hash"] = pa.array(hashes, pa.string()) if hashes else pa.nulls(len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rewritten(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Trajectories that are cut, and given preferences: messages are read and written again."""
    names = [name for name in ("prompt", "tools", "completion", "chosen", "rejected") if name in texts.schema.names]
    places, which = np.unique(np.concatenate([chosen, rejected]), return_inverse=True)
    rows = texts.select(names).take(places).to_pylist()
    columns: list[list[str | None]] = [[] for _ in _MADE]
    for (cut, given, *at), one, two in zip(drafts.select(REWRITTEN).iter_rows(), *np.split(which, 2), strict=True):
        if cut is None and given is None:
            values = _compared(rows[one], rows[two], *at)
        else:
            values = _made(rows[one], rows[two], cut)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    made = {name: pa.array(values, _LONG) for name, values in zip(_MADE, columns, strict=True)}
    return made | {name: made[name].cast(pa.string()) for name in ("id", "prompt_hash")}


def _messages_of_text(rows: pa.RecordBatch, name: str, text: str) -> Iterator[tuple[Message, ...]]:
    """The plain text of each row as messages."""
    texts = rows.column(text).to_pylist()
    if name == "prompt":
        return map(text_prompt, texts)
    sizes = rows.column("num_prompt_messages").to_pylist()
    return (completion_of_text(value, prompt_is_text=size == 0) for value, size in zip(texts, sizes, strict=True))


def _made(row: dict[str, Any], opposite: dict[str, Any], cut: int | None) -> tuple[str | None, ...]:
    prompt = messages_of(row["prompt"] or "[]")
    if cut is None:
        prompt_is_text = not prompt or prompt[0].role == TEXT
        chosen, rejected = (side_messages(row[side], prompt_is_text=prompt_is_text) for side in ("chosen", "rejected"))
    else:
        whole = prompt + messages_of(row["completion"] or "[]")
        prompt, chosen = whole[:cut], whole[cut:]
        rejected = (messages_of(opposite["prompt"] or "[]") + messages_of(opposite["completion"] or "[]"))[cut:]
    digest = prompt_hash(prompt, _schemas(row["tools"]))
    key = pair_key(digest, *(content_hash(canonical_messages(side)) for side in (chosen, rejected)))
    texts = [encode(messages).decode() for messages in (prompt, chosen, rejected)]
    return key, digest, texts[0], row["tools"], *texts[1:]


def _compared(
    row: dict[str, Any], opposite: dict[str, Any], chosen_at: int | None, rejected_at: int | None
) -> tuple[str | None, ...]:
    """One action against one action: the prompt is the state of a message that is cut out, the rejected one first."""
    chosen, rejected = row["completion"] or "[]", opposite["completion"] or "[]"
    prompt, tools = row["prompt"] or "[]", row["tools"]
    if chosen_at is not None:
        prompt, chosen = _cut_out(row, chosen_at)
    if rejected_at is not None:
        (prompt, rejected), tools = _cut_out(opposite, rejected_at), opposite["tools"]
    digest = prompt_hash(messages_of(prompt), _schemas(tools))
    key = pair_key(digest, *(content_hash(canonical_messages(messages_of(side))) for side in (chosen, rejected)))
    return key, digest, prompt, tools, chosen, rejected


def _cut_out(row: dict[str, Any], at: int) -> tuple[str, str]:
    """A message of a conversation, and all before it."""
    whole = messages_of(row["prompt"] or "[]") + messages_of(row["completion"] or "[]")
    return encode(whole[:at]).decode(), encode(whole[at : at + 1]).decode()


def _hash(name: str, messages: Sequence[Message], tools: str | None) -> str:
    return prompt_hash(messages, _schemas(tools)) if name == "prompt" else content_hash(canonical_messages(messages))


def _schemas(tools: str | None) -> list[Any]:
    return list(msgspec.json.decode(tools)) if tools else []
