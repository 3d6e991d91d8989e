"""Experiences written for other tools: JSON lines, one Parquet file, an HF dataset, pairwright bytes."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError
from pairwright.jsontext import encode
from pairwright.places import Place, Remote, staged
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
    with _written(output) as hidden, open(hidden, "wb") as file:
        for exp in table.records(where):
            file.write(encode(experience_to_json(exp)) + b"\n")
            num_rows += 1
    return num_rows


def export_parquet(table: Table, output: Place, where: pl.Expr | None) -> int:
    """One Parquet file with the table's columns."""
    num_rows = 0
    with _written(output) as hidden, pq.ParquetWriter(hidden, SCHEMA, compression="zstd") as writer:
        for batch in table.scan(where):
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def export_bytes(table: Table, output: Place, where: pl.Expr | None) -> int:
    """One payload for each few thousand experiences, one after another."""
    num_rows = 0
    with _written(output) as hidden, open(hidden, "wb") as file:
        for batch in table.scan(where):
            file.write(dumps_many(from_batch(batch)))
            num_rows += batch.num_rows
    return num_rows


def export_hf(table: Table, output: Place, where: pl.Expr | None) -> int:
    """A folder that `datasets.load_from_disk` opens."""
    from pairwright.store.arrow import import_datasets

    if isinstance(output, Remote):
        raise ConfigError(f"{output}: a dataset is a folder, which no address takes whole: export it here, and copy it")
    datasets = import_datasets()
    with _written(output) as hidden:
        rows = pa.Table.from_batches(table.scan(where), schema=SCHEMA)
        dataset = datasets.Dataset(rows)
        dataset.save_to_disk(str(hidden))
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


@contextmanager
def _written(output: Place) -> Iterator[Path]:
    """A hidden path beside the output that takes its place only when everything was written; for an address one on this
    machine, which is put there then."""
    if isinstance(output, Remote):
        with staged(output) as hidden:
            yield hidden
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    hidden = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        yield hidden
        if output.is_dir():
            shutil.rmtree(output)
        hidden.replace(output)
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}") from error
    finally:
        if hidden.is_dir():
            shutil.rmtree(hidden)
        else:
            hidden.unlink(missing_ok=True)
