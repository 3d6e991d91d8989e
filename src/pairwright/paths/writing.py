"""Writing a file or folder whole: readers see what was there before, or all of what is new, also after loss of power.

A local file is written under a temporary name beside the target, synced, and renamed, and then the folder is synced. A
file at an address is written in scratch and put there in one upload. After an exception nothing is left behind.
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
from pairwright.paths.scratch import staged


@contextmanager
def write_atomic(target: Place, *, error: type[PairwrightError] | None = None, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path on this machine; the file or folder that is written there becomes the target.

    target: what to write or to replace; its parent is created where it is missing.
    error: the class that an OSError is translated to; without it, OSErrors pass as they are.
    durable: whether to sync. Without it the target is still whole at any moment, but power loss may lose it.
    """
    try:
        if isinstance(target, Remote):
            with staged(target) as temporary:
                yield temporary
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(target)
        try:
            yield temporary
            publish(temporary, target, durable=durable)
        finally:
            _remove(temporary)
    except OSError as failure:
        if error is None:
            raise
        raise error(f"{target}: {failure.strerror or failure}; nothing was written") from failure


def write_bytes(
    target: Place, content: bytes, *, error: type[PairwrightError] | None = None, durable: bool = True
) -> None:
    """Write a file whole; see `write_atomic`."""
    with write_atomic(target, error=error, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_json(target: Place, value: Any, *, error: type[PairwrightError] | None = None, durable: bool = True) -> None:
    """Write a value as an indented JSON file, whole; see `write_atomic`."""
    content = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    write_bytes(target, content, error=error, durable=durable)


def publish(temporary: Place, target: Place, *, durable: bool = True) -> None:
    """Rename a complete file or folder to the target, in place of what is there. Both are on the same file system."""
    if isinstance(temporary, Remote):
        assert isinstance(target, Remote)
        temporary.rename(target)
        return
    assert isinstance(target, Path)
    if durable:
        for path in [temporary, *temporary.rglob("*")]:
            sync(path)
    if temporary.is_dir() or (target.is_dir() and not target.is_symlink()):
        _replace_folder(temporary, target)
    else:
        os.replace(temporary, target)
    if durable:
        sync(target.parent)


def append_synced(path: Path, content: bytes) -> None:
    """Append to a local file; on return the content survives loss of power."""
    with open(path, "ab") as file:
        file.write(content)
    sync(path)


def sync(path: Path) -> None:
    """Make the content of a local file, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_beside(target: Path) -> Path:
    """A hidden name in the same folder that no other process chooses."""
    return target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def _replace_folder(new: Path, target: Path) -> None:
    """A rename cannot replace a folder that is not empty: the old one is moved aside first, and removed after."""
    old = temporary_beside(target)
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        with contextlib.suppress(OSError):
            old.rename(target)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
