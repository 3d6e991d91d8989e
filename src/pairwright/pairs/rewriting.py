"""Texts of pairs that are not copied: plain text as a message, trajectories that are cut, given preferences."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.canonical import canonical_messages, content_hash, prompt_hash
from pairwright.jsontext import encode
from pairwright.messages import Message
from pairwright.pairs.candidates import Indices
from pairwright.pairs.chains import messages_of
from pairwright.pairs.given import side_messages
from pairwright.pairs.identity import pair_key

_LONG = pa.large_string()
REWRITTEN = ("cut", "row_uid", "chosen_at", "rejected_at")  # a draft that has one of them is not a mere copy
_MADE = ("id", "prompt_hash", "prompt", "tools", "chosen", "rejected")


def with_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with plain text as one message; `prompt_hash` and `completion_hash` are there where that was so."""
    columns = {name: rows.column(name) for name in rows.schema.names if name not in ("prompt_text", "response_text")}
    tools = columns["tools"]
    for name, text, role in (("prompt", "prompt_text", "user"), ("completion", "response_text", "assistant")):
        hashes: list[str | None] = []
        if rows.column(text).null_count < len(rows) and columns[name].null_count:
            values, plain = columns[name].to_pylist(), rows.column(text).to_pylist()
            for row, (value, said) in enumerate(zip(values, plain, strict=True)):
                messages = (Message(role, said),) if value is None and said else ()
                values[row] = encode(messages).decode() if messages else value
                hashes.append(_hash(name, messages, tools[row].as_py()) if messages else None)
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


def _made(row: dict[str, Any], opposite: dict[str, Any], cut: int | None) -> tuple[str | None, ...]:
    prompt = messages_of(row["prompt"] or "[]")
    if cut is None:
        chosen, rejected = side_messages(row["chosen"]), side_messages(row["rejected"])
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
