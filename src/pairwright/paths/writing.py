"""Atomic writes of files and folders: readers see the old content or the complete new one, also after a power failure.

A local file is written under a temporary name beside the target, synced, and renamed, and then the folder is synced. A
remote file is written to a temporary folder and uploaded at once. After an exception no temporary file is left.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.paths.addresses import Remote
from pairwright.paths.paths import Place
from pairwright.paths.scratch import stage_file


@contextmanager
def write_atomic(target: Place, *, error: type[PairwrightError] | None = None, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary local path; the file or folder that is written there becomes the target.

    target: the file or folder to write or replace; its parent is created if it is missing.
    error: the class that an OSError is translated to; without it, OSErrors pass unchanged.
    durable: whether to sync. Without it the write is still atomic, but a power failure may lose it.
    """
    try:
        if isinstance(target, Remote):
            with stage_file(target) as temporary:
                yield temporary
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(target)
        try:
            yield temporary
            publish(temporary, target, durable=durable)
        finally:
            # does nothing after a successful rename: the temporary name is gone
            _remove(temporary)
    except OSError as failure:
        if error is None:
            raise
        raise error(f"{target}: {failure.strerror or failure}; nothing was written") from failure


def write_bytes(
    target: Place, content: bytes, *, error: type[PairwrightError] | None = None, durable: bool = True
) -> None:
    """Write a file atomically; see `write_atomic`."""
    with write_atomic(target, error=error, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_json(target: Place, value: Any, *, error: type[PairwrightError] | None = None, durable: bool = True) -> None:
    """Write a value as indented JSON, atomically; see `write_atomic`."""
    content = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    write_bytes(target, content, error=error, durable=durable)


def publish(temporary: Place, target: Place, *, durable: bool = True) -> None:
    """Rename a complete file or folder to the target, replacing it. Both are on the same file system."""
    if isinstance(temporary, Remote):
        assert isinstance(target, Remote)
        temporary.rename(target)
        return
    assert isinstance(target, Path)
    if durable:  # content first, then the rename, then the folder: the name never points to unsynced data
        for path in [temporary, *temporary.rglob("*")]:
            sync(path)
    # os.replace overwrites no folder that has content, and no file by a folder
    if temporary.is_dir() or (target.is_dir() and not target.is_symlink()):
        _replace_folder(temporary, target)
    else:
        os.replace(temporary, target)
    if durable:
        sync(target.parent)


def append_synced(path: Path, content: bytes) -> None:
    """Append to a local file; on return the content survives a power failure."""
    with open(path, "ab") as file:
        file.write(content)
    sync(path)


def sync(path: Path) -> None:
    """Make the content of a local file, or the names in a folder, durable."""
    # fsync works on a read-only descriptor, and a folder cannot be opened for writing
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_beside(target: Path) -> Path:
    """A unique hidden name in the same folder."""
    # the leading dot hides it from listings; the process id and random bytes keep concurrent writers apart
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def _replace_folder(new: Path, target: Path) -> None:
    """Replace a folder: a rename cannot overwrite a non-empty one, so the old one is renamed first and then removed."""
    old = temporary_beside(target)
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:  # put the old folder back, also on Ctrl-C
        with contextlib.suppress(OSError):
            old.rename(target)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
