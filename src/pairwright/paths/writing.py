"""Atomic writes of files and folders, appends of lines to a log, and locks of folders.

Readers see the old content or the complete new one, even after a power failure.

A local file is written under a temporary name next to the target, synced and renamed; then the folder is synced. A
remote file is uploaded from a temporary local folder when it is complete. After an exception no temporary file is left.

Lines are appended whole, under a kernel lock, and synced. A crash can leave a partial last line, which was never
acknowledged: `repair_tail` and the next append remove it.

The lock of a folder (flock) is released by the kernel when the process ends for any reason: a dead process leaves only
an unlocked file, which does not block others.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.paths.addresses import Place, Remote
from pairwright.paths.temporary_folders import stage_file

LOCK_NAME = ".lock"
MAX_LINE = 2**16  # bytes of an appended line
IsWhole = Callable[[bytes], bool]


@contextmanager
def write_atomic(target: Place, *, error: type[PairwrightError] | None = None, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary local path; the file or folder written there becomes the target.

    An OSError is translated to `error`, if given. Without `durable`, the write is still atomic, but a power failure may
    lose it.
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
            _remove(temporary)
    except OSError as failure:
        if error is None:
            raise
        raise error(f"{target}: {failure.strerror or failure}; nothing was written") from failure


@contextmanager
def write_together(folder: Place, names: Sequence[str], *, error: type[PairwrightError]) -> Iterator[list[Path]]:
    """Yield a temporary path for each of several related files of a folder; all are published at the end.

    The others are valid only with the first file. In a local folder, the old others are deleted, the first file is
    replaced, and the new others are added, in this order: files of two writes never mix. At an address, the first file
    is replaced before the old others are deleted, since an upload may fail. If the block raises, nothing changes.
    """
    first, *others = (folder / name for name in names)
    with contextlib.ExitStack() as stack:
        temporary = [stack.enter_context(write_atomic(file, error=error)) for file in others]
        with write_atomic(first, error=error) as temporary_first:
            yield [temporary_first, *temporary]
            if isinstance(folder, Path):
                _remove_all(others)
        if isinstance(folder, Remote):  # unlike a rename, an upload may fail: delete the old files only now
            _remove_all(others)


def _remove_all(files: Sequence[Place]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


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
    # os.replace cannot replace a non-empty folder, nor a file by a folder
    if temporary.is_dir() or (target.is_dir() and not target.is_symlink()):
        _replace_folder(temporary, target)
    else:
        os.replace(temporary, target)
    if durable:
        sync(target.parent)


def append_synced(path: Path, content: bytes) -> None:
    """Append to a local file; durable on return."""
    with open(path, "ab") as file:
        file.write(content)
    sync(path)


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a log, or [] if it does not exist.

    An incomplete last line was cut by a crash and never acknowledged: it is removed from the file.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return data[:whole].splitlines()


def sync(path: Path) -> None:
    """Make the content of a local file, or the names in a folder, durable."""
    # fsync works on a read-only descriptor, and a folder cannot be opened for writing
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_beside(target: Path) -> Path:
    """Return a unique hidden name in the same folder."""
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


_held: ContextVar[frozenset[str]] = ContextVar("held", default=frozenset())  # folders locked by the caller


class FolderInUse(PairwrightError):
    """Another process works in the folder."""


@contextmanager
def lock_folder(folder: Path, *, work: str) -> Iterator[None]:
    """Lock a folder, which is created if missing; raise immediately if another process holds the lock.

    The lock is the file `.lock` in the folder, which is never deleted. A caller may lock a folder again: a run and its
    stages lock the same one.
    """
    held, key = _held.get(), os.path.realpath(folder)
    if key in held:
        yield
        return
    with _locked(folder / LOCK_NAME, folder, work):
        token = _held.set(held | {key})
        try:
            yield
        finally:
            _held.reset(token)


@contextmanager
def lock_file(file: Path, *, work: str) -> Iterator[None]:
    """Lock the name of a file to be written, by a hidden file next to it; raise if another process holds the lock."""
    lock = file.with_name(f".{file.name}{LOCK_NAME}")
    with _locked(lock, file, work):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, what: Path, work: str) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PairwrightError(f"{what}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(_describe_owner(fd, what, work)) from None
        except OSError:  # a file system without locks, such as some network mounts: continue without
            yield
            return
        # The previous owner may have deleted the lock file meanwhile: a deleted file protects nothing.
        if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):
            raise FolderInUse(_describe_owner(fd, what, work))
        with contextlib.suppress(OSError):  # the process id is only for messages
            os.truncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


def _describe_owner(fd: int, what: Path, work: str) -> str:
    with contextlib.suppress(OSError):
        owner = os.pread(fd, 20, 0).strip()
        if owner.isdigit():
            return f"{what}: in use by process {int(owner)}, so no {work} here: wait for it, end it, or give another -o"
    return f"{what}: in use by another process, so no {work} here: wait for it, end it, or give another -o"


def append_lines(path: Path, lines: Sequence[bytes], *, header: bytes, is_whole: IsWhole = lambda line: False) -> None:
    """Append lines of at most `MAX_LINE` bytes and sync them once; a missing file is created with its header.

    `is_whole` tells whether a last line without line break is complete, e.g. after an edit; by default it is not.
    Raises PairwrightError, and appends no line, if the file has another header or cannot be written.
    """
    for line in lines:
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
                _write_all(fd, b"".join([b"" if size else header + b"\n", *(line + b"\n" for line in lines)]))
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # remove the partial line of a failed write, e.g. on a full disk
                raise
        if is_new:
            sync(path.parent)
    except OSError as error:
        raise PairwrightError(f"{path}: {error.strerror or error}; nothing was written") from error


def repair_tail(path: Path, *, header: bytes, is_whole: IsWhole = lambda line: False) -> bytes:
    """Remove and return an unfinished last line; add the line break of a complete one. See `append_lines`."""
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
        os.close(fd)  # releases the lock


def _repair(fd: int, path: Path, header: bytes, is_whole: IsWhole) -> bytes:
    size = os.fstat(fd).st_size
    # Saving in a spreadsheet program adds a byte order mark and may change line breaks.
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
