"""Read files of any supported format: detect it, split the file into units, read each unit.

The format is detected from the content: magic bytes first (zip, Trinity payload), then each reader's `matches` on the
first units. Reading is streaming; unusable records are yielded as Rejected and never stop it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Literal, TypeVar, cast

import msgspec

from pairwright.errors import CodecError, ConfigError, RecordError, SourceError
from pairwright.paths import Place, local_copy
from pairwright.records.experience import Experience
from pairwright.sources import BINARY_READERS, OWN_PREFIXES, all_formats, find_format
from pairwright.sources.assemble import UNREADABLE, Assembler, Found, Reader, raw_text, why_unreadable
from pairwright.sources.datasets.message_rows import NAME as MESSAGE_ROWS
from pairwright.sources.datasets.pairwright_rows import NAME as PAIRWRIGHT
from pairwright.sources.datasets.row_names import is_score_name
from pairwright.sources.datasets.rows import NAME as ROWS
from pairwright.sources.fields import BadRecord, items, objects_in
from pairwright.sources.files import (
    BROKEN_STREAM,
    Unit,
    document,
    first_items,
    is_json_lines,
    line_batches,
    line_units,
    open_bytes,
    value_units,
)
from pairwright.sources.format import Format, Options, Origin, PartOfAnother, Rejected
from pairwright.sources.rollouts.trinity import NAME as TRINITY
from pairwright.sources.rollouts.trinity_buffer import MAGIC as SQLITE
from pairwright.sources.rollouts.trinity_buffer import is_trinity_buffer
from pairwright.sources.shapes.row_fields import REWARD_KEYS
from pairwright.sources.tables import Join, is_own_parquet, is_table, table_rows, table_sources

_SAMPLE = 64  # units used for detection
_NUM_AT_ONCE = 64  # values of a batch
NO_OPTIONS = Options()
AnyUnit = Unit | Experience | Rejected  # binary files may store experiences
T = TypeVar("T")
NOTHING_READ = "its reader found neither a record nor a reason to refuse one"


class Layout(msgspec.Struct, frozen=True):
    """Detected layout of a file: its format, the variant that reads it, and its shape.

    "lines" is JSON Lines, "document" a single JSON value, "values" several values that are not one per line, "table" a
    file of rows (sources/tables.py); `table` selects a table of an SQLite file.
    """

    format: str
    variant: int = 0
    shape: Literal["lines", "document", "values", "binary", "table"] = "document"
    table: str | Join | None = None

    @property
    def reader(self) -> Format:
        return find_format(self.format)[self.variant]

    @property
    def splits(self) -> bool:
        """Whether ranges of the file can be read independently."""
        return self.shape == "lines" and self.reader.unit == "record"


def detect(path: Place, format_name: str = "auto", options: Options = NO_OPTIONS) -> Layout | Rejected:
    """Detect the layout of a file; return Rejected with the reason if there is none.

    If `format_name` is not "auto", only that format is considered. If the field map names fields, only `rows` is
    considered, or `message-rows` if the map names the session. Binary files are always detected by their magic bytes.
    """
    if options.map.names_fields:
        if format_name not in ("auto", ROWS, MESSAGE_ROWS):
            raise ConfigError(f"--map names the fields of rows: leave out --format {format_name}")
        format_name = MESSAGE_ROWS if "session" in options.map else ROWS
    if format_name != "auto":
        find_format(format_name)
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
        if is_table(path, magic):
            return _detect_table(path, format_name, options)
        for name, (prefix, _) in BINARY_READERS.items():
            if magic.startswith(prefix):
                return Layout(name, shape="binary")
        return _detect_json(path, format_name, options)
    except BadRecord as error:
        return Rejected(str(path), None, str(error))
    except BROKEN_STREAM as error:
        return Rejected(str(path), None, f"cannot be read: {error}")


def read_file(path: Place, layout: Layout, options: Options) -> Iterator[Experience | Rejected]:
    """Yield all experiences of a file, and Rejected for input that cannot be used."""
    for record in read_units(unit_batches(path, layout, options=options), layout, options):
        if not isinstance(record, PartOfAnother):
            yield record


def read_units(
    batches: Iterable[Sequence[AnyUnit]], layout: Layout, options: Options, assembler: Assembler | None = None
) -> Iterator[Experience | Rejected | PartOfAnother]:
    """Yield the records of batches of units; unusable ones are yielded as Rejected.

    Many units are read before their records are assembled: running each step over many records is faster than running
    all steps on one record after the other (docs/benchmarks.md).
    """
    assembler = assembler or Assembler(options)
    for batch in batches:
        for some in in_batches(_found(batch, layout, options)):
            for found in some:
                assembler.add(*found)
            if assembler.is_full:
                yield from assembler.drain()
    yield from assembler.drain()


def _found(units: Sequence[AnyUnit], layout: Layout, options: Options) -> Iterator[tuple[Origin, Found, Any]]:
    read = cast(Reader, layout.reader.read).parts
    for unit in units:
        if isinstance(unit, Experience | Rejected):  # from a binary file, or could not be decoded
            source = unit.source if isinstance(unit, Experience) else None
            yield Origin("a payload" if source is None else source.file), unit, None
            continue
        origin, value = unit
        is_empty = True
        try:
            for found in read(value, origin, options):
                is_empty = False
                yield origin, found, value
            if is_empty:
                raise BadRecord(NOTHING_READ)
        except (BadRecord, RecordError, *UNREADABLE) as error:
            reason, raw = why_unreadable(error), raw_text(value)
            yield origin, Rejected(origin.file, origin.line, reason, layout.format, raw), value


def in_batches(values: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(values)
    while batch := list(islice(rest, _NUM_AT_ONCE)):
        yield batch


def file_units(
    path: Place,
    layout: Layout,
    label: str = "",
    repairs: Counter[str] | None = None,
    *,
    options: Options = NO_OPTIONS,
) -> Iterator[AnyUnit]:
    """Yield the units of a file; a damaged file ends with Rejected. `repairs` counts repairs of text."""
    is_whole = layout.reader.unit == "file"
    try:
        units: Iterable[AnyUnit]
        if layout.shape == "binary":
            units = binary_units(path, layout, label)
        elif layout.shape == "document":
            units = _document_units(path, layout, label, repairs, options)
        elif layout.shape == "table":
            units = _table_units(path, layout, label, options, repairs)
        elif layout.shape == "values":
            units = value_units(path, label, repairs)
        elif is_whole:
            units = line_units(path, repairs=repairs)
        else:
            units = chain.from_iterable(line_batches(path, decode=layout.reader.decode, label=label, repairs=repairs))
        if is_whole and layout.shape not in ("binary", "document"):
            values = []
            for unit in units:
                if isinstance(unit, tuple):
                    values.append(unit[1])
                else:
                    yield unit
            units = [(Origin(str(path), None if layout.shape == "table" else 1, 0, label), values)]
        yield from units
    except (BadRecord, *BROKEN_STREAM) as error:
        yield _damage(path, layout, error)


def unit_batches(
    path: Place,
    layout: Layout,
    label: str = "",
    repairs: Counter[str] | None = None,
    *,
    options: Options = NO_OPTIONS,
    start: int = 0,
    stop: int | None = None,
    line: int = 1,
) -> Iterator[Sequence[AnyUnit]]:
    """Yield the units of a file in batches: blocks of lines if the layout splits, else up to 64 units.

    If the layout splits, only lines that begin in [start, stop) are read; `line` is the number of the first such line.
    """
    if not layout.splits:
        yield from in_batches(file_units(path, layout, label, repairs, options=options))
        return
    decode = layout.reader.decode
    try:
        yield from line_batches(path, start=start, stop=stop, line=line, decode=decode, label=label, repairs=repairs)
    except BROKEN_STREAM as error:
        yield [_damage(path, layout, error)]


def _damage(path: Place, layout: Layout, error: Exception) -> Rejected:
    reason = str(error) if isinstance(error, BadRecord) else f"cannot be read: {error}"
    return Rejected(str(path), None, reason, layout.format)


def _table_units(
    path: Place, layout: Layout, label: str, options: Options, notes: Counter[str] | None
) -> Iterator[Unit | Rejected]:
    for number, row in enumerate(table_rows(path, options.map, layout.table, notes)):
        if isinstance(row, BadRecord):
            yield Rejected(str(path), None, str(row), layout.format)
        else:
            yield Origin(str(path), None, number, label), row


def _document_units(
    path: Place, layout: Layout, label: str, repairs: Counter[str] | None, options: Options
) -> Iterator[Unit | Rejected]:
    """Yield the records of a JSON document, or the document, depending on the user's map and the reader's `unit`."""
    value = document(path, repairs)
    if isinstance(value, Rejected):
        yield value
        return
    if "records" in options.map:
        value = _records_in(value, options)
    # Each item of a list is a record, unless the list itself is one (a bare list of messages).
    elif layout.reader.unit == "file" or not isinstance(value, list) or layout.reader.matches(value):
        value = [value]
    for number, item in enumerate(value):
        yield Origin(str(path), None, number, label), item


def _detect_table(path: Place, format_name: str, options: Options) -> Layout | Rejected:
    """Detect the layout of a table file; in an SQLite file, a format must read exactly one table or join of two."""
    found: list[tuple[Layout, list[Any]]] = []
    sources = table_sources(path, options.map)
    rows: list[Any] = []
    for source in sources:
        # Join two tables if neither is readable alone, or if the other one has the score.
        alone = {layout.table: some for layout, some in found if not isinstance(layout.table, Join)}
        if isinstance(source, Join) and alone and (source.table not in alone or _has_score(alone[source.table])):
            continue
        rows = objects_in(list(islice(table_rows(path, options.map, source), _SAMPLE)))
        layout = _layout(rows, rows, "table", format_name)
        if layout is None or (isinstance(source, Join) and alone and not _has_score(rows)):
            continue
        if isinstance(source, Join) and source.table in alone:
            found = [one for one in found if one[0].table != source.table]
        found.append((msgspec.structs.replace(layout, table=source), rows))
    if not found and len(sources) > 1:
        list(islice(table_rows(path, options.map), 1))  # raises the error that names the tables
    if len(found) > 1:
        raise BadRecord(f"{len(found)} tables could be the records; choose with {' or '.join(map(_records_of, found))}")
    layout, rows = found[0] if found else (None, rows)
    return _checked(path, layout, rows, format_name, options)


def _has_score(rows: list[Any]) -> bool:
    return any(is_score_name(key) or key in REWARD_KEYS for key in rows[0])


def _records_of(found: tuple[Layout, list[Any]]) -> str:
    table = found[0].table
    join = f",join={table.other}.{table.key}={table.column}" if isinstance(table, Join) else ""
    return f"--map records={table.table if isinstance(table, Join) else table}{join}"


def _detect_json(path: Place, format_name: str, options: Options) -> Layout | Rejected:
    layout: Layout | None = None
    records: list[Any]
    if is_json_lines(path):
        units = list(islice(line_units(path), _SAMPLE))
        records = [unit[1] for unit in units if not isinstance(unit, Rejected)]
        if not records and isinstance(units[0], Rejected):
            return units[0]  # no line can be decoded: this reason is more helpful than an unknown format
        layout = _layout(records, records, "lines", format_name)
    else:
        # The first items of a large list usually suffice, which avoids decoding it twice.
        first = None if "records" in options.map else first_items(path, _SAMPLE)
        if first is not None:
            # The list itself may be the record, so it comes before its items.
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
    """Return the layout, or Rejected if there is none or if its reader or the user's map does not fit the records."""
    if layout is None and format_name != "auto":
        return Rejected(str(path), None, f"does not look like {format_name}", format_name)
    if layout is None:
        way_out = f"its fields, and a --map that may read it: pairwright explain {path}"
        return Rejected(str(path), None, f"no known format: {way_out}")
    rows = objects_in(records)
    reason = options.map.missing_field(rows) or layout.reader.refuse(rows, options)
    return layout if reason is None else Rejected(str(path), None, reason, layout.format)


def _records_in(value: Any, options: Options) -> list[Any]:
    return items(options.map.value(value, "records"), f"--map records={options.map.fields['records']}")


def _layout(
    whole: Any, records: list[Any], shape: Literal["lines", "document", "values", "table"], format_name: str
) -> Layout | None:
    """Return the layout of the first format that matches the whole file or one of its records."""
    formats = all_formats() if format_name == "auto" else {format_name: find_format(format_name)}
    for name, variants in formats.items():
        for variant, reader in enumerate(variants):
            if reader.matches(whole) if reader.unit == "file" else any(map(reader.matches, records)):
                return Layout(name, variant, shape)
            # A looser test for rows that several formats share: used only if the user names the format.
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
    # The error names the temporary copy; report the user's path instead.
    except (BadRecord, CodecError, RecordError, SourceError, *BROKEN_STREAM) as error:
        reason = str(error).replace(str(file), str(path)).removeprefix(f"{path}: ")
        yield Rejected(str(path), None, reason, layout.format)
