"""Rows put aside in one file under several numbers, for whoever takes up one number out of many such files."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Aside:
    """A file of record batches, and the number of each."""

    path: str
    numbers: tuple[int, ...]


def write_aside(folder: Path, name: str, rows: Iterable[tuple[int, pa.Table]]) -> Aside | None:
    """Put rows aside under a name of their own, so that the same work done twice does not meet; None without rows."""
    path = folder / f"{name}.{os.urandom(6).hex()}.arrow"
    numbers: list[int] = []
    writer = None
    with pa.OSFile(str(path), "wb") as file:
        for number, table in rows:
            if writer is None:
                writer = pa.ipc.new_file(file, table.schema, options=_OPTIONS)
            for batch in table.combine_chunks().to_batches():
                writer.write_batch(batch)
                numbers.append(number)
        if writer is not None:
            writer.close()
    return Aside(str(path), tuple(numbers)) if numbers else None


def read_aside(files: Sequence[Aside], number: int) -> pa.Table | None:
    """All rows with this number, file by file and in the order in which they were put aside."""
    batches = []
    for aside in files:
        wanted = [place for place, own in enumerate(aside.numbers) if own == number]
        if wanted:
            with pa.OSFile(aside.path) as file, pa.ipc.open_file(file) as reader:
                batches += [reader.get_batch(place) for place in wanted]
    return pa.Table.from_batches(batches) if batches else None
