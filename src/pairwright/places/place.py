"""A text as a place: a path of this machine, or an address; and what is the same for both."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from pairwright.errors import PlaceError
from pairwright.places.address import Remote
from pairwright.places.scratch import scratch

Place = Path | Remote
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.S)


def is_address(text: object) -> bool:
    """Whether a text names a place that is not on this machine."""
    return isinstance(text, Remote) or _ADDRESS.fullmatch(str(text)) is not None


def place(text: str | os.PathLike[str] | Remote) -> Place:
    """The place that a text names.

    >>> str(place("s3://key:secret@bucket/runs/first/?region=eu-west-1"))
    's3://bucket/runs/first'
    >>> place("file:///data/runs")
    PosixPath('/data/runs')
    >>> str(place("s3://bucket/part-?.jsonl"))
    's3://bucket/part-?.jsonl'
    """
    if isinstance(text, Path | Remote):
        return text
    text = os.fspath(text)
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return Path(text)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    rest, query = _parted(rest)
    authority, _, key = rest.partition("/")
    login, at, host = authority.rpartition("@")
    if at and scheme.startswith("abfs") and ":" not in login:  # there it is a container, no user
        login, host = "", authority
    if not host:
        raise PlaceError(f"{scheme}://: expected an address such as {scheme}://bucket/folder")
    return Remote(scheme, host, "/".join(part for part in key.split("/") if part), login, query)


def size_of(there: Place) -> int:
    return there.size() if isinstance(there, Remote) else there.stat().st_size


def stamp_of(there: Place) -> tuple[int, int]:
    """The size and the time of the last change, in nanoseconds: another stamp is another file."""
    if isinstance(there, Remote):
        return there.stamp()
    found = there.stat()
    return found.st_size, found.st_mtime_ns


def local_path(there: Place) -> Path | None:
    """The path of a place on this machine; None for an address."""
    return None if isinstance(there, Remote) else there


def list_names(folder: Place, *, missing_ok: bool = False) -> list[str]:
    """The names in a folder, sorted. At an address a missing folder is empty, and a missing bucket is an error."""
    if isinstance(folder, Remote):
        return folder.names()
    return [] if missing_ok and not folder.exists() else sorted(os.listdir(folder))


@contextmanager
def local_workspace(folder: Place) -> Iterator[Path]:
    """Where to write files that are meant for a folder: the folder itself, or for an address scratch. See `deliver`."""
    if isinstance(folder, Path):
        yield folder
        return
    with scratch() as path:
        yield path


def deliver(file: Place, folder: Place) -> Place:
    """Where a file of `local_workspace(folder)` stands for everybody: where it is, or uploaded to the address."""
    if isinstance(folder, Path) or isinstance(file, Remote):
        return file
    (folder / file.name).put(file)
    return folder / file.name


@contextmanager
def arrow_input(there: Place) -> Iterator[Any]:
    """A file of Arrow's, for reads at any position."""
    import pyarrow as pa

    if isinstance(there, Path):
        with pa.OSFile(str(there)) as file:
            yield file
        return
    with there.told(), there.open_input() as file:
        yield file


def opened(there: Place, buffering: int = -1) -> IO[bytes]:
    """A file to be read as bytes."""
    return there.open() if isinstance(there, Remote) else open(there, "rb", buffering=buffering)


@contextmanager
def local_copy(there: Place) -> Iterator[Path]:
    """A file on this machine: itself, or a copy that is gone afterwards."""
    if isinstance(there, Path):
        yield there
        return
    with scratch() as folder:
        there.fetch(folder / there.name)
        yield folder / there.name


@contextmanager
def local_folder(there: Place, within: Path | None = None) -> Iterator[Path]:
    """A folder (or a file) on this machine: itself, or a copy of the files in it that is gone afterwards. `within` is
    where to put the copy, if other machines have to see it."""
    if isinstance(there, Path):
        yield there
        return
    with scratch(within) as folder:
        if there.is_file():
            there.fetch(folder / there.name)
            yield folder / there.name
            return
        files = [child for child, is_folder in there.entries() if not is_folder and not child.name.startswith(".")]
        if not files:
            raise PlaceError(f"{there}: no file there")
        for file in files:
            file.fetch(folder / file.name)
        yield folder


def _parted(rest: str) -> tuple[str, str]:
    """A query has a key and a value; any other ? stands for one character of a name."""
    path, mark, query = rest.rpartition("?")
    return (path, query) if mark and "=" in query else (rest, "")
