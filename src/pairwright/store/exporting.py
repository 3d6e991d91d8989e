"""Export of experiences (JSON Lines, Parquet, HF dataset, pairwright bytes), filtering, and statistics of a table."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError
from pairwright.paths import Place, claim_folder, is_address, write_atomic
from pairwright.records.json_text import encode
from pairwright.sources.datasets.pairwright_rows import experience_to_json
from pairwright.store.arrow import from_batch
from pairwright.store.codec import dumps_many
from pairwright.store.columns import SCHEMA
from pairwright.store.segments import MARKER, copy_labels
from pairwright.store.table import Table


def export_jsonl(table: Table, output: Place, where: pl.Expr | None) -> int:
    """Write a JSON Lines file; returns the number of rows."""
    num_rows = 0
    # Written under a temporary name that `write_atomic` renames at the end: a failed export leaves no file behind.
    with write_atomic(output, error=PairwrightError) as temporary, open(temporary, "wb") as file:
        for exp in table.records(where):
            file.write(encode(experience_to_json(exp)) + b"\n")
            num_rows += 1
    return num_rows


def export_parquet(table: Table, output: Place, where: pl.Expr | None) -> int:
    """Write one Parquet file with the columns of the table; returns the number of rows."""
    num_rows = 0
    with (
        write_atomic(output, error=PairwrightError) as temporary,
        pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer,
    ):
        for batch in table.scan(where):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def export_bytes(table: Table, output: Place, where: pl.Expr | None) -> int:
    """Write concatenated payloads (store/codec.py) of a few thousand experiences each; returns the number of rows."""
    num_rows = 0
    with write_atomic(output, error=PairwrightError) as temporary, open(temporary, "wb") as file:
        for batch in table.scan(where):
            file.write(dumps_many(from_batch(batch)))
            num_rows += batch.num_rows
    return num_rows


def export_hf(table: Table, output: Place, where: pl.Expr | None) -> int:
    """Write a folder for `datasets.load_from_disk`; returns the number of rows."""
    from pairwright.store.arrow import import_datasets

    if is_address(output):
        raise ConfigError(f"{output}: a dataset is a folder, which no address takes whole: export it here, and copy it")
    datasets = import_datasets()
    with write_atomic(output, error=PairwrightError) as temporary:
        rows = pa.Table.from_batches(table.scan(where), schema=SCHEMA)
        dataset = datasets.Dataset(rows)
        dataset.save_to_disk(str(temporary))
    return int(rows.num_rows)


EXPORTERS: dict[str, Callable[[Table, Place, pl.Expr | None], int]] = {
    "jsonl": export_jsonl,
    "parquet": export_parquet,
    "hf": export_hf,
    "bytes": export_bytes,
}


def filter_table(table: Table, output: Place, where: pl.Expr) -> tuple[int, int]:
    """Write the rows for which `where` holds to a new table; returns the number of rows before and after.

    The labels of imported files (store/segments.py) are copied, so that importing a file again adds no duplicates.
    """
    num_rows, num_kept = table.count(), table.count(where)
    if not num_kept:
        raise PairwrightError(f"{table.path}: the condition holds for none of {num_rows:,} rows; nothing was written")
    with claim_folder(output, "table.json", work="filtered table"):
        # An empty table is taken: it may be left from a run that failed before it wrote anything.
        if (output / MARKER).exists() and Table(output, create=False).count():
            raise PairwrightError(f"{output} is a table already: choose another folder")
        target = Table(output)
        num_written = target.write_part(table.scan(where))
        copy_labels(table.path, target.path)
    return num_rows, num_written


# Statistics of a table


def table_statistics(table: Table, where: pl.Expr | None = None) -> dict[str, Any]:
    """Return counts of experiences, tasks, runs, rewards, lengths and sources; reads only narrow columns."""
    # Only narrow columns are named below, so Polars does not read the content columns from the files.
    frame = table.lazy() if where is None else table.lazy().filter(where)
    scored = pl.col("reward").is_not_null()
    numbers = frame.select(
        experiences=pl.len(),
        tasks=pl.col("tid").n_unique(),
        runs=pl.struct("tid", "run").n_unique(),
        prompts=pl.col("prompt_hash").n_unique(),
        scored=scored.sum(),
        unscored=scored.not_().sum(),
        reward_min=pl.col("reward").min(),
        reward_mean=pl.col("reward").mean(),
        reward_median=pl.col("reward").median(),
        reward_max=pl.col("reward").max(),
        messages=(pl.col("num_prompt_messages") + pl.col("num_completion_messages")).sum(),
        tool_calls=pl.col("num_tool_calls").sum(),
        completion_characters=pl.col("num_completion_characters").sum(),
        error_sites=pl.col("num_errors").sum(),
        with_tokens=pl.col("num_tokens").is_not_null().sum(),
        tokens=pl.col("num_tokens").cast(pl.Int64).sum(),
        truncated=pl.col("truncate_status").is_not_null().sum(),
    )
    statistics: dict[str, Any] = numbers.collect().row(0, named=True)
    statistics["comparable_groups"] = _num_comparable_groups(frame.filter(scored))
    # The 20 most frequent values, in descending order of count; ties by name, so that the order is stable.
    for name in ("kind", "model_version", "source_format"):
        counts = frame.group_by(name).len().sort("len", name, descending=[True, False]).head(20).collect()
        statistics[name] = {str(key): count for key, count in counts.iter_rows()}
    return statistics


def _num_comparable_groups(scored: pl.LazyFrame) -> int:
    """Count groups (same task, step and prompt) with at least two different rewards, which can give pairs."""
    groups = scored.group_by("tid", "step", "prompt_hash").agg(pl.col("reward").n_unique().alias("rewards"))
    return int(groups.filter(pl.col("rewards") > 1).select(pl.len()).collect().item())
