"""Local text files that several processes append lines to; what `append_line` has written survives a crash.

Lines are written whole, under a lock of the kernel, and synced. A crash can leave a part of a line at the end, of which
nobody was told that it is saved: `repair_tail` removes it, and the next append does, too.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pairwright.errors import PairwrightError
from pairwright.paths.writing import sync

MAX_LINE = 2**16
IsWhole = Callable[[bytes], bool]


def append_line(path: Path, line: bytes, *, header: bytes, is_whole: IsWhole) -> None:
    """Append one line and sync it; the file is created with its header if it is missing.

    path: the file; its folder is created if it is missing.
    line: without line break, at most `MAX_LINE` bytes.
    header: the first line that the file must have.
    is_whole: whether a last line without line break is complete, such as one that an editor left.

    Raises PairwrightError if the file begins with another line, or cannot be written; then nothing was written.
    """
    assert b"\n" not in line, "a line"
    if len(line) > MAX_LINE:
        raise PairwrightError(f"{path}: got a line of {len(line):,} bytes, expected at most {MAX_LINE:,}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as fd:
            is_new = not os.fstat(fd).st_size
            _repair(fd, path, header, is_whole)
            size = os.fstat(fd).st_size
            try:
                _write_all(fd, (b"" if size else header + b"\n") + line + b"\n")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # a full disk takes a part of a line: it goes again
                raise
        if is_new:
            sync(path.parent)
    except OSError as error:
        raise PairwrightError(f"{path}: {error.strerror or error}; nothing was written") from error


def repair_tail(path: Path, *, header: bytes, is_whole: IsWhole) -> bytes:
    """Remove an unfinished last line and return it; end a whole one with its line break. See `append_line`."""
    try:
        with _open_locked(path, os.O_RDWR | os.O_APPEND) as fd:
            return _repair(fd, path, header, is_whole)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise PairwrightError(f"{path}: {error.strerror or error}") from error


@contextmanager
def _open_locked(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: appends are still whole writes
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)  # which releases the lock


def _repair(fd: int, path: Path, header: bytes, is_whole: IsWhole) -> bytes:
    size = os.fstat(fd).st_size
    # A spreadsheet writes a byte order mark and its own line breaks.
    first = os.pread(fd, len(header) + 5, 0).removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].rstrip(b"\r")
    end = os.pread(fd, min(size, MAX_LINE), max(0, size - MAX_LINE))
    tail = end[end.rfind(b"\n") + 1 :]
    is_torn_header = len(tail) == size and len(tail) <= len(header) and header.startswith(tail)
    if size and first != header and not is_torn_header:
        got, expected = first.decode(errors="replace"), header.decode()
        raise PairwrightError(f"{path}:1: got {got!r}, expected {expected!r}; use another file")
    if not tail:
        return b""
    if tail == header or (not is_torn_header and is_whole(tail)):
        _write_all(fd, b"\n")
        tail = b""
    else:
        os.ftruncate(fd, size - len(tail))
    os.fsync(fd)
    return tail


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]
