"""Journals: where appended experiences are safe before they are in a Parquet part.

A journal is a file of payloads (codec.py), one for each append, written and synced before the append returns. One
process writes it and holds a lock on it; when the lock can be taken, its writer is gone. A payload that a crash cut
short was never acknowledged: reading stops before it.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pairwright.errors import CodecError, ForeignBytes, TableError, TruncatedBytes
from pairwright.places import sync
from pairwright.records import Experience
from pairwright.store.codec import loads_many, payload_size
from pairwright.store.packing import Buffer

SUFFIX = ".journal"


def new_segment_id() -> str:
    """A name that sorts by time and that no other process can choose."""
    return f"{time.time_ns():020d}-{os.getpid():08d}-{os.urandom(4).hex()}"


class JournalWriter:
    """An open journal. It gets its name only once it is locked, so nobody ever finds it without a writer."""

    def __init__(self, folder: Path) -> None:
        self.id = new_segment_id()
        self.path = folder / f"{self.id}{SUFFIX}"
        self.size = 0
        self.pid = os.getpid()
        hidden = folder / f".{self.id}.tmp"
        self._fd = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        hidden.rename(self.path)
        sync(folder)

    def write(self, pieces: Sequence[Buffer], *, durable: bool) -> None:
        """Append a payload; after a failed write the journal is cut back to what was whole."""
        size = sum(map(len, pieces))
        try:
            written = os.writev(self._fd, pieces)
            if written < size:  # a short write: the rest in one piece
                rest = memoryview(b"".join(pieces))[written:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            if durable:
                os.fdatasync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self.size)
            raise TableError(f"{self.path}: {error.strerror}; nothing of this append was kept") from error
        self.size += size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def try_lock(path: Path) -> int | None:
    """A descriptor with the journal's lock if its writer is gone, else None. Closing it gives the lock back."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def read_journal(data: bytes, name: str) -> Iterator[list[Experience]]:
    """The appends of a journal, in order. A torn end is left out; damage before the end is an error."""
    view, offset = memoryview(data), 0
    while offset < len(view):
        rest = view[offset:]
        try:
            size = payload_size(rest)
            experiences = loads_many(rest[:size])
        except CodecError as error:
            if _is_torn_end(rest, error):
                return
            raise TableError(f"{name}: damaged at byte {offset}: {error}") from error
        yield experiences
        offset += size


def _is_torn_end(rest: memoryview, error: CodecError) -> bool:
    """True for what a crash leaves: a payload cut short, one whose blocks never reached the disk, or zeros."""
    if isinstance(error, TruncatedBytes):
        return True
    if isinstance(error, ForeignBytes):
        return not any(rest)
    try:
        return payload_size(rest) == len(rest)
    except CodecError:
        return False
