"""Places: text parsed to a local path or an address, and the operations that work on both."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from pairwright.errors import PlaceError
from pairwright.paths.addresses import Place, Remote
from pairwright.paths.temporary_folders import scratch

# A scheme has at least two characters: `C://` would be a Windows drive
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.S)


def is_address(text: object) -> bool:
    """Whether a text is an address (`scheme://...`) and not a local path."""
    return isinstance(text, Remote) or _ADDRESS.fullmatch(str(text)) is not None


def place(text: str | os.PathLike[str] | Remote) -> Place:
    """Parse a text to a place.

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
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return Path(text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return Path(unquote(urlsplit(text).path))
    path, mark, query = rest.rpartition("?")
    if not mark or "=" not in query:  # a query has the form key=value; any other ? is a wildcard
        path, query = rest, ""
    authority, _, key = path.partition("/")
    login, at, host = authority.rpartition("@")
    if at and scheme.startswith("abfs") and ":" not in login:  # Azure: container@account, no credentials
        login, host = "", authority
    if not host:
        raise PlaceError(f"{scheme}://: expected an address such as {scheme}://bucket/folder")
    # empty components are dropped: `s3://bucket//a/` and `s3://bucket/a` are the same place
    return Remote(scheme, host, "/".join(part for part in key.split("/") if part), login, query)


def size_of(there: Place) -> int:
    return there.size() if isinstance(there, Remote) else there.stat().st_size


def stamp_of(there: Place) -> tuple[int, int]:
    """Return size and modification time in nanoseconds: a different stamp means a different file."""
    if isinstance(there, Remote):
        return there.stamp()
    status = there.stat()
    return status.st_size, status.st_mtime_ns


def local_path(there: Place) -> Path | None:
    """Return the path of a local place; None for an address."""
    return None if isinstance(there, Remote) else there


def list_names(folder: Place, *, missing_ok: bool = False) -> list[str]:
    """Return the sorted names in a folder. At an address, a missing folder is empty, a missing bucket is an error."""
    if isinstance(folder, Remote):
        return [child.name for child, _ in folder.entries()]
    return [] if missing_ok and not folder.exists() else sorted(os.listdir(folder))


@contextmanager
def local_workspace(folder: Place) -> Iterator[Path]:
    """Yield a folder to write to: the folder itself, or a temporary one for an address. See `deliver`."""
    if isinstance(folder, Path):
        yield folder
        return
    with scratch() as path:
        yield path


def deliver(file: Place, folder: Place) -> Place:
    """Return the final place of a file of `local_workspace(folder)`, uploading it if the folder is an address."""
    if isinstance(folder, Path) or isinstance(file, Remote):
        return file
    (folder / file.name).put(file)
    return folder / file.name


@contextmanager
def arrow_input(there: Place) -> Iterator[Any]:
    """Open as an Arrow file for random access."""
    if isinstance(there, Path):
        with pa.OSFile(str(there)) as file:
            yield file
        return
    with there.translate_errors(), there.open_input() as file:
        yield file


def open_binary(there: Place, buffering: int = -1) -> IO[bytes]:
    """Open a file for reading bytes."""
    return there.open() if isinstance(there, Remote) else open(there, "rb", buffering=buffering)


@contextmanager
def local_copy(there: Place) -> Iterator[Path]:
    """Yield a local file: the file itself, or a temporary copy of a remote one."""
    if isinstance(there, Path):
        yield there
        return
    with scratch() as folder:
        there.fetch(folder / there.name)
        yield folder / there.name


@contextmanager
def local_folder(there: Place, within: Path | None = None) -> Iterator[Path]:
    """Yield a local folder (or file): itself, or a temporary copy of a remote one. `within` is the folder for the copy,
    if other machines must see it."""
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
