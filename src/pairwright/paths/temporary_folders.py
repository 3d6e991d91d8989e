"""Temporary local folders, and files staged in them before an upload.

They are in the system's temporary folder (TMPDIR), which must hold the largest file written to an address.
"""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairwright.errors import PairwrightError, PlaceError
from pairwright.paths.addresses import Place, Remote

_PREFIX = ".build."


@contextmanager
def scratch(within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary local folder; with `within`, a hidden one inside that folder."""
    if within is not None:
        within.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pairwright-" if within is None else ".fetched-", dir=within))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stage_file(target: Place) -> Iterator[Path]:
    """Yield a local path to write, and upload it to the target afterwards. A local target is written directly.

    On failure nothing is uploaded, and a previous file at the address is kept.
    """
    if isinstance(target, Path):
        yield target
        return
    with scratch() as folder:
        written = folder / target.name
        try:
            yield written
        except OSError as error:
            raise PlaceError(f"{target}: while it was written in {folder.parent}: {error.strerror or error}") from error
        target.put(written)


def workspace_of(folder: Place, *, owner: object) -> Path:
    """The folder itself, or for an address a temporary local folder, removed when `owner` is garbage-collected."""
    if isinstance(folder, Path):
        return folder
    path = Path(tempfile.mkdtemp(prefix="pairwright-"))
    # finalize also runs when the interpreter exits, unlike __del__
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return path


@contextmanager
def build_folder(output: Place, *, shared: bool = False) -> Iterator[Place]:
    """Yield a temporary hidden folder in `output`, or a local one for an address unless it is `shared`."""
    folder = output / f"{_PREFIX}{os.getpid()}.{os.urandom(4).hex()}"
    if isinstance(folder, Remote):
        with _remote_folder(folder) if shared else scratch() as path:
            yield path
        return
    try:
        folder.mkdir(parents=True)
        for other in folder.parent.glob(f"{_PREFIX}*"):
            if not _is_alive(int(other.name.split(".")[2])):  # .build.<pid>.<random>, left by a killed build
                shutil.rmtree(other, ignore_errors=True)
        yield folder
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _remote_folder(folder: Remote) -> Iterator[Remote]:
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(PairwrightError):  # report the first error
            folder.remove_tree()
        raise
    folder.remove_tree()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # only checks that the process exists
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
