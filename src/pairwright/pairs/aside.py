"""Rows put aside in one file under several numbers, for whoever takes up one number out of many such files."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pairwright.places import Place, arrow_input, at_once, is_address, staged

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Aside:
    """A file of record batches, and the number of each."""

    path: Place
    numbers: tuple[int, ...]


def write_aside(folder: Place, name: str, rows: Iterable[tuple[int, pa.Table]]) -> Aside | None:
    """Put rows aside under a name of their own, so that the same work done twice does not meet; None without rows."""
    path = folder / f"{name}.{os.urandom(6).hex()}.arrow"
    numbers: list[int] = []
    writer = None
    with staged(path) as written, pa.OSFile(str(written), "wb") as file:
        for number, table in rows:
            if writer is None:
                writer = pa.ipc.new_file(file, table.schema, options=_OPTIONS)
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)
                numbers.append(number)
        if writer is not None:
            writer.close()
    return Aside(path, tuple(numbers)) if numbers else None


def read_aside(files: Sequence[Aside], number: int) -> pa.Table | None:
    """All rows with this number, file by file and in the order in which they were put aside."""
    wanted = [(aside.path, [place for place, own in enumerate(aside.numbers) if own == number]) for aside in files]
    wanted = [(path, places) for path, places in wanted if places]
    waits = any(is_address(path) for path, _ in wanted)
    batches = [batch for found in at_once(_batches, wanted, waits=waits) for batch in found]
    return pa.Table.from_batches(batches) if batches else None


def _batches(task: tuple[Place, list[int]]) -> list[pa.RecordBatch]:
    path, wanted = task
    with arrow_input(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(place) for place in wanted]
