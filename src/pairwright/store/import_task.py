"""One task of an import: read files, or a range of lines, into a hidden part and a hidden file of rejections.

Runs in a worker process or in the main process, with the same result; does not import store/table.py. Also reads back
files that pairwright exported: payloads (store/codec.py), and Parquet with the columns of the table.
"""

import gc
import mmap
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple, replace
from xxhash import xxh3_128_digest

from pairwright.errors import CodecError, PairwrightError, TableError
from pairwright.paths import Place, deliver, local_copy, local_workspace
from pairwright.paths.paths import parquet_file
from pairwright.records.experience import ARRAYS, SIDE_ARRAYS, Experience, Kind
from pairwright.records.json_text import encode
from pairwright.records.messages import Json
from pairwright.sources.datasets.pairwright_rows import NAME
from pairwright.sources.datasets.pairwright_rows import NAME as PAIRWRIGHT
from pairwright.sources.files import Unit, decode_units, line_units, read_line_blocks
from pairwright.sources.format import Options, Origin, PartOfAnother, ReadyRow, Record, Rejected
from pairwright.sources.identity import identify
from pairwright.sources.reading import Layout, binary_units, file_units, find_errors, read_units
from pairwright.sources.redact import redact
from pairwright.sources.rewards import Scores, chosen_reward, matching_keys, reward_by_name, reward_names, score_names
from pairwright.store.arrow import from_arrow, list_column, to_batch
from pairwright.store.arrow_arrays import column_array, numbers_of
from pairwright.store.codec import MAGIC, loads_many, payload_size
from pairwright.store.columns import ARRAY_TYPES, SCHEMA
from pairwright.store.segments import hidden_part, write_hidden_part

# Reading exported experiences: pairwright bytes, and Parquet with the columns of the table

_ROWS_AT_ONCE = 1024
_NEEDED = ("uid", "kind")


def exported_units(path: Place) -> Iterator[Experience | Rejected]:
    """Yield the experiences of an exported file; what cannot be read is yielded as Rejected, with the reason."""
    with local_copy(path) as local:
        try:
            with open(local, "rb") as file:
                is_payload = file.read(len(MAGIC)) == MAGIC
            yield from _from_payloads(local, str(path)) if is_payload else _from_parquet(local, str(path))
        except (PairwrightError, pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).replace(str(local), str(path))
            yield Rejected(str(path), None, f"cannot be read: {reason}", NAME)


def _from_payloads(local: Path, name: str) -> Iterator[Experience | Rejected]:
    """Read concatenated payloads; after a payload with corrupt content, reading continues with the next one."""
    with open(local, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        start = 0
        try:
            while start < len(view):
                size = payload_size(view[start:])
                payload = bytes(view[start : start + size])
                try:
                    yield from loads_many(payload)
                except CodecError as error:
                    yield Rejected(name, None, f"payload at byte {start:,}: {error}", NAME)
                start += size
        except CodecError as error:
            yield Rejected(name, None, f"payload at byte {start:,}: {error}", NAME)
        finally:
            view.release()


def _from_parquet(local: Path, name: str) -> Iterator[Experience | Rejected]:
    """Read a Parquet file in batches; a batch with an invalid row is read row by row."""
    with parquet_file(local) as file:
        columns = file.schema_arrow.names
        missing = [column for column in _NEEDED if column not in columns]
        if missing:
            yield Rejected(name, None, f"a Parquet file that is no experience table: no column {missing[0]!r}", NAME)
            return
        first = 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            try:
                yield from from_arrow(pa.Table.from_batches([batch]))
            except PairwrightError:
                yield from _row_by_row(batch, name, first)
            first += batch.num_rows


def _row_by_row(batch: pa.RecordBatch, name: str, first: int) -> Iterator[Experience | Rejected]:
    """Read a batch row by row, to reject only its invalid rows."""
    for number in range(batch.num_rows):
        try:
            yield from from_arrow(pa.Table.from_batches([batch.slice(number, 1)]))
        except (TableError, PairwrightError) as error:
            yield Rejected(name, None, f"row {first + number:,}: {error}", NAME)


# Import tasks

ROWS_PER_BATCH, READY_ROWS_PER_BATCH = 256, 2048
BYTES_PER_BATCH = 4 * 2**20
_BYTES_OF_RECORD = BYTES_PER_BATCH // ROWS_PER_BATCH
_ROWS_PER_BLOCK = 32
_PREFERENCE = Kind.PREFERENCE
_NUM_NAMED = 100  # records whose numbers are named where none has the reward that was asked for
_COUNTED = {
    "messages": ("num_prompt_messages", "num_completion_messages"),
    "tool_calls": ("num_tool_calls",),
    "errors": ("num_errors",),
}

Write = Callable[[bytes], object]


class ImportTask(msgspec.Struct, frozen=True):
    """What to read: a whole file, or the lines that begin at bytes [start, stop); the first has the number `line`."""

    path: Place
    layout: Layout
    folder: Place
    options: Options
    size: int = 0  # in bytes
    reward: str | None = None  # a path or an expression; a plain name is in the options, for the reader
    redact: bool = False
    scores: Scores | None = None
    keep_uids: bool = False
    start: int = 0
    stop: int | None = None
    line: int = 1
    label: str = ""  # of the file, in the ids of its records


class ImportResult(msgspec.Struct):
    """Result of some tasks: a hidden part, the ids of its rows, a hidden file of rejections, and counts."""

    part: Place | None = None
    quarantine: Place | None = None
    num_rows: list[int] = msgspec.field(default_factory=list)  # of each task, in their order in the part
    digests: bytes = b""  # of the ids of the rows, in their order: 16 bytes each
    uids: list[str] = msgspec.field(default_factory=list)  # only if the tasks ask for them
    counts: dict[str, Counter[str]] = msgspec.field(default_factory=lambda: defaultdict(Counter))  # by format
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    secrets: list[tuple[str, int | None, str, str]] = msgspec.field(default_factory=list)
    scores_used: set[str] = msgspec.field(default_factory=set)
    has_reward: bool = False  # some record has the reward that was asked for
    reward_names: Counter[str] = msgspec.field(default_factory=Counter)  # what records have instead
    unchosen: Counter[str] = msgspec.field(default_factory=Counter)  # names of scores of unscored records
    num_unchosen: int = 0  # records that `unchosen` counts
    num_named: int = 0  # records that `reward_names` counts
    score_keys: str | None = None  # what a file of scores could say of the first record
    examples: dict[str, str] = msgspec.field(default_factory=dict)  # by reason: the first rejection
    repairs: Counter[str] = msgspec.field(default_factory=Counter)  # of text that is no JSON in UTF-8
    not_read: Counter[str] = msgspec.field(default_factory=Counter)  # large fields that are not in info, by name


def run_tasks(tasks: Sequence[ImportTask]) -> ImportResult:
    """Read the records of tasks into one hidden part in the folder of their table; the table itself is unchanged.

    Small files go together: a part of its own for each would cost more than reading it.
    """
    target = tasks[0].folder
    with local_workspace(target) as folder:
        result = _run_in(folder, tasks)
        result.part = None if result.part is None else deliver(result.part, target)
        result.quarantine = None if result.quarantine is None else deliver(result.quarantine, target)
        return result


def _run_in(folder: Path, tasks: Sequence[ImportTask]) -> ImportResult:
    """Run tasks in a local folder; on failure their temporary files are removed."""
    result = ImportResult()
    part, quarantine = hidden_part(folder), hidden_part(folder)
    collects = gc.isenabled()
    gc.disable()  # decoded JSON has no cycles, and looking for them takes half of the time
    try:
        with open(quarantine, "wb") as rejected:
            num_rows = write_hidden_part(part, _batches(tasks, result, rejected.write))
        if num_rows:
            result.part = part
        else:
            part.unlink()
        if any(counts["quarantined"] for counts in result.counts.values()):
            result.quarantine = quarantine
        else:
            quarantine.unlink()
    except BaseException:
        part.unlink(missing_ok=True)
        quarantine.unlink(missing_ok=True)
        raise
    finally:
        if collects:
            gc.enable()
    return result


def _batches(tasks: Sequence[ImportTask], result: ImportResult, write_rejected: Write) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tasks as record batches, each of one format and bounded by bytes and rows."""
    batch: list[Record] = []
    num_bytes = 0
    for before, task in zip([tasks[0], *tasks], tasks, strict=False):
        if batch and before.layout.format != task.layout.format:
            yield _counted(_batch(batch, before, result), before, result)
            batch, num_bytes = [], 0
        result.num_rows.append(0)
        num_outcomes = _num_outcomes(task, result)
        for rows in _row_blocks(task, result, write_rejected):
            batch += rows
            result.num_rows[-1] += len(rows)
            num_bytes += sum(map(_size_of, rows))
            if num_bytes >= BYTES_PER_BATCH or len(batch) >= READY_ROWS_PER_BATCH:
                yield _counted(_batch(batch, task, result), task, result)
                batch, num_bytes = [], 0
        # A range of a large file may be empty lines; a whole file that gives nothing is never passed over.
        if task.stop is None and not result.num_rows[-1] and _num_outcomes(task, result) == num_outcomes:
            _reject(Rejected(str(task.path), None, "no record in it", task.layout.format), task, result, write_rejected)
    if batch:
        yield _counted(_batch(batch, tasks[-1], result), tasks[-1], result)


def _row_blocks(task: ImportTask, result: ImportResult, write_rejected: Write) -> Iterator[list[Record]]:
    """Yield the records of a task, some at a time; where nothing else is done with them, as ReadyRow if possible."""
    read_rows = task.layout.reader.read_rows if task.layout.splits else None
    changes = task.reward is not None or task.scores is not None or task.redact or task.options != Options()
    if changes or read_rows is None:
        units = _units(task, result.repairs, by_type=not changes)
        yield from _blocks(_read_records(units if changes else _as_rows(units), task, result, write_rejected))
        return
    file, label, decode = str(task.path), task.label, task.layout.reader.decode
    for first, lines in read_line_blocks(task.path, start=task.start, stop=task.stop, line=task.line):
        origins = [Origin(file, number, number - 1, label) for number in range(first, first + len(lines))]
        block: list[Record] = []
        for line, origin, row in zip(lines, origins, read_rows(lines, origins), strict=True):
            if row is not None:
                block.append(row)
            elif isinstance(line, int) or not line.isspace():
                text = line if isinstance(line, int) else line.removesuffix(b"\n")
                units = decode_units(task.path, [(origin.ordinal + 1, text)], decode, label, result.repairs)
                block += _read_records(_as_rows(units), task, result, write_rejected)
        yield block


def _blocks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Yield records some at a time, and a large one as soon as it is there."""
    block: list[Record] = []
    for record in records:
        block.append(record)
        if len(block) == _ROWS_PER_BLOCK or _size_of(record) > _BYTES_OF_RECORD:
            yield block
            block = []
    if block:
        yield block


def _as_rows(units: Iterator[Unit | Experience | Rejected]) -> Iterator[Unit | Experience | Rejected]:
    """Ask the reader for table cells: nothing else is done with these records."""
    for unit in units:
        yield (replace(unit[0], as_row=True), unit[1]) if type(unit) is tuple else unit


def _size_of(row: Record) -> int:
    """Return about how many bytes a row takes."""
    if type(row) is not ReadyRow:
        return _BYTES_OF_RECORD
    content = len(row.prompt or b"") + len(row.tools or b"") + len(row.completion or b"") + len(row.info or b"")
    return content + (0 if row.tokens is None else 9 * len(row.tokens))


def _batch(rows: list[Record], task: ImportTask, result: ImportResult) -> pa.RecordBatch:
    """Convert rows to one record batch, in order."""
    ready = [row for row in rows if type(row) is ReadyRow]
    records = [row for row in rows if type(row) is Experience]
    counts = result.counts[task.layout.format]
    if not ready:
        return _record_batch(records, counts, result)
    batch = _ready_batch(ready)
    for row in ready:
        if row.reward is None:
            counts["unscored"] += 1
            if result.num_unchosen < _NUM_NAMED:
                result.num_unchosen += 1
                result.unchosen.update(score_names(_object(row.reward_components), _object(row.info)))
        if row.info is not None and (b'"not_read":[' in row.info or b'"tokens_dropped"' in row.info):
            _count_info(_object(row.info), counts, result)
    if not records:
        return batch
    is_ready = np.array([type(row) is ReadyRow for row in rows])
    positions = np.where(is_ready, np.cumsum(is_ready), len(ready) + np.cumsum(~is_ready)) - 1
    both = pa.Table.from_batches([batch, _record_batch(records, counts, result)])
    return both.take(column_array(positions.tolist(), pa.int64())).combine_chunks().to_batches()[0]


def _ready_batch(rows: list[ReadyRow]) -> pa.RecordBatch:
    find_errors(rows)
    cells = dict(zip(ReadyRow.__struct_fields__, zip(*map(astuple, rows), strict=True), strict=True))
    cells["num_tokens"] = tuple([None if ids is None else len(ids) for ids in cells["tokens"]])
    arrays = []
    for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True):
        if name not in cells:
            arrays.append(pa.nulls(len(rows), kind))
        elif name in ARRAY_TYPES:
            present = {row: array for row, array in enumerate(cells[name]) if array is not None}
            arrays.append(list_column(name, present, len(rows)))
        else:
            arrays.append(column_array(cells[name], kind))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _record_batch(rows: list[Experience], counts: Counter[str], result: ImportResult) -> pa.RecordBatch:
    for exp in rows:  # counts that the columns do not have
        if exp.kind is _PREFERENCE:
            counts["messages"] += sum(len(side.messages) for side in (exp.chosen, exp.rejected) if side)
        elif not exp.is_scored:
            counts["unscored"] += 1
            if result.num_unchosen < _NUM_NAMED:
                result.num_unchosen += 1
                result.unchosen.update(score_names(exp.reward_components, exp.info))
        _count_info(exp.info, counts, result)
    return to_batch(rows)


def _count_info(info: Json, counts: Counter[str], result: ImportResult) -> None:
    if "tokens_dropped" in info:
        counts["tokens_dropped"] += 1
    if "not_read" in info:
        result.not_read.update(info["not_read"])


def _object(text: bytes | None) -> Json:
    return msgspec.json.decode(text) if text is not None else {}


def _counted(batch: pa.RecordBatch, task: ImportTask, result: ImportResult) -> pa.RecordBatch:
    """Add the ids and counts of a batch to the result; returns the batch."""
    uids = batch.column("uid").to_pylist()
    result.digests += b"".join([xxh3_128_digest(uid.encode()) for uid in uids])
    if task.keep_uids:
        result.uids += uids
    counts = result.counts[task.layout.format]
    counts["experiences"] += batch.num_rows
    for name, columns in _COUNTED.items():
        counts[name] += sum(int(numbers_of(batch.column(column)).sum()) for column in columns)
    return batch


def _read_records(
    units: Iterator[Unit | Experience | Rejected], task: ImportTask, result: ImportResult, write_rejected: Write
) -> Iterator[Record]:
    """Yield the experiences of units, with rewards and scores applied; rejections are counted and written."""
    redacted: set[tuple[str, int | None]] = set()
    if task.redact:
        units = _redacted(units, result, redacted)
    options = task.options
    names_identity = not (options.task is options.run is options.step is None)
    changes = task.reward is not None or options.reward is not None or names_identity
    finish = partial(_finish, task, result, names_identity) if changes else None
    for record in read_units(units, task.layout, task.options, finish):
        if isinstance(record, Rejected):
            _reject(record, task, result, write_rejected)
            continue
        if isinstance(record, PartOfAnother):
            result.counts[task.layout.format]["part_of_another_file"] += 1
            continue
        if isinstance(record, ReadyRow):
            yield record
            continue
        if record.tokens is not None and record.source and (record.source.file, record.source.line) in redacted:
            record = _without_ids(record)
        if task.scores is not None:
            result.score_keys = result.score_keys or matching_keys(record)
            match = task.scores.of(record)
            if match is not None:
                score, key = match
                result.scores_used.add(str(key))
                record = replace(record, reward=score.reward)
                if score.task is not None:
                    record = replace(record, eid=replace(record.eid, task=score.task))
        yield record


def _reject(rejected: Rejected, task: ImportTask, result: ImportResult, write_rejected: Write) -> None:
    result.counts[task.layout.format]["quarantined"] += 1
    result.reasons[general_reason(rejected.reason)] += 1
    result.examples.setdefault(general_reason(rejected.reason), example_of(rejected))
    write_rejected(encode(rejected) + b"\n")


def _num_outcomes(task: ImportTask, result: ImportResult) -> int:
    """Return how many units of the task's format were refused or belong to another file."""
    counts = result.counts[task.layout.format]
    return counts["quarantined"] + counts["part_of_another_file"]


def _finish(
    task: ImportTask, result: ImportResult, names_identity: bool, exp: Experience, row: Any, origin: Origin | None
) -> Experience:
    """Apply the options that change records of any format: the reward, and the identity."""
    if task.reward is not None or task.options.reward is not None:
        exp = _with_reward(task, result, exp, row)
    return identify(exp, task.options, row, origin) if names_identity else exp


def _with_reward(task: ImportTask, result: ImportResult, exp: Experience, row: Any) -> Experience:
    """Set the requested reward of an experience: from its reader, or if that has none, by name, path or expression."""
    if exp.kind is _PREFERENCE:
        return exp
    if task.reward is not None:
        reward = chosen_reward(exp, task.reward, row)
    else:
        name = str(task.options.reward)
        is_ready = row is None or task.layout.format == PAIRWRIGHT  # no reader has looked for the name
        reward = reward_by_name(exp, name, row) if is_ready or exp.reward is None else exp.reward
    if reward is not None:
        result.has_reward = True
    elif not result.has_reward and result.num_named < _NUM_NAMED:
        result.num_named += 1
        result.reward_names.update(reward_names(exp, row))
    return exp if reward == exp.reward else replace(exp, reward=reward)


def _units(task: ImportTask, repairs: Counter[str], *, by_type: bool = False) -> Iterator[Unit | Experience | Rejected]:
    path, layout, label = task.path, task.layout, task.label
    if layout.splits:
        decode = layout.reader.decode
        return line_units(
            path, start=task.start, stop=task.stop, line=task.line, decode=decode, label=label, repairs=repairs
        )
    if layout.shape == "binary" and layout.format == PAIRWRIGHT:
        return exported_units(path)
    if layout.shape == "binary":
        return binary_units(path, layout, label)
    return file_units(path, layout, label, repairs, options=task.options, by_type=by_type)


def _redacted(
    units: Iterator[Unit | Experience | Rejected], result: ImportResult, redacted: set[tuple[str, int | None]]
) -> Iterator[Unit | Experience | Rejected]:
    """Yield units with secrets redacted; adds (file, line) of units that had secrets to `redacted`."""
    for unit in units:
        if isinstance(unit, Experience):  # a binary payload of records, whose secrets nobody has looked for
            file = unit.source.file if unit.source is not None else "a payload"
            yield Rejected(file, None, "--redact: a binary payload cannot be redacted; import it without, or as JSON")
            continue
        if isinstance(unit, Rejected):
            clean, findings = redact(unit.raw)
            unit = replace(unit, raw=clean)
            where = (unit.file, unit.line)
        else:
            origin, value = unit
            try:
                clean, findings = redact(value)
            except RecursionError:
                # Its text goes nowhere: a secret in it would be written to the quarantine.
                yield Rejected(origin.file, origin.line, "nested too deep to redact")
                continue
            unit, where = (origin, clean), (origin.file, origin.line)
        result.secrets += [(*where, finding.kind, finding.where) for finding in findings]
        redacted |= {where} if findings else set()
        yield unit


def _without_ids(exp: Experience) -> Experience:
    """Remove recorded token ids and arrays from an experience that was redacted, since they still encode the secret."""
    cleared: dict[str, Any] = dict.fromkeys((*ARRAYS, "prompt_length"))
    for name in ("chosen", "rejected"):
        side = getattr(exp, name)
        cleared[name] = None if side is None else replace(side, **dict.fromkeys(SIDE_ARRAYS))
    info = {**exp.info, "tokens_dropped": "the record was redacted"}
    return replace(exp, **cleared, multi_modal_inputs={}, info=info)


# Where in a file something was refused: `trace 'a1', call 'b2'`, `turn 4`, `simulations[3]`.
_WHERE = re.compile(r"(?:\w+ )?(?:'[^']*'|\d+)(?:, (?:\w+ )?(?:'[^']*'|\d+))*|\w*\[\d+\]")
_INDEX = re.compile(r"\[\d+\]")


def general_reason(reason: str) -> str:
    """Return the general part of a reason, without its place and the details of the record, for counting.

    >>> general_reason("trace 'a1', call 'b2': the model gave no output: rate limit")
    'the model gave no output'
    >>> general_reason("messages[2].content: got 5, expected text")
    'messages[].content'
    """
    parts = reason.split(": ")
    while len(parts) > 1 and _WHERE.fullmatch(parts[0]):
        del parts[0]
    general = _INDEX.sub("[]", parts[0].split(":")[0])
    return general if len(parts) > 1 or ":" in parts[0] else general[:80]


def example_of(rejected: Rejected) -> str:
    """Describe a rejection with its place and the details of its reason."""
    line = "" if rejected.line is None else f":{rejected.line}"
    return f"{rejected.file}{line}: {rejected.reason[:200]}"
