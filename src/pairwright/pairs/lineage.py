"""Lineage: the experience tables that a pairs folder was built from."""

import os
from collections.abc import Sequence

import msgspec

from pairwright.errors import TableError
from pairwright.paths import Place, is_address, place
from pairwright.store.table import Table

LINEAGE_FILE = "lineage.json"


def table_references(tables: Sequence[Table], pairs: Place) -> list[str]:
    """Return the sorted paths of tables as lineage.json stores them: relative to `pairs` if both are local."""
    paths = [table.path.absolute() for table in tables]
    # Relative, so that a run folder can be moved as a whole.
    return sorted(
        str(path) if is_address(path) or is_address(pairs) else os.path.relpath(str(path), str(pairs.absolute()))
        for path in paths
    )


def source_tables(pairs: Place, named: Sequence[str] = ()) -> list[Table]:
    """Open the tables that pairs were built from: those in `named`, or those of lineage.json that still exist."""
    if named:
        return [Table(place(path), create=False) for path in named]
    folder = pairs.parent if pairs.is_file() else pairs
    if not (folder / LINEAGE_FILE).exists():
        return []
    try:
        references = msgspec.json.decode((folder / LINEAGE_FILE).read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.MsgspecError) as error:
        raise TableError(f"{folder / LINEAGE_FILE}: cannot be read: {error}") from error
    tables = []
    for reference in references.get("tables", []):
        is_relative = not is_address(folder) and not is_address(reference)
        path = folder / reference if is_relative else place(reference)
        try:
            tables.append(Table(path, create=False))
        except TableError:
            continue  # moved or removed: callers that need its records report it
    return tables
