"""Experiences as narrow rows: what planning needs of them, and where their text is.

`row` says where a row came from: the number of its table and its place there. Plain-text prompts get hashes of their
text; everything else is a column of the table already. What eligibility needs of the content is read here as well.
"""

from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa

from pairwright.canonical import content_hash
from pairwright.errors import PairwrightError
from pairwright.jsontext import from_json
from pairwright.store.columns import SCHEMA
from pairwright.store.table import Table
from pairwright.store.where import parse_where

PLACE_BITS = 40
_NARROW = ("uid", "tid", "task", "step", "kind", "reward", "prompt_hash", "completion_hash", "source_format")
_OF_RUN = ("run", "source")  # read only where the candidates of a run are a group
_MASKED, _FAILED = "mask_sample", "_ng_failure_class"
_READ = (
    *_NARROW, "num_prompt_messages", "num_completion_messages", "num_completion_characters", "num_tool_calls",
    "truncate_status", "model_version", "prompt_text", "response_text", "info",
)  # fmt: skip
_BATCH_BYTES = 32 * 2**20


def read_rows(
    tables: Sequence[Table], *, first: int = 0, where: str | None = None, with_runs: bool = False
) -> pl.DataFrame:
    """The narrow rows of all experiences; the first table has the number `first`. `with_runs`: which run each is of.

    With `where`, a column `is_filtered` says for which of them the condition does not hold.
    """
    if not tables:
        raise PairwrightError("no experience table was named")
    return pl.concat(
        [
            _finished(_of_columns(table.lazy(), number << PLACE_BITS, where, with_runs).collect())
            for number, table in enumerate(tables, first)
        ]
    )


def row_batches(
    tables: Sequence[Table], *, where: str | None = None, with_runs: bool = False
) -> Iterator[pl.DataFrame]:
    """The same, about so many at a time as are read with 32 MB."""
    conditions = () if where is None else parse_where(where).meta.root_names()
    columns = tuple(dict.fromkeys((*_READ, *conditions, *(_OF_RUN if with_runs else ()))))
    for number, table in enumerate(tables):
        first = number << PLACE_BITS
        for rows in _read_together(table.scan(columns=columns)):
            yield _finished(_of_columns(rows.lazy(), first, where, with_runs).collect())
            first += rows.height


def _read_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """Batches put together until they have 32 MB."""
    pending: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        pending.append(batch)
        num_bytes += batch.nbytes
        if num_bytes >= _BATCH_BYTES:
            yield pl.DataFrame(pa.Table.from_batches(pending))
            pending, num_bytes = [], 0
    if pending:
        yield pl.DataFrame(pa.Table.from_batches(pending))


def no_rows(*, where: str | None = None, with_runs: bool = False) -> pl.DataFrame:
    """The columns of narrow rows, and none of them."""
    empty = pl.DataFrame(pa.Table.from_batches([], schema=SCHEMA)).lazy()
    return _finished(_of_columns(empty, 0, where, with_runs).collect())


def _of_columns(experiences: pl.LazyFrame, first: int, where: str | None, with_runs: bool) -> pl.LazyFrame:
    """The narrow rows of a table; `first` is the number of its first row."""
    no_prompt, no_completion = pl.col("num_prompt_messages") == 0, pl.col("num_completion_messages") == 0
    mentions = pl.any_horizontal([pl.col("info").str.contains(key, literal=True) for key in (_MASKED, _FAILED)])
    return experiences.with_row_index("row").select(
        *_NARROW,
        *(_OF_RUN if with_runs else ()),
        pl.col("row").cast(pl.Int64) + first,
        pl.when(no_completion)
        .then(pl.col("response_text").str.len_chars().cast(pl.Int64))
        .otherwise("num_completion_characters")
        .fill_null(0)
        .alias("num_characters"),
        (pl.col("num_tool_calls") > 0).alias("has_calls"),
        pl.col("truncate_status").is_not_null().alias("truncated"),
        pl.col("model_version"),
        (no_prompt & (pl.col("prompt_text").fill_null("") == "")).alias("no_prompt"),
        pl.when(no_prompt).then("prompt_text").alias("prompt_text"),
        pl.when(mentions & ~_is_fine()).then("info").alias("failure"),
        *([] if where is None else [parse_where(where).not_().alias("is_filtered")]),
    )


def _is_fine() -> pl.Expr:
    """Says without decoding that a rollout is neither masked nor failed: one key, and its value is false."""
    info = pl.col("info")
    once = info.str.count_matches(f'"{_MASKED}"', literal=True) == 1
    return once & info.str.contains(f'"{_MASKED}":false', literal=True) & ~info.str.contains(_FAILED, literal=True)


def _finished(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose prompt is plain text, and those that may have failed, seen to one by one: few are."""
    odd = rows["failure"].drop_nulls()
    failed = pl.Series([_is_failed(text) for text in odd], dtype=pl.Boolean)
    places = rows["failure"].is_not_null().arg_true()
    rows = rows.with_columns(failed=pl.repeat(False, rows.height, eager=True).scatter(places, failed))
    if rows["prompt_text"].null_count() < rows.height:
        hashes = [
            content_hash(digest, text) if text else digest
            for digest, text in rows.select("prompt_hash", "prompt_text").iter_rows()
        ]
        rows = rows.with_columns(pl.Series("prompt_hash", hashes))
    return rows.drop("failure", "prompt_text")


def _is_failed(text: str) -> bool:
    info = from_json(text)
    return isinstance(info, dict) and (info.get(_MASKED) not in (None, False, 0) or bool(info.get(_FAILED)))
