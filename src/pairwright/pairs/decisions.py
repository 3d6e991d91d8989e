"""Decisions: every message that a model wrote in a recorded run, and the state that it was written at.

    prompt        user: "book it"                                 state 0: the prompt
    completion 0  assistant: search(...)     decision 0
               1  tool: "3 flights"                               state 2: the prompt, the call and its result
               2  assistant: "Which one?"    decision 2

A state is compared by the hash that a prompt of these messages and tools has, an action by the hash of its one message
(canonical form). Runs are read batch by batch, and only narrow columns are held.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.canonical import canonical_messages, content_hash
from pairwright.messages import Message
from pairwright.pairs.candidates import Indices
from pairwright.pairs.chains import messages_of, prompt_messages
from pairwright.pairs.rows import PLACE_BITS
from pairwright.pairs.table import num_characters
from pairwright.store.table import Table

_CONTENT = ("prompt", "tools", "completion", "prompt_text")
_PER_DECISION = {"prompt_hash": pl.String, "completion_hash": pl.String, "num_characters": pl.Int64}
_SCHEMA: dict[str, Any] = {
    "row": pl.Int64,
    "at": pl.Int64,
    "decision": pl.Int64,
    "is_empty": pl.Boolean,
    **_PER_DECISION,
}


def split_decisions(rows: pl.DataFrame, tables: Sequence[Table], *, first: int = 0) -> pl.DataFrame:
    """Narrow rows with one row for each decision; the first of the tables has the number `first`.

    `at` is the position of the decision's message in the conversation, `decision` that in the completion, `is_empty`
    whether nothing stands in it. A completion of one message is one decision, and has neither position; one of several
    messages of which the model wrote none is no row.
    """
    several = _rows_of_several(tables, first)
    is_several = pl.Series(np.isin(rows["row"].to_numpy(), several, assume_unique=True))
    single = rows.filter(~is_several).with_columns(
        pl.lit(None, pl.Int64).alias("at"), pl.lit(None, pl.Int64).alias("decision"), pl.lit(False).alias("is_empty")
    )
    runs = rows.filter(is_several)
    if not runs.height:
        return single
    wanted = np.sort(runs["row"].to_numpy())
    decisions = pl.concat([pl.DataFrame(schema=_SCHEMA), *_read_decisions(tables, wanted, first)])
    split = runs.drop(*_PER_DECISION).join(decisions, on="row", how="inner", maintain_order="left_right")
    return pl.concat([single, split.select(single.columns)])


def _rows_of_several(tables: Sequence[Table], first: int) -> Indices:
    """The rows whose completion has more than one message; ascending."""
    found = [np.zeros(0, np.int64)]
    for number, table in enumerate(tables, first):
        counts = table.lazy().select("num_completion_messages").collect().to_series().fill_null(0).to_numpy()
        found.append(np.flatnonzero(counts > 1) + (number << PLACE_BITS))
    return np.concatenate(found)


def _read_decisions(tables: Sequence[Table], wanted: Indices, first: int) -> Iterator[pl.DataFrame]:
    """The decisions of these rows, batch by batch."""
    for number, table in enumerate(tables, first):
        start = number << PLACE_BITS
        for batch in table.scan(columns=_CONTENT):
            own = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + batch.num_rows)]
            if len(own):
                texts = batch.take(pa.array(own - start))
                found = [row for place, text in zip(own.tolist(), texts.to_pylist(), strict=True)
                         for row in _decisions(place, text)]  # fmt: skip
                yield pl.DataFrame(found, schema=_SCHEMA, orient="row")
            start += batch.num_rows


def _decisions(row: int, text: dict[str, Any]) -> Iterator[tuple[int, int, int, bool, str, str, int]]:
    prompt, completion = prompt_messages(text["prompt"], text["prompt_text"]), messages_of(text["completion"])
    tools = list(msgspec.json.decode(text["tools"])) if text["tools"] else []
    # calls are numbered from the start, so that the forms of a state are the first of the whole conversation
    forms = canonical_messages([*prompt, *completion])
    for decision, message in enumerate(completion):
        if message.is_generated:
            at = len(prompt) + decision
            state, action = content_hash(forms[:at], tools), content_hash(canonical_messages([message]))
            yield row, at, decision, _is_empty(message), state, action, num_characters([message])


def _is_empty(message: Message) -> bool:
    return not (message.tool_calls or message.text or message.reasoning)
