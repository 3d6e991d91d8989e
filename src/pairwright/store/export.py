"""Experiences written for other tools: JSON lines, one Parquet file, an HF dataset, pairwright bytes."""

from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError
from pairwright.jsontext import encode
from pairwright.places import Place, is_address, write_atomic
from pairwright.sources.pairwright_rows import experience_to_json
from pairwright.store.arrow import from_batch
from pairwright.store.codec import dumps_many
from pairwright.store.columns import SCHEMA
from pairwright.store.file_labels import copy_labels
from pairwright.store.marker import MARKER
from pairwright.store.table import Table


def export_jsonl(table: Table, output: Place, where: pl.Expr | None) -> int:
    """One JSON object a line."""
    num_rows = 0
    with write_atomic(output, error=PairwrightError) as temporary, open(temporary, "wb") as file:
        for exp in table.records(where):
            file.write(encode(experience_to_json(exp)) + b"\n")
            num_rows += 1
    return num_rows


def export_parquet(table: Table, output: Place, where: pl.Expr | None) -> int:
    """One Parquet file with the table's columns."""
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
    """One payload for each few thousand experiences, one after another."""
    num_rows = 0
    with write_atomic(output, error=PairwrightError) as temporary, open(temporary, "wb") as file:
        for batch in table.scan(where):
            file.write(dumps_many(from_batch(batch)))
            num_rows += batch.num_rows
    return num_rows


def export_hf(table: Table, output: Place, where: pl.Expr | None) -> int:
    """A folder that `datasets.load_from_disk` opens."""
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
    """Write the rows for which `where` holds into a new table; returns how many there were, and how many were written.

    The labels of imported files (file_labels.py) go with the rows, so that importing a file again finds them.
    """
    num_rows, num_kept = table.count(), table.count(where)
    if not num_kept:
        raise PairwrightError(f"{table.path}: the condition holds for none of {num_rows:,} rows; nothing was written")
    if (output / MARKER).exists() and Table(output, create=False).count():
        raise PairwrightError(f"{output} is a table already: choose another folder")
    target = Table(output)
    num_written = target.write_part(table.scan(where))
    copy_labels(table.path, target.path)
    return num_rows, num_written
