"""Export all columns of the pairs table: to one Parquet file, or to a Hugging Face dataset on disk.

Nothing is refused or left out. Messages, tools and info are JSON text, so Arrow does not unify schemas across rows.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from pairwright.errors import PairwrightError
from pairwright.export.exporter import ExportOptions, ExportSummary, refuse_empty, split_batches
from pairwright.pairs.pair_table import PAIR_SCHEMA
from pairwright.paths import Place, write_atomic
from pairwright.store.exporting import check_is_local, write_hf, write_parquet


def export_parquet(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
    """Write one Parquet file, which `pairwright` commands accept as a pairs table."""
    return _export("parquet", write_parquet, pairs, output, options)


def export_hf(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
    """Write a folder for `datasets.load_from_disk`, through a memory-mapped temporary file."""
    check_is_local(output)
    return _export("hf", write_hf, pairs, output, options)


def _export(
    target: str,
    write: Callable[[Path, Iterable[pa.RecordBatch], pa.Schema], int],
    pairs: Place,
    output: Place,
    options: ExportOptions,
) -> ExportSummary:
    with write_atomic(output, error=PairwrightError) as temporary:
        # Whole row groups, so that memory stays bounded by one of them.
        num_rows = write(temporary, split_batches(pairs, options.split), PAIR_SCHEMA)
        summary = ExportSummary(target=target, pairs=num_rows, written=num_rows, rows=num_rows)
        refuse_empty(summary, pairs, options)
    return summary
