"""Temporary files of a build: stored rows, and shuffle files.

A shuffle file is one Arrow file with batches of many partitions; a reader takes one partition from many files.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from pairwright.paths import Place, arrow_input, at_once, is_address, stage_file

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
Stored = pl.DataFrame | Place  # rows in memory, or their Arrow file


def store_rows(folder: Place | None, rows: pl.DataFrame) -> Stored:
    """Write rows to an Arrow file of a folder, or keep them in memory if there is no folder."""
    if folder is None:
        return rows
    path, table = folder / f"stored.{os.urandom(6).hex()}.arrow", rows.to_arrow()
    with (
        stage_file(path) as written,
        pa.OSFile(str(written), "wb") as file,
        pa.ipc.new_file(file, table.schema, options=_OPTIONS) as writer,
    ):
        writer.write_table(table)
    return path


def take_rows(stored: Stored) -> pl.DataFrame:
    """Return stored rows, and delete their file."""
    if isinstance(stored, pl.DataFrame):
        return stored
    with arrow_input(stored) as file, pa.ipc.open_file(file) as reader:
        rows = pl.DataFrame(reader.read_all())
    stored.unlink()
    return rows


@dataclass(frozen=True)
class Aside:
    """A shuffle file: an Arrow file of record batches, and the partition number of each batch."""

    path: Place
    numbers: tuple[int, ...]


def write_aside(folder: Place, name: str, rows: Iterable[tuple[int, pa.Table]]) -> Aside | None:
    """Write (partition number, rows) to a shuffle file with a random name; returns None if there are no rows."""
    path = folder / f"{name}.{os.urandom(6).hex()}.arrow"
    numbers: list[int] = []
    writer = None
    with stage_file(path) as written, pa.OSFile(str(written), "wb") as file:
        for number, table in rows:
            if writer is None:
                writer = pa.ipc.new_file(file, table.schema, options=_OPTIONS)
            # One batch for each entry of `numbers`: batch k of the file belongs to numbers[k].
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)
                numbers.append(number)
        if writer is not None:
            writer.close()
    return Aside(path, tuple(numbers)) if numbers else None


def read_aside(files: Sequence[Aside], number: int) -> pa.Table | None:
    """Return all rows of a partition from shuffle files, by file and in insertion order; None if there are none."""
    wanted = [(aside.path, [place for place, own in enumerate(aside.numbers) if own == number]) for aside in files]
    wanted = [(path, places) for path, places in wanted if places]
    waits = any(is_address(path) for path, _ in wanted)
    batches = [batch for results in at_once(_batches, wanted, waits=waits) for batch in results]
    return pa.Table.from_batches(batches) if batches else None


def _batches(task: tuple[Place, list[int]]) -> list[pa.RecordBatch]:
    path, wanted = task
    with arrow_input(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(place) for place in wanted]
