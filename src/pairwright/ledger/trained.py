"""`trained.parquet`: the turns that a run trained, the trainer's part of the ledger.

One row for each turn of each sequence of the channels, drawn or not:

    channel   dpo, sft, grpo, sdpo, kto
    id        the pair, or the experience
    side      chosen or rejected; empty for an experience
    turn      index of the message, -1 if recorded spans cannot be assigned to messages
    tokens    tokens of the turn in the loss mask
    times     number of updates that computed a loss on the turn
    fate      trained, or why not; an item that could not be encoded is one row without a turn, "refused: <reason>"
    digest    hash of these tokens, to compare with the sampled ids
    added     added tokens of the sequence (closing of a thought, stop token that is not rendered), on its first row
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pairwright.paths import write_atomic
from pairwright.records.arrays import Array

FILE_NAME = "trained.parquet"
TRAINED, HELD_OUT, NOT_DRAWN = "trained", "held out for validation", "not drawn: training ended first"
# Turns with these fates have a row without tokens and digest.
NOT_SELECTED, MASKED = "not selected (tokens.train_turns)", "masked by credit"
SCHEMA = pa.schema(
    [
        ("channel", pa.string()),
        ("id", pa.string()),
        ("side", pa.string()),
        ("turn", pa.int32()),
        ("tokens", pa.int32()),
        ("times", pa.int32()),
        ("fate", pa.string()),
        ("digest", pa.uint64()),
        ("added", pa.int32()),
    ]
)
_ROWS_AT_ONCE = 65_536  # rows in memory before they are written


class HeldTurns(NamedTuple):
    """A sequence of a channel. `mask` marks the tokens in the loss; `unused` is the reason why it is never drawn."""

    id: str
    side: str
    ids: Array
    mask: Array
    message_index: Array
    unused: str | None = None
    not_selected: tuple[int, ...] = ()  # turns that are context by `tokens.train_turns`
    masked_by_credit: tuple[int, ...] = ()  # turns that are context by `tokens.train_turns: accepted`
    added_tokens: int = 0

    @classmethod
    def of(cls, name: str, side: str, sequence: Any, unused: str | None = None) -> "HeldTurns":
        """Create from a sequence of the tokens stage."""
        report = sequence.report
        arrays = sequence.ids, sequence.mask, sequence.message_index
        return cls(name, side, *arrays, unused, report.not_selected, report.masked_by_credit, report.added_tokens)


class Turn(NamedTuple):
    turn: int
    tokens: int
    digest: int


def split_turns(ids: Array, mask: Array, message_index: Array) -> Iterator[Turn]:
    """Yield the trained tokens of a sequence by turn, in order; an answer with unknown messages is one turn, -1.

    >>> turns = split_turns(np.array([5, 6, 7, 8]), np.array([0, 1, 1, 1], bool), np.array([-1, 1, 1, 3]))
    >>> [(turn.turn, turn.tokens) for turn in turns]
    [(1, 2), (3, 1)]
    """
    mask = np.asarray(mask, bool) & (np.arange(len(mask)) > 0)  # nothing predicts the first token
    trained, messages = np.asarray(ids)[mask].astype(np.int32), np.asarray(message_index)[mask]
    # Where the message changes between two trained tokens, a turn ends.
    edges = [0, *(np.flatnonzero(np.diff(messages)) + 1).tolist(), len(trained)] if len(trained) else [0]
    for start, end in pairwise(edges):
        yield Turn(int(messages[start]), end - start, digest_of(trained[start:end]))


def digest_of(ids: Array) -> int:
    # Always int32: the hash is of the bytes.
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids, dtype=np.int32).tobytes())


def write_trained(folder: Path, channels: Iterable[Any], num_steps: int) -> None:
    """Write the turns that `num_steps` updates of the channels trained, and those that were never drawn."""
    with (
        write_atomic(folder / FILE_NAME) as temporary,
        pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer,
    ):
        rows: list[dict[str, Any]] = []
        for channel in channels:
            for row in _rows(channel, num_steps):
                rows.append(row)
                if len(rows) == _ROWS_AT_ONCE:
                    writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
                    rows = []
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def _rows(channel: Any, num_steps: int) -> Iterator[dict[str, Any]]:
    # A refusal has no sequence: one row, whose turn and digest are null.
    for name, reason in channel.data.refusals.items():
        yield {"channel": channel.name, "id": name, "side": "", "tokens": 0, "times": 0, "fate": f"refused: {reason}"}
    times = np.zeros(len(channel.data.ids), np.int64)  # how often each item was drawn
    for step in range(num_steps):
        # The items of a batch are distinct, so `+=` with an index array counts each of them.
        times[channel.order.batch(step)] += 1
    held_out = set(channel.validation.tolist())
    for item, num_times in enumerate(times.tolist()):
        for held in channel.list_held(item):
            for fate, numbers in ((NOT_SELECTED, held.not_selected), (MASKED, held.masked_by_credit)):
                for number in numbers:
                    place = {"channel": channel.name, "id": held.id, "side": held.side, "turn": number}
                    yield {**place, "tokens": 0, "times": 0, "fate": fate}
            fate = held.unused or (TRAINED if num_times else HELD_OUT if item in held_out else NOT_DRAWN)
            for number, turn in enumerate(split_turns(held.ids, held.mask, held.message_index)):
                yield {
                    "channel": channel.name,
                    "id": held.id,
                    "side": held.side,
                    "times": num_times,
                    "fate": fate,
                    "added": 0 if number else held.added_tokens,
                    **turn._asdict(),
                }
