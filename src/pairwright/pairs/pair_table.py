"""The pairs table: one Parquet file of preferences, `pairs.parquet`, that appears whole or not at all.

Narrow columns say what a pair is and where it came from; content is JSON text, as in the experience table, so that it
can be copied from there without being decoded. `id` is a hash of what is compared: equal pairs have equal ids.
A text that several pairs of a row group share is in the file once. Same rows in the same order give the same bytes,
however they were cut into batches.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairwright.errors import RecordError, TableError
from pairwright.pairs.candidates.pair_ids import pair_key
from pairwright.paths import Place, write_atomic
from pairwright.paths.parquet import parquet_file
from pairwright.records.canonical import canonical_messages, content_hash, prompt_hash
from pairwright.records.experience import EID, Pair
from pairwright.records.json_text import encode, from_json
from pairwright.records.messages import Json, Message
from pairwright.store.segments import MARKER as TABLE_MARKER

# Row groups of the pairs table: where they begin depends on the rows alone, and each holds a text once.

ROWS_PER_GROUP = 16_384
# Of text, before compression. Whichever bound is met first ends a group.
BYTES_PER_GROUP = 8 * 2**20
_INDEX = pa.int32()


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The schema with dictionary arrays for these columns, where it has them."""
    fields = [
        pa.field(field.name, pa.dictionary(_INDEX, field.type)) if field.name in names else field for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


class Filling:
    """How full the group is that rows are being added to."""

    def __init__(self) -> None:
        self._num_rows = self._num_bytes = 0

    def cut(self, sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Add rows with so many bytes of text each: from where to where they go into one group, and whether it ends
        there. A group that only bytes have filled ends when the next row comes."""
        # totals[k] is the number of bytes in rows 0 to k of this batch.
        totals, start = np.cumsum(sizes), 0
        while start < len(sizes):
            before = int(totals[start - 1]) if start else 0
            # The first row that would take the group above its bytes.
            stop = int(np.searchsorted(totals, before + BYTES_PER_GROUP - self._num_bytes, side="right"))
            stop = max(start, min(stop, start + ROWS_PER_GROUP - self._num_rows))
            if stop == start and not self._num_rows:
                stop = start + 1  # a row that is larger than a group is a group of its own
            self._num_rows += stop - start
            self._num_bytes += int(totals[stop - 1]) - before if stop > start else 0
            ends = stop < len(sizes) or self._num_rows == ROWS_PER_GROUP
            if ends:
                self._num_rows = self._num_bytes = 0
            yield start, stop, ends
            start = stop


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows put together and cut into groups, with the columns of `schema`."""
    pending: list[pa.RecordBatch] = []
    filling = Filling()
    for batch in batches:
        rows = _cast_batch(batch, schema)
        for start, stop, ends in filling.cut(_sizes(rows)):
            pending += [rows.slice(start, stop - start)] if stop > start else []
            if ends:
                yield _group(pending, schema)
                pending = []
    if pending:
        yield _group(pending, schema)


def _cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of the schema: text becomes dictionary arrays where the schema has them."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.cast(field.type.value_type).dictionary_encode()
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The bytes of text in each row."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_dictionary(column.type) and len(column.dictionary):
            # The 0 at the end is for null: its code, -1, indexes the last entry.
            lengths = np.append(pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False), 0)
            total += lengths[_codes(column)]
    return total


def _group(pieces: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(pieces, schema=schema)
    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field, _compact(table.column(number)))
    return table.combine_chunks()


def _compact(column: pa.ChunkedArray) -> pa.Array:
    """A dictionary array with only the texts that it uses, in the order of their first use."""
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    # After unification all chunks share one dictionary.
    chunks = column.chunks
    codes = np.concatenate([_codes(chunk) for chunk in chunks])
    if len(chunks) == 1 and _is_compact(codes, len(chunks[0].dictionary)):
        return chunks[0]
    used, ranks = first_uses(codes, len(chunks[0].dictionary))
    return pa.DictionaryArray.from_arrays(index_array(ranks), chunks[0].dictionary.take(int64_array(used)))


def _is_compact(codes: npt.NDArray[np.int64], num_codes: int) -> bool:
    """Whether all codes are used, and for the first time in their order: none is more than one above all before it."""
    # highest[k] is the largest code among rows 0 to k - 1, and -1 before the first row.
    highest = np.maximum.accumulate(np.append(-1, codes))
    return int(highest[-1]) == num_codes - 1 and bool((codes <= highest[:-1] + 1).all())


def first_uses(codes: npt.NDArray[np.int64], num_codes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The codes that are used, in the order of their first use, and for each row the place of its code among them.

    -1 is no code, and has no place.

    >>> first_uses(np.array([7, 2, -1, 7]), 9)
    (array([7, 2]), array([ 0,  1, -1,  0], dtype=int32))
    """
    numbers = np.arange(len(codes))
    first, ranks = np.empty(num_codes + 1, np.int64), np.empty(num_codes + 1, np.int32)  # read only where written
    first[codes[::-1]] = numbers[::-1]  # what is written last stays: the first use
    used = codes[(first[codes] == numbers) & (codes >= 0)]
    # Code -1 (null) indexes the last entry, whose rank is -1 as well.
    ranks[used], ranks[-1] = np.arange(len(used), dtype=np.int32), -1
    return used, ranks[codes]


def index_array(places: npt.NDArray[np.int32]) -> pa.Array:
    """Places as indices of a dictionary array; -1 is null."""
    # Wraps the NumPy buffer without a copy; [None, data] is validity bitmap and values.
    indices = pa.Array.from_buffers(_INDEX, len(places), [None, pa.py_buffer(np.ascontiguousarray(places))])
    if len(places) and places.min() < 0:
        indices = pc.if_else(pc.less(indices, 0), pa.scalar(None, _INDEX), indices)
    return indices


def int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Which text each row has; -1 for none."""
    return np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


# The pairs table: one Parquet file of preferences, `pairs.parquet`, that appears whole or not at all.

FILE_NAME = "pairs.parquet"

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
    "curriculum_stage": pa.int64(),
    "num_chosen_characters": pa.int64(),
    "num_rejected_characters": pa.int64(),
    "chosen_recorded": pa.bool_(),
    "rejected_recorded": pa.bool_(),
    "chosen_cut": pa.bool_(),
    "rejected_cut": pa.bool_(),
}
_ADDED_LATER = ("chosen_recorded", "rejected_recorded", "chosen_cut", "rejected_cut")  # null in files without them
PAIR_CONTENT = ("prompt", "tools", "chosen", "rejected", "info")
PAIR_SCHEMA = pa.schema(
    # The metadata is the version of the format.
    [*NARROW_PAIR_TYPES.items(), *((name, _LONG) for name in PAIR_CONTENT)],
    metadata={"pairwright.pairs": "1"},
)
# Columns whose values repeat: dictionary-encoded in the Parquet file.
_DICTIONARY = ["tid", "task", "prompt_hash", "strategy", "split", "chosen_uid", "rejected_uid", *PAIR_CONTENT]

_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


def pair_id(
    prompt: Iterable[Message], tools: Iterable[Json], chosen: Iterable[Message], rejected: Iterable[Message]
) -> str:
    """32 hex digits, equal exactly for pairs that compare the same two completions at the same prompt."""
    sides = (content_hash(canonical_messages(side)) for side in (chosen, rejected))
    return pair_key(prompt_hash(prompt, tools), *sides)


def write_pairs(folder: Place, batches: Iterable[pa.RecordBatch]) -> int:
    """Write `folder/pairs.parquet`, replacing the one that is there; returns the number of pairs.

    Memory is bounded by one row group. The file takes its name when it is complete and synced; if anything fails,
    the one before stays and nothing is left behind.
    """
    with write_atomic(folder / FILE_NAME, error=TableError) as temporary:
        return _write(temporary, batches)


def pair_batches(
    folder: Place, columns: Sequence[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a pairs table, a row group at a time; only `columns` are read where they are named.

    With `dictionaries`, content comes as dictionary arrays: each text of a row group once, and which row has which.
    """
    with _open_file(folder, read_dictionary=PAIR_CONTENT if dictionaries else ()) as file:
        names = PAIR_SCHEMA.names if columns is None else list(columns)
        schema = pa.schema([PAIR_SCHEMA.field(name) for name in names], metadata=PAIR_SCHEMA.metadata)
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=names, use_threads=False)
            # Columns that files of older releases lack.
            for name in set(names).difference(rows.column_names):
                rows = rows.append_column(name, pa.nulls(rows.num_rows, PAIR_SCHEMA.field(name).type))
            rows = rows.select(names)
            yield from (rows if dictionaries else rows.cast(schema)).combine_chunks().to_batches()


def has_tools(folder: Place) -> bool:
    """Whether any pair may have tools; certainly where one does. Nothing but the foot of the file is read."""
    with _open_file(folder) as file:
        column = file.schema_arrow.names.index("tools")
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        # Without statistics, nothing rules tools out.
        statistics = ((group.num_rows, group.column(column).statistics) for group in groups)
        return any(known is None or not known.has_null_count or known.null_count < rows for rows, known in statistics)


def count_pairs(folder: Place) -> int:
    with _open_file(folder) as file:
        return int(file.metadata.num_rows)


def read_pairs(folder: Place) -> Iterator[Pair]:
    """The pairs of a table, streamed."""
    for batch in pair_batches(folder):
        yield from pairs_of_batch(batch)


def pairs_to_batch(pairs: Sequence[Pair]) -> pa.RecordBatch:
    """Pairs as rows. `across_groups` and `curriculum_stage` are what the pair's info says under these names."""
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
        "curriculum_stage": stage if type(stage := pair.info.get("curriculum_stage")) is int else None,
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
            info={**info, **_marks(row)},
        )
    except (msgspec.MsgspecError, RecordError, TypeError) as error:
        raise TableError(f"pair {row.get('id')!r}: a row that is no valid pair: {error}") from error


def _marks(row: dict[str, Any]) -> dict[str, Any]:
    """What columns say that a pair has in its info."""
    marks: dict[str, Any] = {"across_groups": True} if row["across_groups"] else {}
    return marks if row["curriculum_stage"] is None else {**marks, "curriculum_stage": row["curriculum_stage"]}


def _json_or_null(value: Any) -> str | None:
    return encode(value).decode() if value else None


@contextlib.contextmanager
def _open_file(folder: Place, read_dictionary: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """The Parquet file of a pairs table, given as its folder or as the file itself."""
    path = folder / FILE_NAME if folder.is_dir() else folder
    if not path.exists():
        if (folder / TABLE_MARKER).exists():
            raise TableError(
                f"{folder}: an experience table; build pairs from it first: pairwright pairs {folder} -o DIR"
            )
        raise TableError(f"{path}: no such file; make one with: pairwright pairs build EXPERIENCE -o {folder}")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(parquet_file(path, read_dictionary))
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{path}: not a pairs table: {error}") from error
        _check(file, path)
        yield file


def _check(file: pq.ParquetFile, path: Place) -> None:
    missing = [name for name in PAIR_SCHEMA.names if name not in (*file.schema_arrow.names, *_ADDED_LATER)]
    if missing:
        raise TableError(f"{path}: not a pairs table: it has no column {missing[0]!r}")


def _write(hidden: Path, batches: Iterable[pa.RecordBatch]) -> int:
    num_rows = 0
    schema = with_dictionaries(pa.schema([(field.name, _wide(field.type)) for field in PAIR_SCHEMA]), PAIR_CONTENT)
    schema = schema.with_metadata(PAIR_SCHEMA.metadata)
    # Without the stored Arrow schema readers get plain strings, not dictionary arrays. Ids are hashes, which do not
    # compress. A dictionary page above its limit would make the writer fall back to plain pages, and repeat texts.
    with pq.ParquetWriter(
        hidden,
        schema,
        compression={name: "none" if name == "id" else "snappy" for name in schema.names},
        use_dictionary=_DICTIONARY,
        store_schema=False,
        write_statistics=["gap", "split", "task", "tools"],
        dictionary_pagesize_limit=2 * BYTES_PER_GROUP,
    ) as writer:
        for group in row_groups(batches, schema):
            writer.write_table(group, row_group_size=group.num_rows)
            num_rows += group.num_rows
    return num_rows


def _wide(kind: pa.DataType) -> pa.DataType:
    """Text as Polars has it, so that it need not be copied; in the file both are one type."""
    return _LONG if kind == _TEXT else kind


__all__ = [
    "BYTES_PER_GROUP",
    "FILE_NAME",
    "NARROW_PAIR_TYPES",
    "PAIR_CONTENT",
    "PAIR_SCHEMA",
    "ROWS_PER_GROUP",
    "count_pairs",
    "has_tools",
    "num_characters",
    "pair_batches",
    "pair_id",
    "pairs_of_batch",
    "pairs_to_batch",
    "read_pairs",
    "write_pairs",
]
