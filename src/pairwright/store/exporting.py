"""Export of experiences (JSON Lines, Parquet, HF dataset, pairwright bytes) and filtering."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError
from pairwright.paths import Place, claim_folder, is_address, write_atomic
from pairwright.records.json_text import encode
from pairwright.sources.datasets.pairwright_rows import experience_to_json
from pairwright.store.arrow import from_batch, import_datasets
from pairwright.store.codec import dumps_many
from pairwright.store.columns import SCHEMA
from pairwright.store.file_labels import copy_labels
from pairwright.store.table import Table
from pairwright.store.table_marker import MARKER


def write_jsonl(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write the experiences of batches as JSON lines; returns the number of rows."""
    num_rows = 0
    with open(path, "wb") as file:
        for batch in batches:
            file.writelines(encode(experience_to_json(run)) + b"\n" for run in from_batch(batch))
            num_rows += batch.num_rows
    return num_rows


def write_parquet(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches to a Parquet file, each as its own row groups; returns the number of rows."""
    num_rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def write_bytes(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write concatenated payloads (store/codec.py) of a few thousand experiences each; returns the number of rows."""
    num_rows = 0
    with open(path, "wb") as file:
        for batch in batches:
            file.write(dumps_many(from_batch(batch)))
            num_rows += batch.num_rows
    return num_rows


def check_is_local(output: Place) -> None:
    """Raise ConfigError for an address."""
    if is_address(output):
        raise ConfigError(f"{output}: a dataset is a folder, which an address cannot hold: export here, then copy it")


def write_hf(folder: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches to a folder for `datasets.load_from_disk`, through an Arrow file; returns the number of rows."""
    datasets, num_rows = import_datasets(), 0
    stream = folder.with_suffix(".arrow")
    try:
        with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                num_rows += batch.num_rows
        datasets.Dataset.from_file(str(stream)).save_to_disk(str(folder))
    finally:
        stream.unlink(missing_ok=True)
    return num_rows


_WRITERS: dict[str, Callable[[Path, Iterable[pa.RecordBatch]], int]] = {
    "jsonl": write_jsonl,
    "parquet": partial(write_parquet, schema=SCHEMA),
    "hf": partial(write_hf, schema=SCHEMA),
    "bytes": write_bytes,
}


def export_experiences(table: Table, target: str, output: Place, where: pl.Expr | None = None) -> int:
    """Write a table as "jsonl", "parquet", "hf" (a folder for `datasets`) or "bytes"; returns the number of rows."""
    if target == "hf":
        check_is_local(output)
    with write_atomic(output, error=PairwrightError) as temporary:
        return _WRITERS[target](temporary, table.scan(where))


def filter_table(table: Table, output: Place, where: pl.Expr) -> tuple[int, int]:
    """Write the rows for which `where` holds to a new table; returns the number of rows before and after.

    The labels of imported files (store/file_labels.py) are copied, so that importing a file again adds no duplicates.
    """
    num_rows, num_kept = table.count(), table.count(where)
    if not num_kept:
        raise PairwrightError(f"{table.path}: the condition holds for none of {num_rows:,} rows; nothing was written")
    with claim_folder(output, "table.json", work="filtered table"):
        if (output / MARKER).exists() and Table(output, create=False).count():
            raise PairwrightError(f"{output} is a table already: choose another folder")
        target = Table(output)
        num_written = target.write_part(table.scan(where))
        copy_labels(table.path, target.path)
    return num_rows, num_written
