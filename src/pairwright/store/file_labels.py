"""Labels of imported files, which are part of the ids of their records.

    DIR/table.json    {..., "files": {"/absolute/path/of/a/rollouts.jsonl": "a/rollouts.jsonl"}}

A label is the path of the file relative to the imported folder or the root of the glob; for a single file, its name.
If labels of one import collide, parent folders are prepended until they are unique, so that equal rows of two files
are two runs. A file keeps its label permanently, even if its path is spelled differently later, so that importing it
again adds nothing. A moved or copied folder gets the same labels, so that its records are not imported twice.
"""

import os
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pairwright.errors import TableError
from pairwright.paths import Place, is_address
from pairwright.store.table_marker import read_marker, write_marker

if TYPE_CHECKING:
    from pairwright.store.table import Table

_FIELD = "files"  # key of the marker
_MAPS = "maps"  # key of the marker: field maps by file


class Labels(NamedTuple):
    """Labels by file; `same_as` maps a new file to an existing file that already has the same label."""

    by_file: dict[Place, str]
    same_as: dict[Place, str]


def label_files(names: Mapping[Place, str], table: "Table") -> Labels:
    """Return the labels of files, given their relative paths; new labels are stored before any file is read."""
    known = read_labels(table.path)
    is_unlabelled = known is None
    if known is None:
        known = _labels_of_rows(table)
    keys = {file: key_of(str(file)) for file in names}
    new = {file: _text(name) for file, name in names.items() if keys[file] not in known}
    taken = {known[key] for key in keys.values() if key in known}  # labels of known files in this import
    # Each round prepends one more folder to duplicate names; whole paths are unique, so the loop ends.
    while repeated := taken.intersection(new.values()) | {name for name, n in Counter(new.values()).items() if n > 1}:
        new = {file: _longer(name, keys[file]) if name in repeated else name for file, name in new.items()}
    # Label -> existing file that has it; a missing file may be the new file before it was moved.
    holders = {label: key for key, label in known.items() if is_address(key) or os.path.exists(key)} if new else {}
    known |= {keys[file]: name for file, name in new.items()}
    if new or (is_unlabelled and known):
        _write(table.path, known)
    same_as = {file: holders[name] for file, name in new.items() if name in holders}
    return Labels({file: known[key] for file, key in keys.items()}, same_as)


def read_labels(folder: Place) -> dict[str, str] | None:
    """Read the labels of a table by absolute path; None if it has none."""
    content = read_marker(folder)
    try:
        return msgspec.convert(content[_FIELD], dict[str, str]) if _FIELD in content else None
    except msgspec.ValidationError as error:
        raise TableError(f"{folder}: the labels of imported files cannot be read: {error}") from error


def copy_labels(source: Place, target: Place) -> None:
    """Copy the labels of a table to another table that has some of its rows."""
    labels = read_labels(source)
    if labels:
        _write(target, labels)


def read_maps(folder: Place) -> dict[str, str]:
    """Read the field maps that files of a table were imported with, by absolute path."""
    try:
        return msgspec.convert(read_marker(folder).get(_MAPS, {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise TableError(f"{folder}: the maps of imported files cannot be read: {error}") from error


def write_maps(folder: Place, maps: Mapping[str, str]) -> None:
    """Add field maps of files to those of a table."""
    write_marker(folder, {**read_marker(folder), _MAPS: {**read_maps(folder), **maps}})


def _labels_of_rows(table: "Table") -> dict[str, str]:
    """Return labels for the files of a table from a release without labels: their names."""
    if not table.segments():
        return {}
    sources = {file for batch in table.scan(columns=["source"]) for file in batch[0].unique().to_pylist()}
    return {key_of(file): file.rpartition("/")[2] for file in sorted(sources - {None})}


@lru_cache(maxsize=2**16)
def key_of(file: str) -> str:
    """Return the canonical key of a file, independent of how its path is spelled: resolved path, or address."""
    return file if is_address(file) else _text(os.path.realpath(file))


def _text(path: str) -> str:
    """Return a path as valid Unicode for JSON; bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _longer(name: str, key: str) -> str:
    """Prepend one more parent folder to a name; returns the whole key if no parent is left."""
    parts = key.strip("/").split("/")
    num_parts = name.count("/") + 2
    return "/".join(parts[-num_parts:]) if num_parts < len(parts) else key


def _write(folder: Place, labels: Mapping[str, str]) -> None:
    write_marker(folder, {**read_marker(folder), _FIELD: dict(labels)})
