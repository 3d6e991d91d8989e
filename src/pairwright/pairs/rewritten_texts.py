"""Rewritten texts: plain text as messages, trajectories cut at a message, imported preferences."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.generate.template_variables import KEY
from pairwright.pairs.candidates.candidates import Indices
from pairwright.pairs.candidates.pair_ids import pair_key
from pairwright.pairs.strategies.imported import side_messages
from pairwright.records.json_text import encode, from_json
from pairwright.records.messages import (
    TEXT,
    Message,
    canonical_messages,
    completion_of_text,
    content_hash,
    decode_messages,
    prompt_hash,
    text_prompt,
)


def select_variables(info: pa.Array) -> pa.Array:
    """Extract the chat template variables from `info` as JSON; null for experiences without any."""
    mentions = pc.match_substring(info, f'"{KEY}"').fill_null(False)
    if not pc.any(mentions).as_py():
        return pa.nulls(len(info), LONG_TEXT)
    values = [
        from_json(text).get(KEY) if mentioned else None
        for text, mentioned in zip(info.to_pylist(), mentions.to_pylist(), strict=True)
    ]
    return pa.array([encode(value, order="sorted").decode() if value else None for value in values], LONG_TEXT)


LONG_TEXT = pa.large_string()
_OF_TEXT = ("prompt_text", "response_text")
REJECTED_KEY = f"rejected_{KEY}"  # in the info of a pair whose rejected side has different template variables
REWRITTEN = ("cut", "row_uid", "chosen_at", "rejected_at")  # a draft with one of these columns needs decoded texts
_REWRITTEN_COLUMNS = ("id", "prompt_hash", "prompt", "tools", "chosen", "rejected")


def with_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert plain-text prompts and completions to messages, and add `prompt_hash` and `completion_hash`.

    The hashes are null for rows that already had messages. A plain-text prompt and the completion that follows it
    become messages with the role `text`.
    """
    columns = {name: rows.column(name) for name in rows.schema.names if name not in _OF_TEXT}
    columns["info"] = select_variables(columns["info"])
    for name, text in (("prompt", "prompt_text"), ("completion", "response_text")):
        hashes: list[str | None] = []
        if rows.column(text).null_count < len(rows) and columns[name].null_count:
            values = columns[name].to_pylist()
            for row, messages in enumerate(_messages_of_text(rows, name, text)):
                is_text = bool(messages) and values[row] is None
                values[row] = encode(messages).decode() if is_text else values[row]
                hashes.append(_hash(name, messages, columns["tools"][row].as_py()) if is_text else None)
            columns[name] = pa.array(values, LONG_TEXT)
        columns[f"{name}_hash"] = pa.array(hashes, pa.string()) if hashes else pa.nulls(len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rewrite_texts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Build the columns of drafts that need decoding; `chosen` and `rejected` are row positions in `texts`."""
    names = [name for name in ("prompt", "tools", "completion", "chosen", "rejected") if name in texts.schema.names]
    # Each row is decoded once, even if it is in many pairs; `which` maps sides to rows.
    places, which = np.unique(np.concatenate([chosen, rejected]), return_inverse=True)
    rows = texts.select(names).take(places).to_pylist()
    columns: list[list[str | None]] = [[] for _ in _REWRITTEN_COLUMNS]
    for (cut, is_imported, *at), one, two in zip(
        drafts.select(REWRITTEN).iter_rows(), *np.split(which, 2), strict=True
    ):
        if cut is None and is_imported is None:
            values = _cut_at_action(rows[one], rows[two], *at)
        else:
            values = _cut_at_message(rows[one], rows[two], cut)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    arrays = {name: pa.array(values, LONG_TEXT) for name, values in zip(_REWRITTEN_COLUMNS, columns, strict=True)}
    return arrays | {name: arrays[name].cast(pa.string()) for name in ("id", "prompt_hash")}


def _messages_of_text(rows: pa.RecordBatch, name: str, text: str) -> Iterator[tuple[Message, ...]]:
    """Return the plain text of each row as messages."""
    texts = rows.column(text).to_pylist()
    if name == "prompt":
        return map(text_prompt, texts)
    sizes = rows.column("num_prompt_messages").to_pylist()
    return (completion_of_text(value, prompt_is_text=size == 0) for value, size in zip(texts, sizes, strict=True))


def _cut_at_message(row: dict[str, Any], opposite: dict[str, Any], cut: int | None) -> tuple[str | None, ...]:
    """Split two runs after their first `cut` messages, which are the prompt; None: the row is a preference."""
    prompt = decode_messages(row["prompt"] or "[]")
    if cut is None:
        prompt_is_text = not prompt or prompt[0].role == TEXT
        chosen, rejected = (side_messages(row[side], prompt_is_text=prompt_is_text) for side in ("chosen", "rejected"))
    else:
        whole = prompt + decode_messages(row["completion"] or "[]")
        prompt, chosen = whole[:cut], whole[cut:]
        rejected = (decode_messages(opposite["prompt"] or "[]") + decode_messages(opposite["completion"] or "[]"))[cut:]
    digest = prompt_hash(prompt, _schemas(row["tools"]))
    key = pair_key(digest, *(content_hash(canonical_messages(side)) for side in (chosen, rejected)))
    texts = [encode(messages).decode() for messages in (prompt, chosen, rejected)]
    return key, digest, texts[0], row["tools"], *texts[1:]


def _cut_at_action(
    row: dict[str, Any], opposite: dict[str, Any], chosen_at: int | None, rejected_at: int | None
) -> tuple[str | None, ...]:
    """Compare single messages of two runs; the prompt is everything before the rejected one, if that has a position."""
    chosen, rejected = row["completion"] or "[]", opposite["completion"] or "[]"
    prompt, tools = row["prompt"] or "[]", row["tools"]
    if chosen_at is not None:
        prompt, chosen = _cut_out(row, chosen_at)
    if rejected_at is not None:
        (prompt, rejected), tools = _cut_out(opposite, rejected_at), opposite["tools"]
    digest = prompt_hash(decode_messages(prompt), _schemas(tools))
    key = pair_key(digest, *(content_hash(canonical_messages(decode_messages(side))) for side in (chosen, rejected)))
    return key, digest, prompt, tools, chosen, rejected


def _cut_out(row: dict[str, Any], at: int) -> tuple[str, str]:
    """Return the messages before position `at`, and the message at it, both as JSON."""
    whole = decode_messages(row["prompt"] or "[]") + decode_messages(row["completion"] or "[]")
    return encode(whole[:at]).decode(), encode(whole[at : at + 1]).decode()


def _hash(name: str, messages: Sequence[Message], tools: str | None) -> str:
    return prompt_hash(messages, _schemas(tools)) if name == "prompt" else content_hash(canonical_messages(messages))


def _schemas(tools: str | None) -> list[Any]:
    return list(msgspec.json.decode(tools)) if tools else []
