"""The label of each imported file: its part in the ids of the records that were read from it.

    DIR/table.json    {..., "files": {"/absolute/path/of/a/rollouts.jsonl": "a/rollouts.jsonl"}}

A label is the file's path relative to what the import was asked for (a folder, the root of a glob; of a file its name).
Files of one import whose labels would be equal take as many folders before them as tell them apart: equal rows of two
files are two runs. A file keeps its label for good, however its path is spelled later, so that importing it again adds
nothing. A folder that was moved or copied has the labels that it had, so that nothing of it is imported twice.
"""

import os
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pairwright.errors import TableError
from pairwright.paths import Place, is_address
from pairwright.store.segments import read_marker, write_marker
from pairwright.store.table import Table

_FIELD = "files"  # of the marker


class Labels(NamedTuple):
    """The label of each file, and for a new file the other one, still in its place, that has the same label."""

    by_file: dict[Place, str]
    same_as: dict[Place, str]


def label_files(names: Mapping[Place, str], table: Table) -> Labels:
    """The labels of files, of which `names` has the relative paths. New ones are written down before anything is read.

    A table that was written before there were labels has file names in its ids: its files keep those.
    """
    known = read_labels(table.path)
    is_unlabelled = known is None
    if known is None:
        known = _labels_of_rows(table)
    keys = {file: key_of(str(file)) for file in names}
    new = {file: _text(name) for file, name in names.items() if keys[file] not in known}
    taken = {known[key] for key in keys.values() if key in known}  # by files that are read again beside them
    # Each round puts one more folder before the names that are not unique; whole paths are, so the loop ends.
    while repeated := taken.intersection(new.values()) | {name for name, n in Counter(new.values()).items() if n > 1}:
        new = {file: _longer(name, keys[file]) if name in repeated else name for file, name in new.items()}
    # Label -> the file that has it and still exists; one that is gone may be the new file before it was moved.
    holders = {label: key for key, label in known.items() if is_address(key) or os.path.exists(key)} if new else {}
    known |= {keys[file]: name for file, name in new.items()}
    if new or (is_unlabelled and known):
        _write(table.path, known)
    same_as = {file: holders[name] for file, name in new.items() if name in holders}
    return Labels({file: known[key] for file, key in keys.items()}, same_as)


def read_labels(folder: Place) -> dict[str, str] | None:
    """The labels of a table's files by their absolute paths; None where nobody has written any."""
    content = read_marker(folder)
    try:
        return msgspec.convert(content[_FIELD], dict[str, str]) if _FIELD in content else None
    except msgspec.ValidationError as error:
        raise TableError(f"{folder}: the labels of imported files cannot be read: {error}") from error


def copy_labels(source: Place, target: Place) -> None:
    """Take over the labels of another table, of which rows were copied."""
    labels = read_labels(source)
    if labels:
        _write(target, labels)


def _labels_of_rows(table: Table) -> dict[str, str]:
    """The labels that the files of a table have that was imported before there were any: their names."""
    if not table.segments():
        return {}
    sources = {file for batch in table.scan(columns=["source"]) for file in batch[0].unique().to_pylist()}
    return {key_of(file): file.rpartition("/")[2] for file in sorted(sources - {None})}


@lru_cache(maxsize=1024)
def key_of(file: str) -> str:
    """What stands for a file, however its path is spelled: the resolved path, or the address."""
    return file if is_address(file) else _text(str(Path(file).resolve()))


def _text(path: str) -> str:
    """A path as text that JSON holds: bytes of a name that are not UTF-8 are written as escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _longer(name: str, key: str) -> str:
    """A name with one more of the folders before it; the whole key where there is none left."""
    parts = key.strip("/").split("/")
    num_parts = name.count("/") + 2
    return "/".join(parts[-num_parts:]) if num_parts < len(parts) else key


def _write(folder: Place, labels: Mapping[str, str]) -> None:
    write_marker(folder, {**read_marker(folder), _FIELD: dict(labels)})
