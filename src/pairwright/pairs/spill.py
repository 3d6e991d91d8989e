"""Spilled partitions of a pair build.

`Spill` keeps partitions in memory or in Arrow files of the build folder and reads them back one at a time. If the build
folder is remote, spill files are written locally and uploaded on `close`.
"""

from pathlib import Path

import polars as pl
import pyarrow as pa

from pairwright.paths import Place, at_once, deliver, open_binary, workspace_of

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Spill:
    """Partitions of rows with one schema, by partition number; kept in memory if there is no folder.

    Args:
        folder: Folder of the Arrow files, local or remote; None keeps the rows in memory.
        name: Prefix of the file names.
    """

    def __init__(self, folder: Place | None, name: str) -> None:
        self._folder = None if folder is None else workspace_of(folder, owner=self)
        self._shared = None if folder == self._folder else folder  # remote: other processes read the files there
        self._adopted: dict[int, Place] = {}
        self._name = name
        # Without a folder: the pieces of each partition. With a folder: its open file and stream writer.
        self._held: dict[int, list[pl.DataFrame]] = {}
        self._writers: dict[int, tuple[pa.OSFile, pa.RecordBatchStreamWriter]] = {}

    def add(self, number: int, rows: pl.DataFrame) -> None:
        """Append rows to a partition."""
        if self._folder is None:
            self._held.setdefault(number, []).append(rows)
            return
        table = rows.to_arrow()
        if number not in self._writers:
            file = pa.OSFile(str(self._path(number)), "wb")
            self._writers[number] = file, pa.ipc.new_stream(file, table.schema, options=_OPTIONS)
        self._writers[number][1].write_table(table)

    def read(self, number: int) -> pl.DataFrame | None:
        """Return all rows of a partition in insertion order, or None if it is empty; closes the partition's file."""
        if self._folder is None:
            held = self._held.get(number, [])
            return pl.concat(held) if held else None
        # The stream writer closes before its file.
        for part in reversed(self._writers.pop(number, ())):
            part.close()
        path = self._readable(number)
        if path is None:
            return None
        with open_binary(path) as file, pa.ipc.open_stream(file) as reader:
            return pl.DataFrame(reader.read_all())

    def take(self, number: int) -> pl.DataFrame | None:
        """Return the rows of a partition as `read` does, and delete them from memory and disk."""
        rows = self.read(number)
        self._held.pop(number, None)
        if self._folder is not None:
            self._path(number).unlink(missing_ok=True)
        if number in self._adopted:
            self._adopted.pop(number).unlink()
        return rows

    def close(self) -> None:
        """Close all files, and upload them if the folder is remote, so that other processes can read them."""
        for parts in self._writers.values():
            for part in reversed(parts):
                part.close()
        if self._shared is not None:
            list(at_once(self._send, list(self._writers), waits=True))

    def adopt(self, number: int, path: Place) -> None:
        """Use a file that another `Spill` wrote as the rows of a partition; `take` deletes it."""
        self._adopted[number] = path

    def _readable(self, number: int) -> Place | None:
        """Return the file of a partition: adopted, local or uploaded; None if there is none."""
        path = self._path(number)
        candidates = [self._adopted.get(number), path, self._shared and self._shared / path.name]
        return next((file for file in candidates if file is not None and file.exists()), None)

    def _send(self, number: int) -> None:
        assert self._shared is not None
        deliver(self._path(number), self._shared)
        self._path(number).unlink()

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}.{number}.arrow"
