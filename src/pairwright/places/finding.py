"""The files that a path or an address names: a file, all files of a folder, or a glob, in the same order for both.

`*`, `?` and `[...]` stand for a part of one name and never for a leading dot; `**` for any folders. Hidden files, and
those in hidden folders, are found only by name.
"""

import glob
import os
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pairwright.places.address import Remote
from pairwright.places.place import Place, is_address, place

_MAGIC = re.compile(r"[*?\[]")


def named_files(text: str, *, skipped: Collection[str] = ()) -> list[tuple[Place, str]]:
    """The files that a text names, each with its path relative to the folder, or to the root of the glob, that named
    it. In folders, files with the skipped names are left out."""
    there = place(text) if is_address(text) else None
    if isinstance(there, Remote):
        root = root_of(there).key
        return [(file, _below(file.key, root)) for file in remote_files(there, skipped=skipped)]
    path = text if there is None else str(there)
    return [(file, _below(str(file), root)) for file, root in _local_files(path, skipped)]


def root_of(there: Remote) -> Remote:
    """The part of an address before its first name with a wildcard; the address itself where it has none."""
    parts = there.key.split("/") if there.key else []
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return there.at("/".join(parts[:plain]))


def remote_files(there: Remote, *, skipped: Collection[str] = ()) -> list[Remote]:
    """The files that an address names; in folders those of the skipped names are left out."""
    start = root_of(there)
    pattern = there.key.removeprefix(start.key).strip("/")
    if pattern:
        matches = sorted(_matching(start, pattern.split("/")), key=lambda match: match[0].key)
    else:
        matches = [(there, there.is_dir())]
    found = [file for match, is_folder in matches for file in _files_at(match, is_folder, skipped)]
    if not found:
        start.entries()  # says so where there is not even a bucket
    return found


def _local_files(path: str, skipped: Collection[str]) -> Iterator[tuple[Path, str]]:
    """The files that a path or glob names, each with the folder to which its name is relative."""
    if os.path.exists(path):
        yield from ((file, str(Path(path))) for file in _files_below(Path(path), skipped))
        return
    parts = Path(path).parts
    num_fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root = str(Path(*parts[:num_fixed])) if num_fixed else "."
    for match in sorted(glob.glob(path, recursive=True)):
        yield from ((file, root) for file in _files_below(Path(match), skipped))


def _below(file: str, root: str) -> str:
    """The path of a file below a root; its name alone where the root is the file itself."""
    if root in (".", ""):
        return file
    return file.removeprefix(root).strip("/") or file.rpartition("/")[2]


def _files_below(path: Path, skipped: Collection[str]) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name not in skipped:
                yield Path(folder, name)


def _files_at(there: Remote, is_folder: bool, skipped: Collection[str]) -> Iterator[Remote]:
    if not is_folder:
        if there.known_size is not None or there.is_file():
            yield there
        return
    below = [child for child, is_inner in there.entries(recursive=True) if not is_inner]
    names = {child: child.key.removeprefix(there.key).strip("/").split("/") for child in below}
    kept = [child for child in below if not any(name.startswith(".") for name in names[child])]
    # as os.walk goes: the files of a folder, then its folders
    kept.sort(key=lambda child: [*((1, name) for name in names[child][:-1]), (0, names[child][-1])])
    yield from (child for child in kept if child.name not in skipped)


def _matching(folder: Remote, parts: list[str]) -> Iterator[tuple[Remote, bool]]:
    """What matches the parts of a pattern below a folder, and whether it is a folder."""
    first, rest = parts[0], parts[1:]
    entries = folder.entries()
    if first == "**":
        yield from _matching(folder, rest) if rest else iter([(folder, True)])
        for child, is_folder in entries:
            if child.name.startswith("."):
                continue
            if is_folder:
                yield from _matching(child, parts)
            elif not rest:
                yield child, False
        return
    for child, is_folder in entries:
        is_shown = not child.name.startswith(".") or first.startswith(".")
        if is_shown and fnmatchcase(child.name, first):
            if not rest:
                yield child, is_folder
            elif is_folder:
                yield from _matching(child, rest)
