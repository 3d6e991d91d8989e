"""Journals of appends to an experience table.

A journal is a write-ahead log: a file of payloads (store/codec.py), one for each append, written and synced before the
append returns. Its writer holds a lock on it; if the lock is free, the writer is gone. A payload truncated by a crash
was never acknowledged, and reading stops before it.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pairwright.errors import CodecError, ForeignBytes, TableError, TruncatedBytes
from pairwright.paths import sync
from pairwright.records.experience import Experience
from pairwright.store.codec import loads_many, payload_size
from pairwright.store.packed_arrays import Buffer

SUFFIX = ".journal"


def new_segment_id() -> str:
    """Return a unique segment id that sorts by creation time."""
    # 20 digits of nanoseconds since the epoch: with a fixed width, ids sort by time.
    return f"{time.time_ns():020d}-{os.getpid():08d}-{os.urandom(4).hex()}"


class JournalWriter:
    """An open journal. It is locked before it is renamed into place, so other processes never see it unlocked."""

    def __init__(self, folder: Path) -> None:
        self.id = new_segment_id()
        self.path = folder / f"{self.id}{SUFFIX}"
        self.size = 0
        self.pid = os.getpid()
        hidden = folder / f".{self.id}.tmp"
        self._fd = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        hidden.rename(self.path)
        # A new name is durable only after its folder is synced.
        sync(folder)

    def write(self, pieces: Sequence[Buffer], *, durable: bool) -> None:
        """Append a payload; on failure, truncate the journal to the last complete payload and raise TableError."""
        size = sum(map(len, pieces))
        try:
            written = os.writev(self._fd, pieces)
            if written < size:  # a short write: write the rest as one piece
                rest = memoryview(b"".join(pieces))[written:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            if durable:
                os.fdatasync(self._fd)
        except OSError as error:
            # Truncate to the last complete payload, so that later appends do not follow a torn one.
            os.ftruncate(self._fd, self.size)
            raise TableError(f"{self.path}: {error.strerror}; nothing of this append was kept") from error
        self.size += size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def try_lock(path: Path) -> int | None:
    """Lock a journal whose writer is gone; returns its file descriptor, which releases the lock on close, or None."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # The kernel releases flock when its owner dies for any reason.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def read_journal(data: bytes, name: str) -> Iterator[list[Experience]]:
    """Yield the appends of a journal, in order; ignores a torn end and raises TableError for damage before it."""
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
    """Return whether a crash left `rest`: a truncated payload, unwritten blocks of the last payload, or zeros."""
    if isinstance(error, TruncatedBytes):
        return True
    # Some file systems leave zeros where a file grew but its data was never written.
    if isinstance(error, ForeignBytes):
        return not any(rest)
    try:
        # A wrong checksum is a torn end only in the last payload; elsewhere, the data was damaged.
        return payload_size(rest) == len(rest)
    except CodecError:
        return False
