"""A lock on a folder: one process at a time writes there.

The kernel holds the lock for the process (flock) and releases it when the process ends, however that happens: what a
dead process leaves behind is an unlocked file, which is no obstacle.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairwright.errors import PairwrightError

FILE_NAME = ".lock"


class FolderInUse(PairwrightError):
    """Another process works in the folder."""


@contextmanager
def lock_folder(folder: Path, *, work: str) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; refuse at once if another process holds it.

    folder: the folder to lock; the lock is its file `.lock`, which stays.
    work: what is done there, for the message: "run", "training".
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PairwrightError(f"{folder}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(_describe_owner(fd, folder, work)) from None
        except OSError:  # a file system without locks, such as some network mounts: work there as before
            yield
            return
        with contextlib.suppress(OSError):  # the number is for the message only
            os.truncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)


def _describe_owner(fd: int, folder: Path, work: str) -> str:
    with contextlib.suppress(OSError):
        owner = os.pread(fd, 20, 0).strip()
        if owner.isdigit():
            return f"{folder}: process {int(owner)} has a {work} here: wait for it, end it, or give another -o"
    return f"{folder}: another process has a {work} here: wait for it, end it, or give another -o"
