"""Export all columns of the pairs table: to one Parquet file, or to a Hugging Face dataset on disk.

Nothing is refused or left out. Messages, tools and info are JSON text, so Arrow does not unify schemas across rows.
"""

import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.exporter import ExportOptions, ExportSummary, refuse_empty, split_batches
from pairwright.pairs.pair_table import PAIR_SCHEMA
from pairwright.paths import Place, is_address, write_atomic
from pairwright.store.arrow import import_datasets


def export_parquet(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
    """Write one Parquet file, which `pairwright` commands accept as a pairs table."""
    num_rows = 0
    with (
        write_atomic(output, error=PairwrightError) as temporary,
        pq.ParquetWriter(temporary, PAIR_SCHEMA, compression="zstd") as writer,
    ):
        # Whole row groups, so that memory stays bounded by one of them.
        for batch in split_batches(pairs, options.split):
            writer.write_batch(batch)
            num_rows += batch.num_rows
        summary = ExportSummary(target="parquet", pairs=num_rows, written=num_rows, rows=num_rows)
        refuse_empty(summary, pairs, options)
    return summary


def export_hf(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
    """Write a folder for `datasets.load_from_disk`, through a memory-mapped temporary file."""
    if is_address(output):
        raise ConfigError(f"{output}: a dataset is a folder, which no address takes whole: export it here, and copy it")
    datasets = import_datasets()
    num_rows = 0
    with write_atomic(output, error=PairwrightError) as temporary:
        # A temporary Arrow stream beside the output: `datasets` maps it into memory instead of reading it.
        stream = temporary.with_suffix(".arrow")
        try:
            with pa.OSFile(str(stream), "wb") as sink, pa.ipc.new_stream(sink, PAIR_SCHEMA) as writer:
                for batch in split_batches(pairs, options.split):
                    writer.write_batch(batch)
                    num_rows += batch.num_rows
            summary = ExportSummary(target="hf", pairs=num_rows, written=num_rows, rows=num_rows)
            refuse_empty(summary, pairs, options)
            datasets.Dataset.from_file(str(stream)).save_to_disk(str(temporary))
        finally:
            stream.unlink(missing_ok=True)
    return summary
