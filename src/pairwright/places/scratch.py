"""Scratch: folders of this machine for a while, and files that are written there before they appear elsewhere.

They are in the folder for temporary files (TMPDIR), which has to hold the largest file that is written to an address.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairwright.errors import PlaceError
from pairwright.places.address import Remote


@contextmanager
def scratch(within: Path | None = None) -> Iterator[Path]:
    """A folder of this machine that is gone afterwards; `within` another one it is hidden."""
    if within is not None:
        within.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pairwright-" if within is None else ".fetched-", dir=within))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staged(target: "Path | Remote") -> Iterator[Path]:
    """A file to write, which becomes the target once it is written; one of this machine is written where it is.

    If anything fails, nothing appears at an address, and what was there before stays.
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
