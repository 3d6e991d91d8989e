"""One import task: reads files, or a range of lines, into a hidden part and a hidden file of rejections.

Runs in a worker process or in the main process, with the same result; does not import store/table.py.
"""

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from xxhash import xxh3_128_digest

from pairwright.paths import Place, deliver, local_workspace
from pairwright.records.experience import ARRAYS, SIDE_ARRAYS, Experience, Kind
from pairwright.records.json_text import encode
from pairwright.sources.assemble import Assembler
from pairwright.sources.datasets.pairwright_rows import NAME as PAIRWRIGHT
from pairwright.sources.format import Options, PartOfAnother, Rejected
from pairwright.sources.reading import AnyUnit, Layout, in_batches, read_units, unit_batches
from pairwright.sources.redact import redact
from pairwright.sources.rewards import Scores, matching_keys, score_names
from pairwright.store.arrow import numbers_of, to_batch
from pairwright.store.exported_units import exported_units
from pairwright.store.parts import hidden_part, open_part

ROWS_PER_BATCH = 1024
BYTES_PER_BATCH = 4 * 2**20
_BYTES_OF_ROW, _BYTES_OF_PARTS = 500, 2000  # estimates: a row without its messages, content parts of a message
_PREFERENCE = Kind.PREFERENCE
_NUM_NAMED = 100  # records whose numbers are listed if no record has the requested reward
_COUNTED = {
    "messages": ("num_prompt_messages", "num_completion_messages"),
    "tool_calls": ("num_tool_calls",),
    "errors": ("num_errors",),
}

Write = Callable[[bytes], object]
WriteBatch = Callable[[pa.RecordBatch], None]


class ImportTask(msgspec.Struct, frozen=True):
    """A whole file, or the lines that begin at bytes [start, stop); `line` is the number of the first line."""

    path: Place
    layout: Layout
    folder: Place
    options: Options
    size: int = 0  # in bytes
    redact: bool = False
    scores: Scores | None = None
    keep_uids: bool = False
    start: int = 0
    stop: int | None = None
    line: int = 1
    label: str = ""  # identifies the file in record ids


class ImportResult(msgspec.Struct):
    """Result of some tasks: a hidden part, the ids of its rows, a hidden file of rejections, and counts."""

    part: Place | None = None
    quarantine: Place | None = None
    num_rows: list[int] = msgspec.field(default_factory=list)  # of each task, in order
    digests: bytes = b""  # of the row ids, in order: 16 bytes each
    uids: list[str] = msgspec.field(default_factory=list)  # only if requested by the tasks
    counts: dict[str, Counter[str]] = msgspec.field(default_factory=lambda: defaultdict(Counter))  # by format
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    secrets: list[tuple[str, int | None, str, str]] = msgspec.field(default_factory=list)
    scores_used: set[str] = msgspec.field(default_factory=set)
    has_reward: bool = False  # some record has the requested reward
    reward_names: Counter[str] = msgspec.field(default_factory=Counter)  # names of other numbers in the records
    unchosen: Counter[str] = msgspec.field(default_factory=Counter)  # names of scores of unscored records
    num_unchosen: int = 0  # records counted in `unchosen`
    score_keys: str | None = None  # keys that a score file could use for the first record
    examples: dict[str, str] = msgspec.field(default_factory=dict)  # reason -> first rejection
    repairs: Counter[str] = msgspec.field(default_factory=Counter)  # of text that is not valid UTF-8 JSON
    not_read: Counter[str] = msgspec.field(default_factory=Counter)  # large fields that are not in info, by name

    def add_counts(self, other: "ImportResult") -> None:
        """Add the counts of another result, but not its part, ids and file of rejections."""
        for name, counts in other.counts.items():
            self.counts[name].update(counts)
        for name in ("reasons", "repairs", "not_read", "unchosen", "scores_used"):
            getattr(self, name).update(getattr(other, name))
        self.examples = other.examples | self.examples
        self.secrets += other.secrets

    def reject(self, rejected: Rejected, format_name: str, write: Write) -> None:
        """Count a rejection and write its quarantine line."""
        self.counts[format_name]["quarantined"] += 1
        reason = general_reason(rejected.reason)
        self.reasons[reason] += 1
        line = "" if rejected.line is None else f":{rejected.line}"
        self.examples.setdefault(reason, f"{rejected.file}{line}: {rejected.reason[:200]}")
        write(encode(rejected) + b"\n")


def run_tasks(tasks: Sequence[ImportTask]) -> ImportResult:
    """Read the records of tasks into one hidden part in the folder of their table; the table itself is unchanged.

    Small files share a part, since writing a part would cost more than reading a small file. On failure the temporary
    files are removed.
    """
    target, result = tasks[0].folder, ImportResult()
    with local_workspace(target) as folder, _no_garbage_collection():
        part, quarantine = hidden_part(folder), hidden_part(folder)
        try:
            with open(quarantine, "wb") as rejected, open_part(part) as writer:
                _import(tasks, result, writer.write, rejected.write)
            result.part = deliver(part, target) if writer.num_rows else None
            has_rejected = any(counts["quarantined"] for counts in result.counts.values())
            result.quarantine = deliver(quarantine, target) if has_rejected else None
        except BaseException:
            part.unlink(missing_ok=True)
            quarantine.unlink(missing_ok=True)
            raise
        for file, delivered in ((part, result.part), (quarantine, result.quarantine)):
            if delivered is None:
                file.unlink()
    return result


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: decoded JSON has no cycles, and searching for them takes half of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _import(tasks: Sequence[ImportTask], result: ImportResult, write: WriteBatch, write_rejected: Write) -> None:
    """Read the records of tasks and write them as batches, each of one format and bounded by bytes and rows."""
    batch: list[Experience] = []
    num_bytes = 0
    for before, task in zip([tasks[0], *tasks], tasks, strict=False):
        if batch and before.layout.format != task.layout.format:
            write(_batch(batch, before, result))
            batch, num_bytes = [], 0
        result.num_rows.append(0)
        num_outcomes = _num_outcomes(task, result)
        for exp in _read_records(task, result, write_rejected):
            batch.append(exp)
            result.num_rows[-1] += 1
            num_bytes += _size_of(exp)
            if num_bytes >= BYTES_PER_BATCH or len(batch) >= ROWS_PER_BATCH:
                write(_batch(batch, task, result))
                batch, num_bytes = [], 0
        # A range of a large file may have only empty lines, but a whole file without records is always reported.
        if task.stop is None and not result.num_rows[-1] and _num_outcomes(task, result) == num_outcomes:
            nothing = Rejected(str(task.path), None, "no record in it", task.layout.format)
            result.reject(nothing, task.layout.format, write_rejected)
    if batch:
        write(_batch(batch, tasks[-1], result))


def _size_of(exp: Experience) -> int:
    """Estimate the bytes of a row."""
    size = _BYTES_OF_ROW
    for message in exp.messages:
        size += len(message.content) if type(message.content) is str else _BYTES_OF_PARTS if message.content else 0
    return size + (0 if exp.tokens is None else 9 * len(exp.tokens))


def _batch(rows: list[Experience], task: ImportTask, result: ImportResult) -> pa.RecordBatch:
    """Convert experiences to one record batch, and add their ids and counts to the result."""
    counts = result.counts[task.layout.format]
    for exp in rows:  # counts that are not in the columns
        if exp.kind is _PREFERENCE:
            counts["messages"] += sum(len(side.messages) for side in (exp.chosen, exp.rejected) if side)
        elif not exp.is_scored:
            counts["unscored"] += 1
            if result.num_unchosen < _NUM_NAMED:
                result.num_unchosen += 1
                result.unchosen.update(score_names(exp.reward_components, exp.info))
        if "tokens_dropped" in exp.info:
            counts["tokens_dropped"] += 1
        if "not_read" in exp.info:
            result.not_read.update(exp.info["not_read"])
    batch = to_batch(rows)
    uids = batch.column("uid").to_pylist()
    result.digests += b"".join([xxh3_128_digest(uid.encode()) for uid in uids])
    if task.keep_uids:
        result.uids += uids
    counts["experiences"] += batch.num_rows
    for name, columns in _COUNTED.items():
        counts[name] += sum(int(numbers_of(batch.column(column)).sum()) for column in columns)
    return batch


def _read_records(task: ImportTask, result: ImportResult, write_rejected: Write) -> Iterator[Experience]:
    """Yield the experiences of a task, with scores applied; rejections are counted and written."""
    redacted: set[tuple[str, int | None]] = set()
    assembler = Assembler(task.options)
    for record in read_units(_units(task, result, redacted), task.layout, task.options, assembler):
        if isinstance(record, Rejected):
            result.reject(record, task.layout.format, write_rejected)
            continue
        if isinstance(record, PartOfAnother):
            result.counts[task.layout.format]["part_of_another_file"] += 1
            continue
        if record.tokens is not None and record.source and (record.source.file, record.source.line) in redacted:
            # Drop recorded ids and arrays of a redacted experience: they still encode the secret.
            cleared: dict[str, Any] = dict.fromkeys((*ARRAYS, "prompt_length"))
            for name in ("chosen", "rejected"):
                side = getattr(record, name)
                cleared[name] = None if side is None else replace(side, **dict.fromkeys(SIDE_ARRAYS))
            info = {**record.info, "tokens_dropped": "the record was redacted"}
            record = replace(record, **cleared, multi_modal_inputs={}, info=info)
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
    result.has_reward |= assembler.has_reward
    result.reward_names.update(assembler.reward_names)


def _num_outcomes(task: ImportTask, result: ImportResult) -> int:
    """Return how many units of the task's format were refused or belong to another file."""
    counts = result.counts[task.layout.format]
    return counts["quarantined"] + counts["part_of_another_file"]


def _units(
    task: ImportTask, result: ImportResult, redacted: set[tuple[str, int | None]]
) -> Iterator[Sequence[AnyUnit]]:
    """Return the units of a task in batches; with `redact`, (file, line) of those that had secrets go to `redacted`."""
    path, layout = task.path, task.layout
    if layout.shape == "binary" and layout.format == PAIRWRIGHT:
        batches: Iterator[Sequence[AnyUnit]] = in_batches(exported_units(path))
    else:
        batches = unit_batches(
            path,
            layout,
            task.label,
            result.repairs,
            options=task.options,
            start=task.start,
            stop=task.stop,
            line=task.line,
        )
    if not task.redact:
        return batches
    return ([_redacted(unit, result, redacted) for unit in batch] for batch in batches)


def _redacted(unit: AnyUnit, result: ImportResult, redacted: set[tuple[str, int | None]]) -> AnyUnit:
    if isinstance(unit, Experience):  # from a binary payload, not yet searched for secrets
        file = unit.source.file if unit.source is not None else "a payload"
        return Rejected(file, None, "--redact: a binary payload cannot be redacted; leave out --redact, or import JSON")
    if isinstance(unit, Rejected):
        clean, findings = redact(unit.raw)
        unit, where = replace(unit, raw=clean), (unit.file, unit.line)
    else:
        origin, value = unit
        try:
            clean, findings = redact(value)
        except RecursionError:
            # The rejection omits the text, since a secret in it would be written to the quarantine.
            return Rejected(origin.file, origin.line, "nested too deep to redact")
        unit, where = (origin, clean), (origin.file, origin.line)
    result.secrets += [(*where, finding.kind, finding.where) for finding in findings]
    redacted |= {where} if findings else set()
    return unit


# Location of a refusal inside a file: `trace 'a1', call 'b2'`, `turn 4`, `simulations[3]`.
_WHERE = re.compile(r"(?:\w+ )?(?:'[^']*'|\d+)(?:, (?:\w+ )?(?:'[^']*'|\d+))*|\w*\[\d+\]")
_INDEX = re.compile(r"\[\d+\]")


def general_reason(reason: str) -> str:
    """Return the general part of a reason, without location and record details, for counting.

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
