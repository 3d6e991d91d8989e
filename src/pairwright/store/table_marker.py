"""The marker `table.json`: identifies an experience table and its version."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from pairwright.errors import TableError
from pairwright.paths import Place, list_names, write_bytes

MARKER = "table.json"
_VERSION = 1


def check_table(folder: Place, *, create: bool) -> None:
    """Raise TableError unless a folder is a table of this version; `create` makes one in an empty or missing folder."""
    marker = folder / MARKER
    if not marker.exists():
        if folder.is_file():
            raise TableError(
                f"{folder}: a file, but a table is a folder: choose another name"
                if create
                else f"{folder}: a file, not an experience table; import it first: pairwright import {folder} -o DIR"
            )
        names = list_names(folder, missing_ok=True)
        if not create:
            if "pairs.parquet" in names:
                raise TableError(
                    f"{folder}: a pairs table, expected an experience table; with pairs, continue with pairwright "
                    f"tokens {folder} --tokenizer MODEL -o DIR, or pairwright export {folder} --to trl -o FILE"
                )
            raise TableError(
                f"{folder}: no experience table here; make one with `pairwright import TRACES -o {folder}`"
            )
        if any(not name.startswith(".") for name in names):
            raise TableError(f"{folder}: not empty and not an experience table: choose another folder")
        # This time is passed to templates that print a date, for records without a date.
        now = datetime.now(UTC).replace(microsecond=0, tzinfo=None).isoformat()
        write_marker(folder, {"format": "pairwright-experience", "version": _VERSION, "created": now})
    version = read_marker(folder).get("version")
    if version != _VERSION:
        raise TableError(f"{marker}: version {version!r}, this release reads {_VERSION}: upgrade pairwright")


def read_marker(folder: Place) -> dict[str, Any]:
    """Read the marker of a table."""
    try:
        return msgspec.json.decode((folder / MARKER).read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, OSError) as error:
        raise TableError(f"{folder / MARKER}: cannot be read: {error}") from error


def write_marker(folder: Place, fields: dict[str, Any]) -> None:
    """Write or replace the marker of a table atomically."""
    try:
        write_bytes(folder / MARKER, msgspec.json.encode(fields))
    except OSError as error:
        raise TableError(f"{folder}: a table cannot be created here: {error.strerror or error}") from error
