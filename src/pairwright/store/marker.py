"""The marker `table.json`: it says that a folder is an experience table, and of which version.

It also has the labels of imported files (file_labels.py).
"""

from typing import Any

import msgspec

from pairwright.errors import TableError
from pairwright.places import Place, list_names, write_bytes

MARKER = "table.json"
_VERSION = 1


def check_table(folder: Place, *, create: bool) -> None:
    """See that a folder is a table of this version; with `create` one that is empty or not there becomes one."""
    marker = folder / MARKER
    if not marker.exists():
        if folder.is_file():
            raise TableError(f"{folder}: a file, and a table is a folder: choose another name")
        names = list_names(folder, missing_ok=True)
        if not create:
            raise TableError(f"{folder}: no experience table here; make one with `pairwright import ... -o {folder}`")
        if any(not name.startswith(".") for name in names):
            raise TableError(f"{folder}: not empty and not an experience table: choose another folder")
        write_marker(folder, {"format": "pairwright-experience", "version": _VERSION})
    version = read_marker(folder).get("version")
    if version != _VERSION:
        raise TableError(f"{marker}: version {version!r}, this release reads {_VERSION}: upgrade pairwright")


def read_marker(folder: Place) -> dict[str, Any]:
    """What the marker of a table says."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, OSError) as error:
        raise TableError(f"{folder / MARKER}: cannot be read: {error}") from error


def write_marker(folder: Place, fields: dict[str, Any]) -> None:
    """Put a marker in place of the one that is there, whole and synced."""
    try:
        write_bytes(folder / MARKER, msgspec.json.encode(fields))
    except OSError as error:
        raise TableError(f"{folder}: no table can be made here: {error.strerror or error}") from error
