"""The pairs table: one Parquet file of preferences, `pairs.parquet`, that appears whole or not at all.

Narrow columns say what a pair is and where it came from; content is JSON text, as in the experience table, so that it
can be copied from there without being decoded. `id` is a hash of what is compared: equal pairs have equal ids.
Same rows in the same order give the same bytes.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.canonical import canonical_messages, content_hash, prompt_hash
from pairwright.errors import RecordError, TableError
from pairwright.jsontext import encode, from_json
from pairwright.messages import Json, Message
from pairwright.records import EID, Pair
from pairwright.store.journal import sync_folder

FILE_NAME = "pairs.parquet"
ROWS_PER_GROUP = 4096
BYTES_PER_GROUP = 32 * 2**20

_TEXT, _LONG = pa.string(), pa.large_string()
NARROW_PAIR_TYPES = {
    "id": _TEXT,
    "tid": _TEXT,
    "task": _TEXT,
    "step": pa.int64(),
    "prompt_hash": _TEXT,
    "strategy": _TEXT,
    "gap": pa.float64(),
    "weight": pa.float64(),
    "split": _TEXT,
    "chosen_reward": pa.float64(),
    "rejected_reward": pa.float64(),
    "chosen_uid": _TEXT,
    "rejected_uid": _TEXT,
    "across_groups": pa.bool_(),
    "num_chosen_characters": pa.int64(),
    "num_rejected_characters": pa.int64(),
}
PAIR_CONTENT = ("prompt", "tools", "chosen", "rejected", "info")
PAIR_SCHEMA = pa.schema(
    [*NARROW_PAIR_TYPES.items(), *((name, _LONG) for name in PAIR_CONTENT)], metadata={"pairwright.pairs": "1"}
)
_DICTIONARY = ["tid", "task", "prompt_hash", "strategy", "split", "chosen_uid", "rejected_uid"]

_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


def pair_id(
    prompt: Iterable[Message], tools: Iterable[Json], chosen: Iterable[Message], rejected: Iterable[Message]
) -> str:
    """32 hex digits, equal exactly for pairs that compare the same two completions at the same prompt."""
    return content_hash(
        canonical_messages(prompt), list(tools), canonical_messages(chosen), canonical_messages(rejected)
    )


def write_pairs(folder: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write `folder/pairs.parquet`, replacing the one that is there; returns the number of pairs.

    Memory is bounded by one row group. The file takes its name when it is complete and synced; if anything fails,
    the one before stays and nothing is left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{FILE_NAME}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        num_rows = _write(hidden, batches)
        with open(hidden, "rb") as file:
            os.fsync(file.fileno())
        hidden.rename(folder / FILE_NAME)
        sync_folder(folder)
    except OSError as error:
        raise TableError(f"{folder}: {error.strerror or error}; no pairs were written") from error
    finally:
        hidden.unlink(missing_ok=True)
    return num_rows


def pair_batches(folder: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a pairs table, a row group at a time; only `columns` are read where they are named."""
    with _opened(folder) as file:
        for number in range(file.num_row_groups):
            yield from file.read_row_group(number, columns=columns, use_threads=False).to_batches()


def count_pairs(folder: Path) -> int:
    with _opened(folder) as file:
        return int(file.metadata.num_rows)


def read_pairs(folder: Path) -> Iterator[Pair]:
    """The pairs of a table, streamed."""
    for batch in pair_batches(folder):
        yield from pairs_of_batch(batch)


def pairs_to_batch(pairs: Sequence[Pair]) -> pa.RecordBatch:
    """Pairs as rows. `across_groups` is what the pair's info says under that name."""
    return pa.RecordBatch.from_pylist([_row(pair) for pair in pairs], schema=PAIR_SCHEMA)


def pairs_of_batch(batch: pa.RecordBatch) -> list[Pair]:
    """Invert `pairs_to_batch`."""
    return [_pair(row) for row in batch.to_pylist()]


def num_characters(messages: Iterable[Message]) -> int:
    """The length of what was said: text, reasoning and the arguments of calls."""
    return sum(
        len(message.text) + len(message.reasoning or "") + sum(len(call.arguments) for call in message.tool_calls)
        for message in messages
    )


def _row(pair: Pair) -> dict[str, Any]:
    return {
        "id": pair.id,
        "tid": pair.chosen_eid.tid,
        "task": str(pair.chosen_eid.task),
        "step": pair.chosen_eid.step,
        "prompt_hash": prompt_hash(pair.prompt, pair.tools),
        "strategy": pair.strategy,
        "gap": pair.gap,
        "weight": pair.weight,
        "split": pair.split,
        "chosen_reward": pair.chosen_reward,
        "rejected_reward": pair.rejected_reward,
        "chosen_uid": pair.chosen_eid.uid,
        "rejected_uid": pair.rejected_eid.uid,
        "across_groups": pair.info.get("across_groups") is True,
        "num_chosen_characters": num_characters(pair.chosen),
        "num_rejected_characters": num_characters(pair.rejected),
        **{name: _json_or_null(getattr(pair, name)) for name in PAIR_CONTENT},
    }


def _pair(row: dict[str, Any]) -> Pair:
    try:
        info = from_json(row["info"]) if row["info"] else {}
        return Pair(
            id=row["id"],
            prompt=_messages_of(row["prompt"] or "[]"),
            tools=_tools_of(row["tools"] or "[]"),
            chosen=_messages_of(row["chosen"] or "[]"),
            rejected=_messages_of(row["rejected"] or "[]"),
            chosen_reward=row["chosen_reward"],
            rejected_reward=row["rejected_reward"],
            chosen_eid=EID.parse(row["chosen_uid"]),
            rejected_eid=EID.parse(row["rejected_uid"]),
            gap=row["gap"],
            strategy=row["strategy"],
            weight=row["weight"],
            split=row["split"],
            info={**info, "across_groups": True} if row["across_groups"] else info,
        )
    except (msgspec.MsgspecError, RecordError, TypeError) as error:
        raise TableError(f"pair {row.get('id')!r}: a row that is no valid pair: {error}") from error


def _json_or_null(value: Any) -> str | None:
    return encode(value).decode() if value else None


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[pq.ParquetFile]:
    """The Parquet file of a pairs table, given as its folder or as the file itself."""
    path = folder / FILE_NAME if folder.is_dir() else folder
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise TableError(
            f"{path}: no such file; make one with: pairwright pairs build EXPERIENCE -o {folder}"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"{path}: not a pairs table: {error}") from error
    with file:
        missing = [name for name in PAIR_SCHEMA.names if name not in file.schema_arrow.names]
        if missing:
            raise TableError(f"{path}: not a pairs table: it has no column {missing[0]!r}")
        yield file


def _write(hidden: Path, batches: Iterable[pa.RecordBatch]) -> int:
    num_rows = 0
    with pq.ParquetWriter(
        hidden, PAIR_SCHEMA, compression="zstd", compression_level=1, use_dictionary=_DICTIONARY,
        write_statistics=list(NARROW_PAIR_TYPES),
    ) as writer:  # fmt: skip
        for group in _grouped(batches):
            writer.write_table(group, row_group_size=group.num_rows)
            num_rows += group.num_rows
    return num_rows


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows put together, or cut, into groups of at most 4,096 rows and about 32 MB."""
    pending: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for piece in (piece for batch in batches for piece in _cut(batch)):
        if pending and (num_rows + piece.num_rows > ROWS_PER_GROUP or num_bytes + piece.nbytes > BYTES_PER_GROUP):
            yield pa.Table.from_batches(pending, schema=PAIR_SCHEMA)
            pending, num_rows, num_bytes = [], 0, 0
        pending.append(piece)
        num_rows += piece.num_rows
        num_bytes += piece.nbytes
    if pending:
        yield pa.Table.from_batches(pending, schema=PAIR_SCHEMA)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    batch = batch.select(PAIR_SCHEMA.names).cast(PAIR_SCHEMA)
    if not batch.num_rows:
        return
    rows = max(1, min(ROWS_PER_GROUP, BYTES_PER_GROUP * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
