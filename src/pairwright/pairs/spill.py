"""Rows put aside under numbers, to be taken up again number by number: in memory, or in files of a hidden folder.

Where the folder is at an address, files are written in scratch, and go there when they are closed for others to read.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import polars as pl
import pyarrow as pa

from pairwright.errors import PairwrightError
from pairwright.places import Place, Remote, at_once, scratch

Rows = TypeVar("Rows")  # pl.DataFrame or pa.Table
_PREFIX = ".build."
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@contextlib.contextmanager
def build_folder(output: Place, *, shared: bool = False) -> Iterator[Place]:
    """A hidden folder in `output` that is gone afterwards; those that dead builds left behind go with it.

    For an output at an address it is scratch of this machine, unless it is shared with workers elsewhere.
    """
    if isinstance(output, Remote):
        with _remote_folder(output) if shared else scratch() as there:
            yield there
        return
    folder = output / f"{_PREFIX}{os.getpid()}.{os.urandom(4).hex()}"
    try:
        folder.mkdir(parents=True)
        for other in output.glob(f"{_PREFIX}*"):
            if not _is_alive(int(other.name.split(".")[2])):
                shutil.rmtree(other, ignore_errors=True)
        yield folder
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _remote_folder(output: Remote) -> Iterator[Remote]:
    folder = output / f"{_PREFIX}{os.getpid()}.{os.urandom(4).hex()}"
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(PairwrightError):  # what went wrong before is what has to be told
            folder.remove_tree()
        raise
    folder.remove_tree()


class Spill(Generic[Rows]):
    """Rows of one shape by number: frames, or Arrow tables. Without a folder they stay as they are, in memory."""

    def __init__(self, folder: Place | None, name: str, *, kind: type[Rows]) -> None:
        self._shared = folder if isinstance(folder, Remote) else None
        self._folder = self._scratch() if isinstance(folder, Remote) else folder
        self._adopted: dict[int, Remote] = {}
        self._name = name
        self._kind: Any = kind
        self._held: dict[int, list[Rows]] = {}
        self._writers: dict[int, tuple[pa.OSFile, pa.RecordBatchStreamWriter]] = {}

    def add(self, number: int, rows: Rows) -> None:
        """Put rows aside."""
        if self._folder is None:
            self._held.setdefault(number, []).append(rows)
            return
        table: Any = rows.to_arrow() if isinstance(rows, pl.DataFrame) else rows
        if number not in self._writers:
            file = pa.OSFile(str(self._path(number)), "wb")
            self._writers[number] = file, pa.ipc.new_stream(file, table.schema, options=_OPTIONS)
        self._writers[number][1].write_table(table)

    def read(self, number: int) -> Rows | None:
        """All rows with this number, in the order in which they were put aside. After that none can be added to it."""
        if self._folder is None:
            held = self._held.get(number, [])
            return self._joined(held) if held else None
        for part in reversed(self._writers.pop(number, ())):
            part.close()
        if not self._path(number).exists():
            return self._fetched(number)
        with pa.OSFile(str(self._path(number))) as file, pa.ipc.open_stream(file) as reader:
            return cast(Rows, self._kind(reader.read_all()) if self._kind is pl.DataFrame else reader.read_all())

    def take(self, number: int) -> Rows | None:
        """The same, and they are kept no longer."""
        rows = self.read(number)
        self._held.pop(number, None)
        if self._folder is not None:
            self._path(number).unlink(missing_ok=True)
        if number in self._adopted:
            self._adopted.pop(number).unlink()
        return rows

    def close(self) -> None:
        """Finish the files, so that others may read them. After that no rows can be added."""
        for parts in self._writers.values():
            for part in reversed(parts):
                part.close()
        if self._shared is not None:
            list(at_once(self._send, list(self._writers), waits=True))

    def adopt(self, number: int, path: Place) -> None:
        """Take the file of another one over as the rows with this number."""
        if isinstance(path, Remote):
            self._adopted[number] = path
        else:
            path.rename(self._path(number))

    def _scratch(self) -> Path:
        """A folder of this machine that goes when this is gone."""
        made = Path(tempfile.mkdtemp(prefix="pairwright-"))
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return made

    def _fetched(self, number: int) -> Rows | None:
        """The rows of a file that is where others see it; None where there is none."""
        there = self._adopted.get(number) or (None if self._shared is None else self._remote(number))
        if there is None or not there.exists():
            return None
        with pa.ipc.open_stream(pa.BufferReader(there.read_bytes())) as reader:
            return cast(Rows, self._kind(reader.read_all()) if self._kind is pl.DataFrame else reader.read_all())

    def _send(self, number: int) -> None:
        self._remote(number).put(self._path(number))
        self._path(number).unlink()

    def _remote(self, number: int) -> Remote:
        assert self._shared is not None
        return self._shared / f"{self._name}.{number}.arrow"

    def _joined(self, held: list[Rows]) -> Rows:
        if len(held) == 1:
            return held[0]
        several: Any = held
        return cast(Rows, pl.concat(several) if self._kind is pl.DataFrame else pa.concat_tables(several))

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}.{number}.arrow"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
