"""Files of a path or an address: a file, all files of a folder, or a glob, in the same order for both."""

import glob
import os
import re
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pairwright.paths.addresses import Place, Remote
from pairwright.paths.paths import is_address, place

# Characters that start a wildcard, the same set as `glob.has_magic`
_MAGIC = re.compile(r"[*?\[]")


def list_files(
    text: str, *, skipped: Collection[str] = (), on_error: Callable[[OSError], None] | None = None
) -> list[tuple[Place, str]]:
    """List the files of a path, folder or glob, each with its path relative to the folder or to the root of the glob.
    In folders, `skipped` names are left out. `on_error` is called for folders that cannot be listed."""
    there = place(text) if is_address(text) else None
    if isinstance(there, Remote):
        root = root_of(there).key
        return [(file, _below(file.key, root)) for file in remote_files(there, skipped=skipped)]
    path = text if there is None else str(there)
    return [(file, _below(str(file), root)) for file, root in _local_files(path, skipped, on_error)]


def root_of(there: Remote) -> Remote:
    """Return the part of an address before its first wildcard component; the whole address if it has none."""
    parts = there.key.split("/") if there.key else []
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return there.at("/".join(parts[:plain]))


def remote_files(there: Remote, *, skipped: Collection[str] = ()) -> list[Remote]:
    """List the files of an address, a folder or a glob; in folders, `skipped` names are left out."""
    start = root_of(there)
    pattern = there.key.removeprefix(start.key).strip("/")
    if pattern:
        matches = sorted(_matching(start, pattern.split("/")), key=lambda match: match[0].key)
    else:
        matches = [(there, there.is_dir())]
    files = [file for match, is_folder in matches for file in _files_at(match, is_folder, skipped)]
    if not files:
        start.entries()  # raises if the bucket does not exist
    return files


def _local_files(
    path: str, skipped: Collection[str], on_error: Callable[[OSError], None] | None
) -> Iterator[tuple[Path, str]]:
    """Yield the files of a path or glob, each with the folder that its name is relative to."""
    if os.path.exists(path):
        yield from ((file, str(Path(path))) for file in _files_below(Path(path), skipped, on_error))
        return
    parts = Path(path).parts
    # `parts[:num_fixed]` is the root of the glob: the components before the first wildcard
    num_fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root = str(Path(*parts[:num_fixed])) if num_fixed else "."
    for match in sorted(glob.glob(path, recursive=True)):
        yield from ((file, root) for file in _files_below(Path(match), skipped, on_error))


def _below(file: str, root: str) -> str:
    """Return the path of a file relative to a root; its name if the root is the file itself."""
    if root in (".", ""):
        return file
    return file.removeprefix(root).strip("/") or file.rpartition("/")[2]


def _files_below(
    path: Path, skipped: Collection[str], on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path, onerror=on_error):
        # assigned in place, so that os.walk visits only these folders, in this order
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name not in skipped:
                yield Path(folder, name)


def _files_at(there: Remote, is_folder: bool, skipped: Collection[str]) -> Iterator[Remote]:
    if not is_folder:
        # a size from a listing proves that the file exists, which saves a request
        if there.known_size is not None or there.is_file():
            yield there
        return
    below = [child for child, is_inner in there.entries(recursive=True) if not is_inner]
    # the components of each key below the folder, the file name last
    names = {child: child.key.removeprefix(there.key).strip("/").split("/") for child in below}
    visible = [child for child in below if not any(name.startswith(".") for name in names[child])]
    # in the order of os.walk: files of a folder, then its subfolders
    visible.sort(key=lambda child: [*((1, name) for name in names[child][:-1]), (0, names[child][-1])])
    yield from (child for child in visible if child.name not in skipped)


def _matching(folder: Remote, parts: list[str]) -> Iterator[tuple[Remote, bool]]:
    """Yield (entry, is_folder) for entries below a folder that match the components of a glob."""
    first, rest = parts[0], parts[1:]
    entries = folder.entries()
    if first == "**":  # matches any number of folders, including none
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
        # as in a shell, a wildcard matches a hidden name only if the pattern starts with a dot, too
        is_visible = not child.name.startswith(".") or first.startswith(".")
        if is_visible and fnmatchcase(child.name, first):
            if not rest:
                yield child, is_folder
            elif is_folder:
                yield from _matching(child, rest)
