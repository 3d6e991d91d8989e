"""Read files of any supported format, tables (CSV, Parquet, SQLite ...) too: detect, split into units, read each unit.

The format is detected from the content: magic bytes first (zip, Trinity payload), then each reader's `matches` on the
first units. Reading is streaming; unusable records are yielded as Rejected and never stop it.
"""

import csv
import io
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import IO, Any, Literal

import msgspec
import pyarrow as pa

from pairwright.errors import CodecError, ConfigError, RecordError, SourceError
from pairwright.paths import Place, local_copy
from pairwright.paths.paths import parquet_batches, parquet_metadata
from pairwright.records.experience import Experience
from pairwright.records.json_text import encode
from pairwright.records.messages import Json
from pairwright.sources import BINARY_READERS, OWN_PREFIXES, READERS
from pairwright.sources.datasets.pairwright_rows import NAME as PAIRWRIGHT
from pairwright.sources.datasets.rows import NAME as ROWS
from pairwright.sources.field_map import FieldMap, missing_fields
from pairwright.sources.fields import BadRecord, items
from pairwright.sources.files import (
    BROKEN_STREAM,
    MAX_LINE_BYTES,
    Unit,
    document,
    first_items,
    is_json_lines,
    line_units,
    line_values,
    open_bytes,
    value_units,
)
from pairwright.sources.format import Format, Options, Origin, PartOfAnother, Record, Rejected
from pairwright.sources.rollouts.trinity import NAME as TRINITY
from pairwright.sources.rollouts.trinity_buffer import MAGIC as SQLITE
from pairwright.sources.rollouts.trinity_buffer import is_trinity_buffer
from pairwright.sources.shapes.plain_rows import find_errors

# Rows of tabular files as JSON objects: CSV, TSV, Parquet, Arrow (IPC file or stream, Feather), SQLite tables.
#
# A table is read in batches, never as a whole. Its rows then go to the formats, as the lines of a JSON Lines file do.
# In nested columns, null fields are left out: Arrow gives every object of a column the fields of all others. A text
# cell that holds a JSON list of messages is decoded by the readers. Only real tables of an SQLite file are read: a
# view could compute anything.


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


__all__ = ["NO_OPTIONS", "Layout", "binary_units", "detect", "file_units", "find_errors", "read_file", "read_units"]
# Number of units sampled to detect a format, and characters of a rejected unit kept in quarantine.
_SAMPLE = 64
_RAW_CHARACTERS = 2000
NO_OPTIONS = Options()
NOTHING_READ = "its reader found neither a record nor a reason to refuse one"


class Layout(msgspec.Struct, frozen=True):
    """Detected layout of a file: its format, the variant that reads it, and its shape.

    "lines" is JSON Lines, "document" a single JSON value, "values" several values that are no lines of their own,
    "table" a file of rows (sources/reading.py).
    """

    format: str
    variant: int = 0
    shape: Literal["lines", "document", "values", "binary", "table"] = "document"

    @property
    def reader(self) -> Format:
        return READERS[self.format][self.variant]

    @property
    def splits(self) -> bool:
        """Whether ranges of the file can be read independently."""
        return self.shape == "lines" and self.reader.unit == "record"


def detect(path: Place, format_name: str = "auto", options: Options = NO_OPTIONS) -> Layout | Rejected:
    """Detect the layout of a file; return Rejected with the reason if there is none.

    If `format_name` is not "auto", only that format is considered; a field map is read by the format `rows` alone.
    """
    if options.map:
        if format_name not in ("auto", ROWS):
            raise ConfigError(f"--map names the fields of rows: leave out --format {format_name}")
        format_name = ROWS
    if format_name != "auto" and format_name not in READERS:
        raise ConfigError(f"--format {format_name!r}: expected auto or one of {', '.join(sorted(READERS))}")
    try:
        with open_bytes(path) as file:
            magic = file.read(8)
        if not magic.strip():
            return Rejected(str(path), None, "an empty file")
        if magic.startswith(OWN_PREFIXES) and is_own_parquet(path, magic):
            return Layout(PAIRWRIGHT, shape="binary")
        if magic.startswith(SQLITE):
            with local_copy(path) as local:
                if is_trinity_buffer(local):
                    return Layout(TRINITY, shape="binary")
        for name, (prefix, _) in BINARY_READERS.items():
            if magic.startswith(prefix):
                return Layout(name, shape="binary")
        if is_table(path, magic):
            rows = [row for row in islice(table_rows(path, options.map), _SAMPLE) if isinstance(row, dict)]
            return _checked(path, _layout(rows, rows, "table", format_name), rows, format_name, options)
        return _detect_json(path, format_name, options)
    except BadRecord as error:
        return Rejected(str(path), None, str(error))
    except BROKEN_STREAM as error:
        return Rejected(str(path), None, f"cannot be read: {error}")


def read_file(path: Place, layout: Layout, options: Options) -> Iterator[Experience | Rejected]:
    """Yield all experiences of a file, and Rejected for input that cannot be used."""
    if layout.shape == "binary":
        units: Iterable[Unit | Experience | Rejected] = binary_units(path, layout)
    else:
        units = file_units(path, layout, options=options, by_type=True)
    for record in read_units(units, layout, options):
        if isinstance(record, Experience | Rejected):  # no ReadyRow, since `as_row` is not set
            yield record


def read_units(
    units: Iterable[Unit | Experience | Rejected],
    layout: Layout,
    options: Options,
    finish: Callable[[Experience, Any, Origin | None], Experience] | None = None,
) -> Iterator[Record | Rejected | PartOfAnother]:
    """Read experiences from units, converting BadRecord and RecordError to Rejected.

    `finish` is called with each experience, the decoded unit it was read from and its origin (None for units that
    already are experiences) and returns the experience to yield, or raises BadRecord.
    """
    read, name = layout.reader.read, layout.format
    for unit in units:
        if isinstance(unit, Experience | Rejected):
            try:
                yield unit if finish is None or isinstance(unit, Rejected) else finish(unit, None, None)
            except BadRecord as error:
                file = unit.source.file if isinstance(unit, Experience) and unit.source else "a payload"
                yield Rejected(file, None, str(error), name)
            continue
        origin, value = unit
        try:
            is_empty = True
            for record in read(value, origin, options):
                is_empty = False
                yield finish(record, value, origin) if finish and isinstance(record, Experience) else record
            if is_empty:
                raise BadRecord(NOTHING_READ)
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, origin.line, str(error), name, _raw(value))
        except RecursionError:
            yield Rejected(origin.file, origin.line, "nested too deep to read", name, _raw(value))


def file_units(
    path: Place,
    layout: Layout,
    label: str = "",
    repairs: Counter[str] | None = None,
    *,
    options: Options = NO_OPTIONS,
    by_type: bool = False,
) -> Iterator[Unit | Rejected]:
    """Yield the units of a JSON file, a JSON Lines file or a table; a damaged file ends with Rejected.

    `repairs` counts repairs of text. With `by_type` the lines of a session are as the reader's `decode` has them, which
    nobody else knows.
    """
    try:
        if layout.shape == "table":
            yield from _table_units(path, layout, label, options)
        else:
            yield from _file_units(path, layout, label, repairs, options, by_type)
    except BadRecord as error:
        yield Rejected(str(path), None, str(error), layout.format)
    except BROKEN_STREAM as error:
        yield Rejected(str(path), None, f"cannot be read: {error}", layout.format)


def _table_units(path: Place, layout: Layout, label: str, options: Options) -> Iterator[Unit | Rejected]:
    """Yield the rows of a table, or all of them as one unit, depending on the reader's `unit`."""
    rows = []
    for number, row in enumerate(table_rows(path, options.map)):
        if isinstance(row, BadRecord):
            yield Rejected(str(path), None, str(row), layout.format)
        elif layout.reader.unit == "file":
            rows.append(row)
        else:
            yield Origin(str(path), None, number, label), row
    if layout.reader.unit == "file":
        yield Origin(str(path), None, 0, label), rows


def _file_units(
    path: Place, layout: Layout, label: str, repairs: Counter[str] | None, options: Options, by_type: bool
) -> Iterator[Unit | Rejected]:
    """Yield records or the whole file, depending on the layout and the reader's `unit`."""
    file = str(path)
    if layout.splits:
        yield from line_units(path, decode=layout.reader.decode, label=label, repairs=repairs)
    elif layout.shape == "values" and layout.reader.unit == "record":
        yield from value_units(path, label, repairs)
    elif layout.shape in ("lines", "values"):
        # The format reads the file as one unit: a session is all its lines.
        values = []
        if layout.shape == "lines":
            units = line_values(path, layout.reader.decode if by_type else msgspec.json.decode, repairs)
        else:
            units = (unit if isinstance(unit, Rejected) else unit[1] for unit in value_units(path, "", repairs))
        for value in units:
            if isinstance(value, Rejected):
                yield value
            else:
                values.append(value)
        yield Origin(file, 1, 0, label), values
    else:
        value = document(path, repairs)
        if isinstance(value, Rejected):
            yield value
        elif "records" in options.map:
            for number, item in enumerate(_records_in(value, options)):
                yield Origin(file, None, number, label), item
        # Each item of a list is a record, unless the list itself is one (a bare list of messages).
        elif layout.reader.unit == "record" and isinstance(value, list) and not layout.reader.matches(value):
            for number, item in enumerate(value):
                yield Origin(file, None, number, label), item
        else:
            yield Origin(file, None, 0, label), value


def _detect_json(path: Place, format_name: str, options: Options) -> Layout | Rejected:
    """Detect the layout of a JSON or JSON Lines file from its first records."""
    layout: Layout | None = None
    records: list[Any]
    if is_json_lines(path):
        units = list(islice(line_units(path), _SAMPLE))
        records = [unit[1] for unit in units if not isinstance(unit, Rejected)]
        if not records and isinstance(units[0], Rejected):
            return units[0]  # no line can be decoded: why not says more than that no format is known
        layout = _layout(records, records, "lines", format_name)
    else:
        # mostly tells enough of a large list, which is decoded only once then
        first = None if "records" in options.map else first_items(path, _SAMPLE)
        if first is not None:
            # The list itself may be the record, so it stands before its items.
            records = [first, *first]
            layout = _layout(first, records, "document", format_name)
        if layout is None:
            whole = document(path)
            if isinstance(whole, Rejected):
                records = [unit[1] for unit in islice(value_units(path), _SAMPLE) if not isinstance(unit, Rejected)]
                if len(records) < 2:
                    return whole
                layout = _layout(records, records, "values", format_name)
            else:
                if "records" in options.map:
                    whole = _records_in(whole, options)
                records = [whole, *whole[:_SAMPLE]] if isinstance(whole, list) else [whole]
                layout = _layout(whole, records, "document", format_name)
    return _checked(path, layout, records, format_name, options)


def _checked(
    path: Place, layout: Layout | None, records: list[Any], format_name: str, options: Options
) -> Layout | Rejected:
    """Return the layout, or why there is none, or why its reader or the user's map does not fit these records."""
    if layout is None and format_name != "auto":
        return Rejected(str(path), None, f"does not look like {format_name}", format_name)
    if layout is None:
        way_out = f"pairwright import --explain {path} shows what it has and a --map that may read it"
        return Rejected(str(path), None, f"no known format: {way_out}")
    rows = [record for record in records if isinstance(record, dict)]
    reason = missing_fields(rows, options.map) if options.map else layout.reader.refuse(rows, options)
    return layout if reason is None else Rejected(str(path), None, reason, layout.format)


def _records_in(value: Any, options: Options) -> list[Any]:
    """Return the records inside a document, where the user's map says they are."""
    return items(options.map.value(value, "records"), f"--map records={options.map.fields['records']}")


def _layout(
    whole: Any, records: list[Any], shape: Literal["lines", "document", "values", "table"], format_name: str
) -> Layout | None:
    """Return the layout of the first format that matches the whole file or one of its records."""
    for name, variants in READERS.items():
        if format_name not in ("auto", name):
            continue
        for variant, reader in enumerate(variants):
            if reader.matches(whole) if reader.unit == "file" else any(map(reader.matches, records)):
                return Layout(name, variant, shape)
            # A looser test, for rows that several formats share: only the user can say which is meant.
            if format_name == name and any(map(reader.matches_named, records)):
                return Layout(name, variant, shape)
    return None


def binary_units(path: Place, layout: Layout, label: str = "") -> Iterator[Unit | Experience | Rejected]:
    """Yield the units of a binary file, or its experiences if the format stores them directly."""
    if layout.format not in BINARY_READERS:
        raise SourceError(f"{path}: pairwright bytes and tables are read by the importer alone")
    _, units_of = BINARY_READERS[layout.format]
    file = path
    try:
        with local_copy(path) as file:
            for number, value in enumerate(units_of(file)):
                if isinstance(value, Rejected):
                    yield msgspec.structs.replace(value, file=str(path))
                else:
                    yield value if isinstance(value, Experience) else (Origin(str(path), None, number, label), value)
    # The error names the temporary copy; the user knows only the path that was asked for.
    except (BadRecord, CodecError, RecordError, SourceError, *BROKEN_STREAM) as error:
        reason = str(error).replace(str(file), str(path)).removeprefix(f"{path}: ")
        yield Rejected(str(path), None, reason, layout.format)


def _raw(value: Any) -> str | None:
    try:
        return encode(value).decode()[:_RAW_CHARACTERS]
    except (TypeError, ValueError, RecursionError):
        return None
