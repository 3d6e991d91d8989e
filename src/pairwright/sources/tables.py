"""Rows of tabular files as JSON objects: CSV, TSV, Parquet, Arrow (IPC file or stream, Feather), SQLite tables.

A table is read in batches, never as a whole. Its rows then go to the formats, as the lines of a JSON Lines file do. In
nested columns, null fields are left out: Arrow gives every object of a column the fields of all others. A text cell
that holds a JSON list of messages is decoded by the readers. Only real tables of an SQLite file are read: a view could
compute anything.
"""

import csv
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any

import pyarrow as pa

from pairwright.paths import Place, local_copy
from pairwright.paths.paths import parquet_batches, parquet_metadata
from pairwright.records.messages import Json
from pairwright.sources.field_map import FieldMap
from pairwright.sources.fields import BadRecord
from pairwright.sources.files import MAX_LINE_BYTES, open_bytes

_PARQUET, _ARROW, _STREAM, _SQLITE = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"SQLite f"
_FEATHER_V1 = b"FEA1"
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_ROWS_AT_ONCE = 1024
_MAX_DEPTH = 64
OWN_COLUMNS = ("uid", "kind")  # of the experience table, which store/import_task.py reads


def is_own_parquet(path: Place, magic: bytes) -> bool:
    """Whether a file with one of our own prefixes is a payload or a part of a table, not somebody's Parquet file."""
    if not magic.startswith(_PARQUET):
        return True
    try:
        return set(OWN_COLUMNS) <= set(parquet_metadata(path).schema.to_arrow_schema().names)
    except (pa.ArrowException, OSError, ValueError):
        return True  # damaged: the importer says how


def is_table(path: Place, magic: bytes) -> bool:
    """Whether a file is a table, by its first bytes; CSV and TSV by their names."""
    if magic.startswith((_PARQUET, _ARROW, _STREAM, _SQLITE, _FEATHER_V1)):
        return True
    return _separator(path) is not None and not magic.lstrip().startswith((b"{", b"["))


def table_rows(path: Place, fields: FieldMap) -> Iterator[Json | BadRecord]:
    """Yield the rows of a table, and BadRecord for one that cannot be used; raise it for a file that cannot be read.

    Args:
        path: The file.
        fields: The user's map; its `records` names the table of an SQLite file.
    """
    with open_bytes(path) as file:
        magic = file.read(8)
    try:
        if magic.startswith(_PARQUET):
            yield from _arrow_rows(parquet_batches(path, None, _ROWS_AT_ONCE))
        elif magic.startswith(_FEATHER_V1):
            raise BadRecord("a Feather file of version 1: write it again with a current pyarrow or pandas")
        elif magic.startswith((_ARROW, _STREAM)):
            with local_copy(path) as local, pa.memory_map(str(local)) as source:
                yield from _arrow_rows(_ipc_batches(source, is_file=magic.startswith(_ARROW)))
        elif magic.startswith(_SQLITE):
            with local_copy(path) as local:
                yield from _sqlite_rows(str(local), fields.fields.get("records"))
        else:
            with open_bytes(path) as file:
                yield from _delimited_rows(file, _separator(path) or ",")
    except (pa.ArrowException, sqlite3.Error, UnicodeError, csv.Error) as error:
        raise BadRecord(f"cannot be read: {error}") from None


def _separator(path: Place) -> str | None:
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((separator for suffix, separator in _SEPARATORS.items() if name.endswith(suffix)), None)


def _ipc_batches(source: Any, *, is_file: bool) -> Iterator[pa.RecordBatch]:
    if not is_file:
        yield from pa.ipc.open_stream(source)
        return
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def _arrow_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Json]:
    for batch in batches:
        # A batch of an Arrow file may be the whole file: converted in slices.
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for row in batch.slice(start, _ROWS_AT_ONCE).to_pylist():
                yield {key: plain_value(value, 0) for key, value in row.items()}


def plain_value(value: Any, depth: int) -> Any:
    """Return a cell as JSON has it: times as text, decimals as numbers, objects without their null fields."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if depth > _MAX_DEPTH:
        raise BadRecord("nested too deep to read")
    if isinstance(value, dict):
        return {str(key): plain_value(item, depth + 1) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain_value(item, depth + 1) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
        return {"type": "bytes", "size": len(value)}
    return str(value)


def _sqlite_rows(path: str, table: str | None) -> Iterator[Json]:
    """Yield the rows of a table of an SQLite file; without a name, it must be the only one that has rows."""
    with closing(sqlite3.connect(f"file:{path.replace('%', '%25').replace('?', '%3f')}?mode=ro", uri=True)) as database:
        database.execute("PRAGMA trusted_schema=OFF")
        database.row_factory = sqlite3.Row
        listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'")
        names = [row["name"] for row in listed if "VIRTUAL" not in (row["sql"] or "").upper().split("(")[0]]
        if table is None:
            filled = [name for name in names if database.execute(f"SELECT 1 FROM {_quoted(name)} LIMIT 1").fetchone()]
            if len(filled) != 1:
                raise BadRecord(
                    f"an SQLite file with {len(filled)} tables that have rows ({', '.join(filled[:10])}); --map "
                    "records=TABLE decides"
                )
            table = filled[0]
        elif table not in names:
            raise BadRecord(f"--map records={table}: no such table; the file has: {', '.join(names[:20])}")
        for row in database.execute(f"SELECT * FROM {_quoted(table)}"):
            yield {key: plain_value(row[key], 0) for key in row.keys()}  # noqa: SIM118


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _delimited_rows(file: IO[bytes], separator: str) -> Iterator[Json | BadRecord]:
    """Yield the rows of a CSV or TSV file, with the names of its first line; an empty cell is null."""
    csv.field_size_limit(MAX_LINE_BYTES)
    # utf-8-sig: spreadsheets write a byte order mark
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        lines = csv.reader(text, delimiter=separator)
        names = next(lines, [])
        if len(set(names)) < len(names):
            raise BadRecord("a table with two columns of one name")
        for number, cells in enumerate(lines, start=2):
            if len(cells) > len(names):
                yield BadRecord(f"more cells than columns: {len(cells)} under {len(names)} names in row {number}")
            elif cells:
                yield {name: cell if cell else None for name, cell in zip(names, cells, strict=False)}
    finally:
        text.detach()  # the file is closed by whoever opened it
