"""Lineage: the experience tables that a folder of pairs was built from, found again.

`lineage.json` names them: relative to the folder where both are on this machine, so that a run's folder can be moved,
else as an address. It is a file of its own, since what was built does not depend on where the tables were.
"""

import os
from collections.abc import Sequence

import msgspec

from pairwright.errors import TableError
from pairwright.places import Place, is_address, place
from pairwright.store.table import Table

FILE_NAME = "lineage.json"


def table_references(tables: Sequence[Table], pairs: Place) -> list[str]:
    """How the lineage of the folder `pairs` names tables, sorted."""
    return sorted(_reference(table.path, pairs) for table in tables)


def _reference(table: Place, pairs: Place) -> str:
    if is_address(table) or is_address(pairs):
        return str(table.absolute())
    return os.path.relpath(str(table.absolute()), str(pairs.absolute()))


def source_tables(pairs: Place, named: Sequence[str] = ()) -> list[Table]:
    """The tables that pairs were built from, as far as they exist: `named` ones, or those that their lineage names."""
    if named:
        return [Table(place(path), create=False) for path in named]
    folder = pairs.parent if pairs.is_file() else pairs
    if not (folder / FILE_NAME).exists():
        return []
    try:
        references = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.MsgspecError) as error:
        raise TableError(f"{folder / FILE_NAME}: cannot be read: {error}") from error
    tables = []
    for reference in references.get("tables", []):
        is_relative = not is_address(folder) and not is_address(reference)
        path = folder / reference if is_relative else place(reference)
        try:
            tables.append(Table(path, create=False))
        except TableError:
            continue  # moved or removed: whoever needs a record of it says so
    return tables
