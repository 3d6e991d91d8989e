"""The pairs table: reading and atomically writing `pairs.parquet`, a Parquet file with one row per pair.

Narrow columns describe a pair and its sources. Content columns are JSON text, as in the experience table, so that texts
are copied from there without decoding. `id` is a hash of prompt and sides: equal pairs have equal ids. Row groups
depend only on the rows, not on how they were batched, so the same rows in the same order give the same bytes; a text
that occurs several times in a row group is stored once (dictionary encoding).
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
from pairwright.paths.paths import parquet_file
from pairwright.records.experience import EID, Pair
from pairwright.records.json_text import encode, from_json
from pairwright.records.messages import Json, Message, canonical_messages, content_hash, prompt_hash
from pairwright.store.segments import MARKER as TABLE_MARKER

# Row groups: bounds that depend only on the rows, and dictionary-encoded texts

ROWS_PER_GROUP = 16_384
# Of text, before compression. Whichever bound is met first ends a group.
BYTES_PER_GROUP = 8 * 2**20
_INDEX = pa.int32()


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema with the named columns as dictionary types; names that it does not have are ignored."""
    fields = [
        pa.field(field.name, pa.dictionary(_INDEX, field.type)) if field.name in names else field for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


class Filling:
    """Number of rows and bytes in the current row group."""

    def __init__(self) -> None:
        self._num_rows = self._num_bytes = 0

    def cut(self, sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Add rows, given their bytes of text; yields (start, stop, whether the row group ends at stop).

        A group that is full by bytes, not by rows, ends only when the next row arrives.
        """
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
    """Regroup batches into row groups with the columns of `schema`."""
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
    """Cast a batch to the types of the schema; text is dictionary-encoded if the schema says so."""
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.cast(field.type.value_type).dictionary_encode()
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of text in each row, over all dictionary columns."""
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
    """Return a dictionary array without unused texts, with the dictionary in order of first use."""
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
    """Return whether all codes are used and first occur in ascending order."""
    # highest[k] is the largest code among rows 0 to k - 1, and -1 before the first row.
    highest = np.maximum.accumulate(np.append(-1, codes))
    return int(highest[-1]) == num_codes - 1 and bool((codes <= highest[:-1] + 1).all())


def first_uses(codes: npt.NDArray[np.int64], num_codes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the used codes in order of first use, and for each row the index of its code among them.

    Code -1 stands for null, and its index is -1.

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
    """Convert integers to the indices of a dictionary array; -1 is null."""
    # Wraps the NumPy buffer without a copy; [None, data] is validity bitmap and values.
    indices = pa.Array.from_buffers(_INDEX, len(places), [None, pa.py_buffer(np.ascontiguousarray(places))])
    if len(places) and places.min() < 0:
        indices = pc.if_else(pc.less(indices, 0), pa.scalar(None, _INDEX), indices)
    return indices


def int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Return the dictionary code of each row; -1 is null."""
    return np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


# The pairs table: schema, reading and writing

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
    """Return the id of a pair (32 hex digits), equal if prompt, tools and sides are equal in canonical form."""
    sides = (content_hash(canonical_messages(side)) for side in (chosen, rejected))
    return pair_key(prompt_hash(prompt, tools), *sides)


def write_pairs(folder: Place, batches: Iterable[pa.RecordBatch]) -> int:
    """Write or replace `folder/pairs.parquet` atomically; returns the number of pairs.

    Memory is bounded by one row group. The file is renamed into place when it is complete and synced; on failure an
    existing file is unchanged and the temporary file is removed.
    """
    with write_atomic(folder / FILE_NAME, error=TableError) as temporary:
        return _write(temporary, batches)


def pair_batches(
    folder: Place, columns: Sequence[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a pairs table, one row group at a time.

    Args:
        folder: Folder of the pairs table, or the Parquet file.
        columns: Columns to read; None reads all.
        dictionaries: Return content columns as dictionary arrays, which have each text of a row group once.
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
    """Return whether any pair may have tools (False is certain); reads only the Parquet footer."""
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
    """Yield the pairs of a table, one row group in memory at a time."""
    for batch in pair_batches(folder):
        yield from pairs_of_batch(batch)


def pairs_to_batch(pairs: Sequence[Pair]) -> pa.RecordBatch:
    """Convert pairs to a record batch; the columns `across_groups` and `curriculum_stage` are taken from `info`."""
    return pa.RecordBatch.from_pylist([_row(pair) for pair in pairs], schema=PAIR_SCHEMA)


def pairs_of_batch(batch: pa.RecordBatch) -> list[Pair]:
    """Invert `pairs_to_batch`."""
    return [_pair(row) for row in batch.to_pylist()]


def num_characters(messages: Iterable[Message]) -> int:
    """Count the characters of messages: text, reasoning and tool call arguments."""
    return sum(
        len(message.text) + len(message.reasoning or "") + sum(len(call.arguments) for call in message.tool_calls)
        for message in messages
    )


def _row(pair: Pair) -> dict[str, Any]:
    """Convert a pair to a row of the table."""
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
    """Convert a row of the table to a pair; raises TableError if it is invalid."""
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
    """Return the entries of `info` that are stored in columns of their own."""
    marks: dict[str, Any] = {"across_groups": True} if row["across_groups"] else {}
    return marks if row["curriculum_stage"] is None else {**marks, "curriculum_stage": row["curriculum_stage"]}


def _json_or_null(value: Any) -> str | None:
    return encode(value).decode() if value else None


@contextlib.contextmanager
def _open_file(folder: Place, read_dictionary: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open the Parquet file of a pairs table, given its folder or the file; raises TableError if it is none."""
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
    """Write batches to a Parquet file in row groups; returns the number of rows."""
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
    """Return large_string for string: Polars uses it, so no copy is needed. In Parquet both are the same type."""
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
