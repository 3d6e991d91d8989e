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
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import RecordError, TableError
from pairwright.pairs.candidates.pair_ids import pair_key
from pairwright.pairs.funnel import FILE_NAME as FUNNEL_NAME
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.row_groups import BYTES_PER_GROUP, row_groups, with_dictionaries
from pairwright.paths import Place, write_atomic
from pairwright.paths.parquet_files import parquet_file
from pairwright.records.experience import EID, Pair
from pairwright.records.json_text import encode, from_json
from pairwright.records.messages import Json, Message, canonical_messages, content_hash, decode_messages, prompt_hash
from pairwright.store.columns import num_characters
from pairwright.store.table_marker import MARKER as TABLE_MARKER

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
    "label_noise": pa.float64(),
}
# Read as null from files that lack them.
_ADDED_LATER = ("chosen_recorded", "rejected_recorded", "chosen_cut", "rejected_cut", "label_noise")
PAIR_CONTENT = ("prompt", "tools", "chosen", "rejected", "info")
PAIR_SCHEMA = pa.schema(
    [*NARROW_PAIR_TYPES.items(), *((name, _LONG) for name in PAIR_CONTENT)],
    metadata={"pairwright.pairs": "1"},
)
# Columns whose values repeat: dictionary-encoded in the Parquet file.
_DICTIONARY = ["tid", "task", "prompt_hash", "strategy", "split", "chosen_uid", "rejected_uid", *PAIR_CONTENT]

_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


def pair_id(
    prompt: Iterable[Message], tools: Iterable[Json], chosen: Iterable[Message], rejected: Iterable[Message]
) -> str:
    """Return the id of a pair (32 hex digits), equal if prompt, tools and sides are equal in canonical form."""
    sides = (content_hash(canonical_messages(side)) for side in (chosen, rejected))
    return pair_key(prompt_hash(prompt, tools), *sides)


def write_pairs(folder: Place, batches: Iterable[pa.RecordBatch]) -> int:
    """Write or replace `folder/pairs.parquet` atomically; returns the number of pairs."""
    with write_atomic(folder / FILE_NAME, error=TableError) as temporary:
        return write_pair_file(temporary, batches)


def pair_batches(
    folder: Place, columns: Sequence[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a pairs table (its folder or Parquet file), one row group at a time; reads only `columns`.

    With `dictionaries`, content columns are dictionary arrays, which have each text of a row group once.
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


def read_curriculum(pairs: Path) -> str | None:
    """Return the curriculum that orders the pairs of a table, from its funnel.json; None if there is none.

    Raises TableError for pairs that an earlier version divided into stages.
    """
    folder = pairs if pairs.is_dir() else pairs.parent
    if any(batch.column(0).null_count < batch.num_rows for batch in pair_batches(pairs, ["curriculum_stage"])):
        raise TableError(
            f"{folder}: the pairs have the stages of a curriculum, which only earlier versions train: build them again "
            f"with: pairwright pairs EXPERIENCE -o {folder} --curriculum easy-first"
        )
    funnel = read_funnel(folder) if (folder / FUNNEL_NAME).is_file() else {}
    name = (funnel.get("options") or {}).get("curriculum", "none")
    return None if name == "none" else str(name)


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
        "label_noise": noise if type(noise := pair.info.get("label_noise")) is float else None,
        **{name: encode(value).decode() if (value := getattr(pair, name)) else None for name in PAIR_CONTENT},
    }


def _pair(row: dict[str, Any]) -> Pair:
    """Convert a row of the table to a pair; raises TableError if it is invalid."""
    try:
        info = from_json(row["info"]) if row["info"] else {}
        info |= {"across_groups": True} if row["across_groups"] else {}
        info |= {name: row[name] for name in ("curriculum_stage", "label_noise") if row.get(name) is not None}
        return Pair(
            id=row["id"],
            prompt=decode_messages(row["prompt"] or "[]"),
            tools=_tools_of(row["tools"] or "[]"),
            chosen=decode_messages(row["chosen"] or "[]"),
            rejected=decode_messages(row["rejected"] or "[]"),
            chosen_reward=row["chosen_reward"],
            rejected_reward=row["rejected_reward"],
            chosen_eid=EID.parse(row["chosen_uid"]),
            rejected_eid=EID.parse(row["rejected_uid"]),
            gap=row["gap"],
            strategy=row["strategy"],
            weight=row["weight"],
            split=row["split"],
            info=info,
        )
    except (msgspec.MsgspecError, RecordError, TypeError) as error:
        raise TableError(f"pair {row.get('id')!r}: a row that is not a valid pair: {error}") from error


@contextlib.contextmanager
def _open_file(folder: Place, read_dictionary: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open the Parquet file of a pairs table, given its folder or the file; raises TableError for any other file."""
    path = folder / FILE_NAME if folder.is_dir() else folder
    if not path.exists():
        if (folder / TABLE_MARKER).exists():
            raise TableError(
                f"{folder}: an experience table; build pairs from it first: pairwright pairs {folder} -o DIR"
            )
        raise TableError(f"{path}: no such file; make one with: pairwright pairs EXPERIENCE -o {folder}")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(parquet_file(path, read_dictionary))
        except (OSError, pa.ArrowException) as error:
            raise TableError(
                f"{path}: not a pairs table; to make one of a file with pairs: pairwright import {path} -o DIR, then "
                f"pairwright pairs DIR -o PAIRS ({str(error).partition('.')[0]})"
            ) from error
        missing = [name for name in PAIR_SCHEMA.names if name not in (*file.schema_arrow.names, *_ADDED_LATER)]
        if missing:
            raise TableError(f"{path}: not a pairs table: it has no column {missing[0]!r}")
        yield file


def write_pair_file(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write pairs to a Parquet file in row groups; returns their number. Memory is bounded by one row group."""
    num_rows = 0
    # large_string for string: Polars uses it, so no copy is needed. In Parquet both are the same type.
    wide = [(field.name, _LONG if field.type == _TEXT else field.type) for field in PAIR_SCHEMA]
    schema = with_dictionaries(pa.schema(wide), PAIR_CONTENT)
    schema = schema.with_metadata(PAIR_SCHEMA.metadata)
    # Without the stored Arrow schema readers get plain strings, not dictionary arrays. Ids are hashes, which do not
    # compress. A dictionary page above its limit would make the writer fall back to plain pages, and repeat texts.
    with pq.ParquetWriter(
        path,
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
