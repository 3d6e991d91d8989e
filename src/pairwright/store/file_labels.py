"""The label of each imported file: its part in the ids of the records that were read from it.

    DIR/imported.json    {"version": 1, "files": {"/absolute/path/of/a/rollouts.jsonl": "a/rollouts.jsonl"}}

A label is the file's path relative to what the import was asked for (a folder, the root of a glob; of a file its name).
Files of one import whose labels would be equal take as many folders before them as tell them apart: equal rows of two
files are two runs. A file keeps its label for good, however its path is spelled later, so that importing it again adds
nothing. A folder that was moved or copied has the labels that it had, so that nothing of it is imported twice.
"""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pairwright.errors import TableError
from pairwright.places import Place, Remote, is_address, staged
from pairwright.store.journal import sync_folder
from pairwright.store.table import Table

FILE_NAME = "imported.json"
_VERSION = 1


class Labels(NamedTuple):
    """The label of each file, and for a new file the other one, still in its place, that has the same label."""

    by_file: dict[Place, str]
    same_as: dict[Place, str]


def label_files(names: Mapping[Place, str], table: Table) -> Labels:
    """The labels of files, of which `names` has the relative paths. New ones are written down before anything is read.

    A table that was written before there were labels has file names in its ids: its files keep those.
    """
    known = read_labels(table.path)
    is_new_file = known is None
    if known is None:
        known = _labels_of_rows(table)
    keys = {file: _key(file) for file in names}
    new = {file: _text(name) for file, name in names.items() if keys[file] not in known}
    taken = {known[key] for key in keys.values() if key in known}  # by files that are read again beside them
    while repeated := taken.intersection(new.values()) | {name for name, n in Counter(new.values()).items() if n > 1}:
        new = {file: _longer(name, keys[file]) if name in repeated else name for file, name in new.items()}
    holders = {label: key for key, label in known.items() if is_address(key) or os.path.exists(key)} if new else {}
    known |= {keys[file]: name for file, name in new.items()}
    if new or (is_new_file and known):
        _write(table.path, known)
    same_as = {file: holders[name] for file, name in new.items() if name in holders}
    return Labels({file: known[key] for file, key in keys.items()}, same_as)


def read_labels(folder: Place) -> dict[str, str] | None:
    """The labels of a table's files by their absolute paths; None where nobody has written any."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if content.get("version") != _VERSION:
            raise TableError(f"{path}: version {content.get('version')!r}, this release reads {_VERSION}: upgrade")
        return msgspec.convert(content.get("files"), dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise TableError(f"{path}: cannot be read: {error}; import into a new table") from error


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
    return {_key_of_text(file): file.rpartition("/")[2] for file in sorted(sources - {None})}


def _key(file: Place) -> str:
    return str(file) if isinstance(file, Remote) else _text(str(file.resolve()))


def _key_of_text(file: str) -> str:
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
    content = msgspec.json.format(msgspec.json.encode({"version": _VERSION, "files": dict(labels)}), indent=1) + b"\n"
    target = folder / FILE_NAME
    if isinstance(target, Remote):
        with staged(target) as written:
            written.write_bytes(content)
        return
    hidden = target.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
    try:
        with open(hidden, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise TableError(f"{target}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)
