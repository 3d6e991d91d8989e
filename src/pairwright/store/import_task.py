"""One piece of an import: a file, or a range of its lines, read into a hidden part beside what could not be used.

Runs in a worker process or in the command's own, with the same result. It loads neither Polars nor the table.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from pairwright.jsontext import encode
from pairwright.records import Experience, Kind
from pairwright.sources.files import Unit, line_units
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, binary_units, file_units, read_units
from pairwright.sources.redact import redact
from pairwright.sources.rewards import Scores, chosen_reward
from pairwright.store.arrow import to_batch
from pairwright.store.parts import hidden_part, write_hidden_part

ROWS_PER_BATCH = 256
_PREFERENCE = Kind.PREFERENCE


class ImportTask(msgspec.Struct, frozen=True):
    """What to read: a whole file, or the lines that begin in [start, stop), the first of them numbered `line`."""

    path: Path
    layout: Layout
    folder: Path
    options: Options
    reward: str | None = None  # an expression; a plain name is in the options, for the reader
    redact: bool = False
    scores: Scores | None = None
    start: int = 0
    stop: int | None = None
    line: int = 1


class ImportResult(msgspec.Struct):
    """What came of a task: a hidden part with rows `uids`, a hidden file of rejections, and counts."""

    part: Path | None
    quarantine: Path | None
    uids: list[str]
    counts: Counter[str]
    reasons: Counter[str]
    secrets: list[tuple[str, int | None, str, str]]
    scores_used: set[str]


def run_task(task: ImportTask) -> ImportResult:
    """Read a task's records into a hidden part of the table's folder; nothing is in the table yet."""
    result = ImportResult(None, None, [], Counter(), Counter(), [], set())
    part, quarantine = hidden_part(task.folder), hidden_part(task.folder)
    collects = gc.isenabled()
    gc.disable()  # decoded JSON has no cycles, and looking for them takes half of the time
    try:
        with open(quarantine, "wb") as rejected:
            stream = _kept(task, result, rejected.write)
            num_rows = write_hidden_part(part, _batches(stream, result))
        if num_rows:
            result.part = part
        else:
            part.unlink()
        if result.counts["quarantined"]:
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


def _batches(experiences: Iterator[Experience], result: ImportResult) -> Iterator[pa.RecordBatch]:
    while rows := list(islice(experiences, ROWS_PER_BATCH)):
        batch = to_batch(rows)
        result.uids += batch.column("uid").to_pylist()
        _count(rows, batch, result.counts)
        yield batch


def _kept(task: ImportTask, result: ImportResult, write_rejected: Callable[[bytes], object]) -> Iterator[Experience]:
    """The experiences of a task, with rewards chosen and scores applied; rejections are counted and written."""
    for found in _read(task, result):
        if isinstance(found, Rejected):
            result.counts["quarantined"] += 1
            result.reasons[_general(found.reason)] += 1
            write_rejected(encode(found) + b"\n")
            continue
        if task.reward is not None and found.kind is not Kind.PREFERENCE:
            found = replace(found, reward=chosen_reward(found, task.reward))
        if task.scores is not None:
            there, score, key = task.scores.of(found)
            if there:
                result.scores_used.add(str(key))
                found = replace(found, reward=score)
        yield found


def _read(task: ImportTask, result: ImportResult) -> Iterator[Experience | Rejected]:
    units: Iterator[Unit | Experience | Rejected]
    if task.layout.splits:
        units = line_units(
            task.path, start=task.start, stop=task.stop, line=task.line, decode=task.layout.reader.decode
        )
    elif task.layout.shape == "binary":
        units = binary_units(task.path, task.layout)
    else:
        units = file_units(task.path, task.layout)
    yield from read_units(_redacted(units, result) if task.redact else units, task.layout, task.options)


def _redacted(
    units: Iterator[Unit | Experience | Rejected], result: ImportResult
) -> Iterator[Unit | Experience | Rejected]:
    for unit in units:
        if isinstance(unit, Experience):  # a binary payload of records, whose secrets nobody has looked for
            file = unit.source.file if unit.source is not None else "a payload"
            yield Rejected(file, None, "--redact: a binary payload cannot be redacted; import it without, or as JSON")
            continue
        if isinstance(unit, Rejected):
            clean, found = redact(unit.raw)
            unit = replace(unit, raw=clean)
            where = (unit.file, unit.line)
        else:
            origin, value = unit
            clean, found = redact(value)
            unit, where = (origin, clean), (origin.file, origin.line)
        result.secrets += [(*where, finding.kind, finding.where) for finding in found]
        yield unit


def _count(rows: list[Experience], batch: pa.RecordBatch, counts: Counter[str]) -> None:
    counts["experiences"] += len(rows)
    counts["messages"] += (
        pc.sum(batch["num_prompt_messages"]).as_py() + pc.sum(batch["num_completion_messages"]).as_py()
    )
    counts["tool_calls"] += pc.sum(batch["num_tool_calls"]).as_py()
    counts["errors"] += pc.sum(batch["num_errors"]).as_py()
    for exp in rows:
        if exp.kind is _PREFERENCE:
            counts["messages"] += sum(len(side.messages) for side in (exp.chosen, exp.rejected) if side is not None)
        elif not exp.is_scored:
            counts["unscored"] += 1
        if "tokens_dropped" in exp.info:
            counts["tokens_dropped"] += 1


def _general(reason: str) -> str:
    """A reason without the parts that differ from record to record, to count by."""
    return reason.split(":")[0] if ":" in reason else reason[:80]
