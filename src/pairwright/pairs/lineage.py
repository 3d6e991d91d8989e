"""Lineage: the experience tables that a folder of pairs was built from, found again.

`funnel.json` names them under `tables`: relative to the folder where both are on this machine, so that a run's folder
can be moved, else as an address.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pairwright.errors import TableError
from pairwright.pairs.funnel import FILE_NAME, read_funnel
from pairwright.places import Place, Remote, is_address, place
from pairwright.store.table import Table


def table_reference(table: Table, pairs: Place) -> str:
    """How funnel.json in the folder `pairs` names a table."""
    if isinstance(table.path, Remote) or isinstance(pairs, Remote):
        return str(table.path if isinstance(table.path, Remote) else table.path.absolute())
    return os.path.relpath(table.path.absolute(), pairs.absolute())


def source_tables(pairs: Place, named: Sequence[str] = ()) -> list[Table]:
    """The tables that pairs were built from, as far as they exist: `named` ones, or those that funnel.json names."""
    if named:
        return [Table(place(path), create=False) for path in named]
    folder = pairs.parent if isinstance(pairs, Path) and pairs.is_file() else pairs
    if not (folder / FILE_NAME).exists():
        return []
    tables = []
    for reference in read_funnel(folder).get("tables", []):
        is_relative = isinstance(folder, Path) and not is_address(reference)
        path = folder / reference if is_relative else place(reference)
        try:
            tables.append(Table(path, create=False))
        except TableError:
            continue  # moved or removed: whoever needs a record of it says so
    return tables
