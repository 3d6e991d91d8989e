"""Rows of tabular files as JSON objects: CSV, TSV, Excel, Parquet, Arrow (IPC file or stream, Feather), SQLite tables.

A table is read in batches; formats read its rows like the lines of a JSON Lines file. In nested columns, null fields
are left out, since Arrow gives every object of a column the fields of all others. SQLite views are not read: a view
could compute anything. The CSV dialect (separator, encoding, decimal commas) is detected and reported; the user's map
overrides it.
"""

import codecs
import csv
import io
import re
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from pairwright.errors import ConfigError
from pairwright.paths import Place, local_copy, open_binary
from pairwright.paths.parquet_files import parquet_batches, parquet_metadata
from pairwright.records.messages import Json
from pairwright.sources.datasets.row_names import answer_rank, plain_name, prompt_rank, singular
from pairwright.sources.field_map import FieldMap
from pairwright.sources.fields import BadRecord
from pairwright.sources.files import MAX_LINE_BYTES, encoding_of, open_bytes

_PARQUET, _ARROW, _STREAM, _SQLITE, _ZIP = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"SQLite f", b"PK\x03\x04"
_FEATHER_V1 = b"FEA1"
_SEPARATED = (".csv", ".tsv", ".tab")
_EXCEL = (".xlsx", ".xlsm")
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_ROWS_AT_ONCE = 1024
_NUM_SNIFFED = 50  # rows used to detect the CSV dialect
_NUM_TITLES = 8  # rows searched for the names of the columns
_MAX_DEPTH = 64
_CHUNK = 2**20
_MANY_HIGH_BYTES = 0.25  # a larger share of bytes >= 0x80 is no Latin script
# Encodings to suggest: the language, and its letters.
_OTHER_ENCODINGS = {
    "cp932": ("Japanese", "[ぁ-ヿ一-龠、。？！]"),
    "cp949": ("Korean", "[가-힣]"),
    "gb18030": ("Chinese", "[一-龠、。？！，]"),
    "cp1251": ("Cyrillic", "[а-яА-ЯёЁ]"),
}
_COMMA_NUMBER = re.compile(r"[-+]?\d+(?:,\d+)?")
OWN_COLUMNS = ("uid", "kind")  # of the experience table, which store/exported_units.py reads


class Join(msgspec.Struct, frozen=True):
    """A left join of two SQLite tables: `table.column` = `other.key`."""

    table: str
    other: str
    key: str
    column: str


def is_own_parquet(path: Place, magic: bytes) -> bool:
    """Whether a file with one of OWN_PREFIXES is a pairwright payload or table part, not a foreign Parquet file."""
    if not magic.startswith(_PARQUET):
        return True
    try:
        return set(OWN_COLUMNS) <= set(parquet_metadata(path).schema.to_arrow_schema().names)
    except (pa.ArrowException, OSError, ValueError):
        return True  # damaged: the importer reports how


def is_table(path: Place, magic: bytes) -> bool:
    """Whether a file is a table, by its first bytes; CSV, TSV and Excel also by their names."""
    if magic.startswith((_PARQUET, _ARROW, _STREAM, _SQLITE, _FEATHER_V1)):
        return True
    if magic.startswith(_ZIP):
        return _has_ending(path, _EXCEL)
    return _has_ending(path, _SEPARATED) and not magic.lstrip().startswith((b"{", b"["))


def table_rows(
    path: Place, fields: FieldMap, source: "str | Join | None" = None, notes: Counter[str] | None = None
) -> Iterator[Json | BadRecord]:
    """Yield the rows of a table, and BadRecord for an unusable row; raise BadRecord for an unreadable file.

    `source` is the table or join of an SQLite file, if the map names none; `notes` counts findings to report to the
    user, such as a detected encoding.
    """
    with open_bytes(path) as file:
        magic = file.read(8)
    try:
        if magic.startswith(_PARQUET):
            yield from _arrow_rows(parquet_batches(path, None, _ROWS_AT_ONCE))
        elif magic.startswith(_FEATHER_V1):
            raise BadRecord("a Feather file of version 1: write it again with a current pyarrow or pandas")
        elif magic.startswith((_ARROW, _STREAM)):
            with local_copy(path) as local, pa.memory_map(str(local)) as mapped:
                if magic.startswith(_ARROW):
                    book = pa.ipc.open_file(mapped)
                    yield from _arrow_rows(map(book.get_batch, range(book.num_record_batches)))
                else:
                    yield from _arrow_rows(pa.ipc.open_stream(mapped))
        elif magic.startswith(_SQLITE):
            with local_copy(path) as local, closing(open_database(local)) as database:
                yield from _sqlite_rows(database, _named_source(database, fields) or source)
        elif magic.startswith(_ZIP):
            with local_copy(path) as local:
                yield from _excel_rows(str(local), fields.fields.get("records"))
        else:
            yield from _delimited_rows(path, fields, notes)
    except (pa.ArrowException, sqlite3.Error, UnicodeError, csv.Error, zipfile.BadZipFile) as error:
        raise BadRecord(f"cannot be read: {error}") from None


def table_sources(path: Place, fields: FieldMap) -> list[str | Join | None]:
    """Return the possible sources of rows: non-empty tables, then joins of two; [None] if there is no choice.

    Two tables are joined by a declared foreign key, or by a column named like the other table: `messages.session_id` =
    `sessions.id`.
    """
    with open_bytes(path) as file:
        if not file.read(8).startswith(_SQLITE) or "records" in fields:
            return [None]
    try:
        with local_copy(path) as local, closing(open_database(local)) as database:
            columns = _filled_tables(database)
            joins = [join for table in columns for join in _joins_of(database, table, columns)]
    except sqlite3.Error as error:
        raise BadRecord(f"cannot be read: {error}") from None
    return [*columns, *joins] if columns else [None]


def _has_ending(path: Place, endings: tuple[str, ...]) -> bool:
    return path.name.lower().removesuffix(".gz").removesuffix(".zst").endswith(endings)


def _arrow_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Json]:
    for batch in batches:
        # A batch of an Arrow file may be the whole file, so it is converted in slices.
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for row in batch.slice(start, _ROWS_AT_ONCE).to_pylist():
                yield {key: plain_value(value, 0) for key, value in row.items()}


def plain_value(value: Any, depth: int) -> Any:
    """Return a cell as a JSON value: times as text, decimals as numbers, objects without their null fields."""
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


def _excel_rows(path: str, sheet: str | None) -> Iterator[Json | BadRecord]:
    """Yield the rows of a sheet, named by its first row; without `sheet`, only one sheet may have rows."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise BadRecord("an Excel file: pip install 'pairwright[excel]', or save it as CSV") from None
    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except (KeyError, ValueError, OSError) as error:
        raise BadRecord(f"cannot be read: {error}") from None
    with closing(book):
        filled = [
            one.title for one in book.worksheets if any(True for _ in islice(one.iter_rows(values_only=True), 1, 2))
        ]
        if sheet is None and len(filled) != 1:
            raise BadRecord(
                f"a workbook with {len(filled)} sheets that have rows ({', '.join(filled[:10])}); choose "
                "with --map records=SHEET"
            )
        if sheet is not None and sheet not in book.sheetnames:
            raise BadRecord(f"--map records={sheet}: no such sheet; the file has: {', '.join(book.sheetnames[:20])}")
        rows = book[sheet or filled[0]].iter_rows(values_only=True)
        yield from _named_rows(([plain_value(cell, 0) for cell in cells] for cells in rows), is_text=False)


def _named_rows(rows: Iterator[list[Any]], *, is_text: bool) -> Iterator[Json | BadRecord]:
    """Yield rows as objects, named by the first row below a title; an empty cell is null."""
    head = list(islice(rows, _NUM_TITLES))
    first = _header_of(head)
    rows = chain(head[first + 1 :], rows)
    names = ["" if name is None else str(name).strip() for name in (head[first] if head else ())]
    while names and not names[-1]:  # a spreadsheet may have empty trailing columns
        names.pop()
    if len(set(names)) < len(names):
        raise BadRecord("a table with two columns of the same name")
    for number, cells in enumerate(rows, start=first + 2):
        if any(cell not in (None, "") for cell in cells[len(names) :]):
            yield BadRecord(f"more cells than columns: {len(cells)} under {len(names)} names in row {number}")
        elif cells and (is_text or any(cell is not None for cell in cells)):
            yield {name: None if cell == "" else cell for name, cell in zip(names, cells, strict=False)}


def _header_of(rows: list[list[Any]]) -> int:
    """Return the index of the row with the column names: the first, or the first with several cells below a title.

    A spreadsheet writes a title as a row of full width with a single filled cell.
    """
    for number, cells in enumerate(rows):
        if sum(cell not in (None, "") for cell in cells) > 1:
            return number if all(len(title) in (0, len(cells)) for title in rows[:number]) else 0
    return 0


def open_database(path: Path) -> sqlite3.Connection:
    """Open an SQLite file read-only, which requires a URI."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    database.execute("PRAGMA trusted_schema=OFF")
    database.row_factory = sqlite3.Row
    return database


def _filled_tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'")
    names = [row["name"] for row in listed if "VIRTUAL" not in (row["sql"] or "").upper().split("(")[0]]
    filled = [name for name in names if database.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone()]
    return {name: _columns_of(database, name) for name in filled}


def _joins_of(database: sqlite3.Connection, table: str, columns: dict[str, list[str]]) -> Iterator[Join]:
    declared = database.execute(f"PRAGMA foreign_key_list({quoted(table)})").fetchall()
    keys = {row["from"]: (row["table"], row["to"] or "id") for row in declared}
    for column in columns[table]:
        for other in columns:
            if singular(plain_name(other)) + "_id" == plain_name(column) and other != table:
                keys.setdefault(column, (other, "id"))
    for column, (other, key) in keys.items():
        if other in columns and key in columns[other]:
            yield Join(table, other, key, column)


def _named_source(database: sqlite3.Connection, fields: FieldMap) -> str | Join | None:
    table, join = fields.fields.get("records"), fields.fields.get("join")
    columns = _filled_tables(database)
    if table is not None and table not in columns:
        raise BadRecord(f"--map records={table}: no such table with rows; the file has: {', '.join(columns)}")
    if join is None:
        return table
    match = re.fullmatch(r"\s*(.+)\.(\w+)\s*=\s*(\w+)\s*", join)
    if match is None or table is None:
        raise ConfigError(
            f"--map join={join}: expected records=TABLE,join=OTHER.KEY=COLUMN, e.g. join=sessions.id=session_id"
        )
    other, key, column = match.groups()
    for name, wanted in ((other, key), (table, column)):
        if wanted not in columns.get(name, ()):
            raise BadRecord(
                f"--map join={join}: {name} has no column {wanted}; it has {', '.join(columns.get(name, ()))}"
            )
    return Join(table, other, key, column)


def _sqlite_rows(database: sqlite3.Connection, source: str | Join | None) -> Iterator[Json]:
    """Yield the rows of a table or a left join, whose columns of the second table are named `OTHER.COLUMN`."""
    if source is None:
        filled = list(_filled_tables(database))
        if len(filled) != 1:
            raise BadRecord(
                f"an SQLite file with {len(filled)} tables that have rows ({', '.join(filled[:10])}); choose "
                "with --map records=TABLE, and add the columns of a second one with join=OTHER.id=COLUMN"
            )
        source = filled[0]
    if isinstance(source, str):
        names, query = _columns_of(database, source), f"SELECT * FROM {quoted(source)}"
    else:
        other, key = quoted(source.other), quoted(source.key)
        if database.execute(f"SELECT 1 FROM {other} GROUP BY {key} HAVING COUNT(*) > 1 LIMIT 1").fetchone():
            what = f"join: {source.other}.{source.key}"
            raise BadRecord(f"{what} is not unique, so rows of {source.table} would be repeated")
        more = [f"{source.other}.{name}" for name in _columns_of(database, source.other)]
        names, on = [*_columns_of(database, source.table), *more], f"b.{key} = a.{quoted(source.column)}"
        query = f"SELECT a.*, b.* FROM {quoted(source.table)} a LEFT JOIN {other} b ON {on} ORDER BY a.rowid"
    for row in database.execute(query):
        yield {name: plain_value(cell, 0) for name, cell in zip(names, tuple(row), strict=True)}


def _columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    # `PRAGMA table_info` leaves out generated columns.
    return [name for name, *_ in database.execute(f"SELECT * FROM {quoted(table)} LIMIT 0").description]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _delimited_rows(path: Place, fields: FieldMap, notes: Counter[str] | None) -> Iterator[Json | BadRecord]:
    csv.field_size_limit(MAX_LINE_BYTES)
    found: Counter[str] = Counter() if notes is None else notes
    encoding = _encoding_of(path, fields.fields.get("encoding"), found)
    with open_bytes(path) as file, _text_of(file, encoding) as text:
        head = list(islice(text, _NUM_SNIFFED * 4))
    skipped = int(bool(head) and head[0].startswith("sep="))  # written by Excel
    separator = _separator_of(path, head[skipped:], fields.fields.get("delimiter"), found)
    rows = list(islice(csv.reader(head[skipped:], delimiter=separator), _NUM_SNIFFED))
    commas = _comma_columns(rows, fields.fields.get("decimal"), found)
    with open_bytes(path) as file, _text_of(file, encoding) as text:
        lines = csv.reader(islice(text, skipped, None), delimiter=separator)
        for row in _named_rows(lines, is_text=True):
            if isinstance(row, dict) and commas:
                for name in commas:
                    cell = row.get(name)
                    if isinstance(cell, str) and _COMMA_NUMBER.fullmatch(cell.strip()):
                        row[name] = cell.strip().replace(",", ".")
            yield row


@contextmanager
def _text_of(file: IO[bytes], encoding: str) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(file, encoding=encoding, newline="")
    try:
        yield text
    finally:
        text.detach()  # leaves the file open: its opener closes it


def _encoding_of(path: Place, named: str | None, notes: Counter[str]) -> str:
    """Return the encoding of a text file: from its byte order mark, the user's map, or detection (UTF-8, cp1252)."""
    with open_binary(path) as file:
        marked = encoding_of(file.read(4))
    if marked is not None:
        if marked != "utf-8-sig":
            notes[f"files read as {marked.upper()}"] += 1
        return "utf-8"
    if named is not None:
        try:
            return codecs.lookup(named).name
        except LookupError:
            raise ConfigError(f"--map encoding={named}: no such encoding; e.g. utf-8, cp1252, utf-16, cp932") from None
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with open_bytes(path) as file:
        first = chunk = file.read(_CHUNK)
        try:
            while chunk:
                decoder.decode(chunk)
                chunk = file.read(_CHUNK)
            if b"\0" not in first:
                return "utf-8-sig"
        except UnicodeDecodeError:
            pass
    if b"\0" in first[:200]:
        encoding = "utf-16-le" if first[1:2] == b"\0" else "utf-16-be"
        notes["files read as UTF-16 without a byte order mark (--map encoding=NAME overrides)"] += 1
        return encoding
    num_high = sum(byte >= 0x80 for byte in first)
    if num_high > _MANY_HIGH_BYTES * len(first) or not chunk.decode("utf-8", "ignore").isascii():
        likely = sorted(_OTHER_ENCODINGS, key=lambda name: -_share_of_letters(first, name))
        names = ", ".join(f"{name} ({_OTHER_ENCODINGS[name][0]})" for name in likely)
        raise BadRecord(
            f"text that is neither UTF-8 nor Latin-1, most likely --map encoding={likely[0]}; choose with "
            f"--map encoding=NAME, NAME one of {names}"
        )
    notes["files read as Latin-1 (Windows-1252) (--map encoding=NAME overrides)"] += 1
    return "cp1252"


def _share_of_letters(text: bytes, encoding: str) -> float:
    """Return which share of the characters beyond ASCII are letters of the encoding's language; -1 if undecodable."""
    try:
        decoded = codecs.getincrementaldecoder(encoding)().decode(text)  # the last character may be cut
    except UnicodeDecodeError:
        return -1.0
    others = [character for character in decoded if not character.isascii()]
    return len(re.findall(_OTHER_ENCODINGS[encoding][1], decoded)) / max(1, len(others))


def _separator_of(path: Place, lines: list[str], named: str | None, notes: Counter[str]) -> str:
    """Return the separator that gives most rows as many cells as the first row."""
    if named is not None:
        separator = _SEPARATORS.get(named, named)
        if len(separator) != 1:
            raise ConfigError(f"--map delimiter={named}: expected one character, or {', '.join(_SEPARATORS)}")
        return separator
    usual = "\t" if _has_ending(path, (".tsv", ".tab")) else ","
    fits: dict[str, tuple[int, int]] = {}
    for separator in dict.fromkeys((usual, *_SEPARATORS.values())):
        try:
            widths = [len(row) for row in islice(csv.reader(lines, delimiter=separator), _NUM_SNIFFED) if row]
        except csv.Error:
            continue
        if widths and widths[0] > 1:
            fits[separator] = (sum(width == widths[0] for width in widths), widths[0])
    # `max` returns the first of equals: the usual separator.
    best = max(fits, key=lambda separator: fits[separator][0]) if fits else usual
    if best != usual:
        name = next(name for name, separator in _SEPARATORS.items() if separator == best)
        notes[f"files with cells separated by {name} (--map delimiter=comma overrides)"] += 1
    return best


def _comma_columns(rows: list[list[str]], named: str | None, notes: Counter[str]) -> list[str]:
    """Return the columns with decimal commas: all cells are numbers, and a comma is not a thousands separator."""
    if named not in (None, "comma", "point"):
        raise ConfigError(f"--map decimal={named}: expected comma or point")
    columns = []
    rows = rows[_header_of(rows) :]
    for number, name in enumerate(rows[0] if rows and named != "point" else ()):
        cells = [row[number].strip() for row in rows[1:] if number < len(row) and row[number].strip()]
        is_text = prompt_rank(plain_name(name)) is not None or answer_rank(plain_name(name)) is not None
        if is_text or not cells or not all(_COMMA_NUMBER.fullmatch(cell) for cell in cells):
            continue
        with_comma = [cell for cell in cells if "," in cell]
        if named == "comma" or any(len(cell.rpartition(",")[2]) != 3 for cell in with_comma):
            columns.append(name.strip())
    if columns:
        notes[f"columns with decimal commas: {', '.join(columns)} (--map decimal=point overrides)"] += 1
    return columns
