"""Output folders of stages: each holds one kind of table, and one process at a time writes to it.

A marker file identifies the kind. At an address (s3://...) the kind is checked, too, but nothing is locked: object
stores have no locks, so two processes must not write to one address at the same time.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

from pairwright.errors import PairwrightError
from pairwright.paths.addresses import Place
from pairwright.paths.paths import list_names
from pairwright.paths.writing import lock_file, lock_folder

Kind = Literal["table.json", "pairs.parquet", "items.parquet", "train.json"]
_KINDS: dict[str, str] = {
    "table.json": "an experience table",
    "pairs.parquet": "a pairs table",
    "items.parquet": "encoded tokens",
    "train.json": "a training",
}


@contextmanager
def claim_folder(folder: Place, kind: Kind | None, *, work: str) -> Iterator[None]:
    """Hold a folder for writing one kind of table; refuse a folder that holds another kind or is in use.

    `kind` is the name of the marker file, None if the folder gets none; `work` names the caller's work in messages.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "table.json").write_text("{}")
    >>> check_kind(folder, "pairs.parquet", work="pairs")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pairwright.errors.PairwrightError: ...: holds an experience table; give another -o for the pairs
    """
    check_kind(folder, kind, work=work)
    if not isinstance(folder, Path):
        yield
        return
    with lock_folder(folder, work=work):
        check_kind(folder, kind, work=work)  # again under the lock: another process may have written
        yield


@contextmanager
def claim_file(file: Place, *, overwrite: bool, work: str) -> Iterator[None]:
    """Lock the name of a file, or of a folder that is written as a whole; refuse an existing one unless `overwrite`.

    A folder that holds a table is never overwritten.
    """
    check_kind(file, None, work=work)
    with lock_file(file, work=work) if isinstance(file, Path) else nullcontext():
        if file.exists() and not overwrite:
            raise PairwrightError(f"{file} exists: replace it with --overwrite, or choose another name")
        yield


def check_kind(folder: Place, kind: Kind | None, *, work: str) -> None:
    """Raise PairwrightError for a folder that holds another kind of table."""
    names = set() if folder.is_file() else set(list_names(folder, missing_ok=True))
    for mark, description in _KINDS.items():
        if mark in names and mark != kind:
            raise PairwrightError(f"{folder}: holds {description}; give another -o for the {work}")
