"""Import files of any format into an experience table, in parallel, without duplicate records.

A file is one task; a large JSON Lines file is split into several, and small files share a part. Workers write hidden
parts; the main process drops rows whose ids are already in the table, and publishes each part with one rename.
Importing a file again adds nothing, so an interrupted import is resumed by running it again.
"""

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from xxhash import xxh3_128_digest

from pairwright.engines import Engine, Pool
from pairwright.engines.progress import Progress, progress_of
from pairwright.errors import SourceError
from pairwright.paths import Place, at_once, claim_folder, is_address, open_binary, size_of, write_atomic
from pairwright.paths.parquet_files import read_parquet
from pairwright.records.arrays import Array
from pairwright.sources.field_map import FieldMap, parse_map
from pairwright.sources.files import ranges, relative_names, with_stdin
from pairwright.sources.format import Options, Rejected, read_compaction_prompt
from pairwright.sources.identity import check_identity
from pairwright.sources.reading import Layout, detect
from pairwright.sources.reward_expressions import parse_reward
from pairwright.sources.rewards import Scores, read_scores
from pairwright.store.file_labels import key_of, label_files, read_maps, write_maps
from pairwright.store.import_task import ImportResult, ImportTask, run_tasks
from pairwright.store.parts import put_hidden_part
from pairwright.store.table import Table

RANGE_BYTES = 16 * 2**20  # of the ranges of a large JSON Lines file, one task each
_BYTES_OF_A_FILE = 8 * 2**10  # a small file counts as this many bytes
POOL_BYTES = 32 * 2**20  # below this, starting workers costs more than they save
QUARANTINE = "quarantine.jsonl"
DEFAULT_OPTIONS = Options()
_NUM_NAMES = 12  # in an error message
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class ImportSummary(msgspec.Struct):
    """Result of an import: counts by format, reasons of rejections, and redacted secrets."""

    formats: dict[str, dict[str, int]]
    reasons: dict[str, int]
    secrets: list[dict[str, str | int | None]]
    num_scores: int = 0
    num_scores_used: int = 0
    num_replaced: int = 0
    examples: dict[str, str] = {}  # reason -> first rejection, with its location
    scores_to_choose: list[str] = []  # names for `--reward`, from unscored records
    repairs: dict[str, int] = {}  # of text that is not valid UTF-8 JSON, by name
    not_read: dict[str, int] = {}  # field too large for info -> number of records that have it
    maps: dict[str, str] = {}  # files read with the field map of an earlier import
    same_as: dict[str, str] = {}  # files whose records already exist, from another file with the same label

    def total(self, name: str) -> int:
        return sum(counts.get(name, 0) for counts in self.formats.values())


def import_traces(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    format: str = "auto",
    reward: str | None = None,
    scores: str | os.PathLike[str] | None = None,
    map: str | Mapping[str, str] | None = None,
    task: str | None = None,
    run: str | None = None,
    step: str | None = None,
    step_name: str | None = None,
    compaction_prompt: str | os.PathLike[str] | None = None,
    redact: bool = False,
    update: bool = False,
    workers: int | None = None,
    progress: bool | Progress = False,
) -> Table:
    """Read agent traces into an experience table. Importing a file again adds nothing.

    Unreadable records are written to `quarantine.jsonl` in the table's folder, each with its reason.

    Args:
        paths: A file, folder, glob or address, or a list of them.
        output: Folder of the table; it is created, or appended to.
        format: Name of a format of docs/reference/sources/index.md; "auto" detects it from the content.
        reward: Name of the reward, a path such as "metadata.reward", or an expression: "0.7*correct + 0.3*style".
        scores: CSV or JSON Lines file of rewards, by id (optionally with a task) or by task and run.
        map: Fields of your own data: "prompt=a.text,completion=b.text,reward=c.score".
        task: Source of the task: "prompt", a field's name or path, several with commas, "file", "row//4".
        run: Source of the run: a field's name or path, or "row%4"; text is converted to a number.
        step: Source of the step: the name or path of an integer field.
        step_name: NAT only: name of the TTC step whose candidates to read.
        compaction_prompt: Codex only: file with the prompt of compactions; each summary becomes a step.
        redact: Replace API keys, tokens and private keys.
        update: Replace earlier rows of these files.
        workers: Number of processes; by default one per core for large imports.
        progress: True prints progress to stderr; a function is called with bytes done and in total.

    Returns:
        The table, including earlier rows.

    Raises:
        SourceError: No file was found, or no record could be read.

    >>> import pairwright as pw
    >>> table = pw.import_traces("traces/*.jsonl", "runs/first/experience")
    >>> len(table), table[-1].reward
    (8, 1.0)
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    table = Table(output)
    summary = import_files(
        [os.fspath(path) for path in listed],
        table,
        format_name=format,
        options=Options(
            reward=reward,
            step_name=step_name,
            compaction_prompt=read_compaction_prompt(compaction_prompt),
            task=task,
            run=run,
            step=step,
            map=parse_map(map),
        ),
        redact=redact,
        scores=None if scores is None else Path(scores),
        update=update,
        num_workers=workers,
        progress=progress_of(progress, "read bytes:"),
    )
    refuse_empty(summary)
    return table


def import_files(
    paths: list[str],
    table: Table,
    *,
    format_name: str = "auto",
    options: Options = DEFAULT_OPTIONS,
    redact: bool = False,
    scores: Path | None = None,
    update: bool = False,
    num_workers: int | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImportSummary:
    """Import files into a table; rejected records are written to quarantine.jsonl in its folder.

    `scores` is a file of rewards. With `update`, rows of these files that the files no longer have are deleted.
    `num_workers` is chosen by the size of the files if None; an `engine` replaces local processes. `progress` is called
    with the number of bytes done and in total. An import without any record is not an error here; see `refuse_empty`.

    Raises SourceError, and adds nothing, if no record has the reward in `options`, or none has a score in `scores`.
    """
    reward = options.reward
    check_identity(options)
    if reward is not None and not reward.isidentifier():
        parse_reward(reward)
    known_scores = None if scores is None else read_scores(scores)
    refused: list[Rejected] = []
    with claim_folder(table.path, "table.json", work="import"), with_stdin(paths) as files_or_folders:
        names = relative_names(files_or_folders, refused)
        files, labels = list(names), label_files(names, table)
        sizes = {file: size_of(file) for file in files}
        earlier = read_maps(table.path) if format_name == "auto" and not options.map else {}
        maps = {file: parse_map(earlier.get(key_of(str(file)))) or options.map for file in files}
        tasks, unreadable = _plan(sizes, maps, table.path, format_name, options)
        asked = {"redact": redact, "scores": known_scores, "keep_uids": update}
        tasks = [msgspec.structs.replace(task, label=labels.by_file[task.path], **asked) for task in tasks]
        ingest = _Ingest(table, wants_reward=reward is not None, wants_scores=scores is not None)
        for rejected in [*refused, *unreadable]:
            ingest.reject(rejected)
        # Files without a reader have no task: their bytes count as done from the start.
        total = done = sum(sizes.values())
        done -= sum(task.size for task in tasks)
        groups = list(_group_tasks(tasks))
        engine = engine or _pool(groups, num_workers)
        for group, result in zip(groups, engine.map(run_tasks, groups), strict=True):
            ingest.add(group, result)
            done += sum(task.size for task in group)
            progress(done, total)
        ingest.finish(reward, known_scores)
        ingest.write_quarantine({key_of(str(file)) for file in [*files, *(rejected.file for rejected in refused)]})
        summary = ingest.summary()
        summary.maps = {str(task.path): task.options.map.text for task in tasks if task.options.map and not options.map}
        # Stored for the next import of these files, once the map has read records.
        if options.map and summary.total("experiences"):
            write_maps(table.path, {key_of(str(task.path)): options.map.text for task in tasks})
        summary.same_as = {str(file): other for file, other in labels.same_as.items() if str(file) in ingest.again}
        if known_scores is not None:
            summary.num_scores, summary.num_scores_used = known_scores.num_rows, len(ingest.total.scores_used)
        # Stale rows are deleted last: a crash before that leaves old rows, never a gap.
        if update:
            summary.num_replaced = _delete_stale(table, tasks, ingest.seen)
        table.compact()  # merges the small parts of many small imports
        return summary


def _delete_stale(table: Table, tasks: list[ImportTask], uids: set[str]) -> int:
    """Delete rows of the tasks' files whose ids the files no longer have; returns their number."""
    import polars as pl  # slow to load, needed only here

    keys = {key_of(str(task.path)) for task in tasks}  # rows of files that are now unreadable are kept
    sources = {file for batch in table.scan(columns=["source"]) for file in batch[0].unique().to_pylist()}
    read = sorted(file for file in sources - {None} if key_of(file) in keys)
    stale = pl.col("source").is_in(read) & pl.col("uid").is_in(list(uids)).not_()
    return table.delete(stale)


def refuse_empty(summary: ImportSummary) -> None:
    """Raise SourceError if an import read no records, neither new nor already present ones."""
    if summary.total("experiences"):
        return
    reasons = ", ".join(f"{count:,} × {reason}" for reason, count in list(summary.reasons.items())[:3])
    num_files, first = summary.total("files"), next(iter(summary.examples.values()), "")
    raise SourceError(
        f"nothing was imported: no record in {num_files:,} file{'s' if num_files != 1 else ''}"
        + (f" ({reasons}; the first: {first})" if reasons else "")
        + ". Traces are JSON, JSON Lines, CSV, Parquet, Arrow, SQLite or Excel files; --format NAME forces a format. "
        "What is recognised in a file: pairwright explain FILE"
    )


def _plan(
    sizes: dict[Place, int], maps: dict[Place, FieldMap], folder: Place, format_name: str, common: Options
) -> tuple[list[ImportTask], list[Rejected]]:
    """Return the tasks of all files, with large JSON Lines files split by byte ranges, and the unreadable files."""

    def detect_one(file: Place) -> Layout | Rejected:
        return detect(file, format_name, msgspec.structs.replace(common, map=maps[file]))

    tasks, unreadable = [], []
    layouts = at_once(detect_one, list(maps), waits=any(map(is_address, maps)))
    for (file, size), layout in zip(sizes.items(), layouts, strict=True):
        # Files without a separate map share one options object.
        options = common if maps[file] is common.map else msgspec.structs.replace(common, map=maps[file])
        if isinstance(layout, Rejected):
            unreadable.append(layout)
        # Splitting does not pay below two ranges; compressed files cannot be read from the middle.
        elif layout.splits and size > 2 * RANGE_BYTES and _is_plain(file):
            for start, stop, line in ranges(file, RANGE_BYTES):
                task = ImportTask(file, layout, folder, options, stop - start, start=start, stop=stop, line=line)
                tasks.append(task)
        else:
            tasks.append(ImportTask(file, layout, folder, options, size))
    return tasks, unreadable


def _group_tasks(tasks: list[ImportTask]) -> Iterator[list[ImportTask]]:
    """Yield the tasks in groups of about `RANGE_BYTES`; each group becomes one part."""
    group: list[ImportTask] = []
    num_bytes = 0
    for task in tasks:
        size = max(task.size, _BYTES_OF_A_FILE)
        if group and num_bytes + size > RANGE_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(task)
        num_bytes += size
    if group:
        yield group


def _pool(groups: list[list[ImportTask]], num_workers: int | None) -> Engine:
    """Return a pool with one process per core, or a single process if the files are small."""
    num_bytes = sum(max(task.size, _BYTES_OF_A_FILE) for group in groups for task in group)
    pays = num_workers is not None or num_bytes >= POOL_BYTES
    return Pool(min(num_workers or os.cpu_count() or 1, len(groups)) if pays else 1)


class _Ingest:
    """State of an import: ids in the table, results not yet published, and counts."""

    def __init__(self, table: Table, *, wants_reward: bool = False, wants_scores: bool = False) -> None:
        self.table = table
        self._waits = {"reward": wants_reward, "scores": wants_scores}  # until some record has the requested value
        self._pending: list[tuple[list[ImportTask], ImportResult]] = []
        self.seen: set[str] = set()
        self.again: set[str] = set()  # files with records that already exist
        self.total = ImportResult()
        self._rejections: list[bytes | Place] = []
        # Ids as 16-byte digests in a sorted array: less memory than a set of texts, with vectorized lookup.
        there = (uid.encode() for batch in table.scan(columns=["uid"]) for uid in batch[0].to_pylist())
        self._known = np.sort(np.frombuffer(b"".join(map(xxh3_128_digest, there)), "S16"))
        self._added: set[bytes] = set()

    def add(self, tasks: list[ImportTask], result: ImportResult) -> None:
        """Publish the part of a result, or hold it until some record has the requested reward or score."""
        self._waits["reward"] &= not result.has_reward
        self._waits["scores"] &= not result.scores_used
        self._pending.append((tasks, result))
        if not any(self._waits.values()):
            self._take_pending()

    def finish(self, reward: str | None, scores: Scores | None) -> None:
        """Publish held results; if no record has the requested reward or score, delete them and raise SourceError."""
        results = [result for _, result in self._pending]
        # Parts are hidden files until published: deleting them leaves the table unchanged.
        if any(self._waits.values()) and any(result.part is not None for result in results):
            for result in results:
                for hidden in (result.part, result.quarantine):
                    if hidden is not None:
                        hidden.unlink()
            if self._waits["reward"]:
                raise SourceError(_no_reward(str(reward), sum((result.reward_names for result in results), Counter())))
            keys = next(result.score_keys for result in results if result.score_keys is not None)
            example = "no row" if scores is None else scores.example
            raise SourceError(
                f"--scores: no record has one of its {0 if scores is None else scores.num_rows:,} scores: the file has "
                f"{example}; a record would be matched by {keys}. Nothing was imported"
            )
        self._take_pending()

    def _take_pending(self) -> None:
        for tasks, result in self._pending:
            self._take(tasks, result)
        self._pending.clear()

    def _take(self, tasks: list[ImportTask], result: ImportResult) -> None:
        """Publish the part of a result, without rows that are already in the table, and add its counts."""
        self.total.add_counts(result)
        for task in tasks:
            self.total.counts[task.layout.format]["files"] += task.start == 0
        if result.quarantine is not None:
            self._rejections.append(result.quarantine)
        self.seen.update(result.uids)
        if result.part is None:
            return
        is_new = self._reveal(result.part, np.frombuffer(result.digests, "S16"))
        start = 0
        for task, num_rows in zip(tasks, result.num_rows, strict=True):
            num_old = num_rows - int(is_new[start : start + num_rows].sum())
            self.total.counts[task.layout.format]["already_there"] += num_old
            if num_old:
                self.again.add(str(task.path))
            start += num_rows

    def reject(self, rejected: Rejected) -> None:
        """Count a file that no reader accepts."""
        format_name = rejected.format or "(unknown)"
        self.total.counts[format_name]["files"] += 1
        self.total.reject(rejected, format_name, self._rejections.append)

    def _reveal(self, part: Place, digests: Array) -> Array:
        """Publish a hidden part without rows whose ids are known; returns the mask of the new rows."""
        is_new = ~_contains(self._known, digests)
        rows = digests.tolist()
        unique = set(rows)
        # Slow path: an id repeats within the part or an earlier part of this import. The first row is kept.
        if len(unique) < len(rows) or not self._added.isdisjoint(unique):
            for number, digest in enumerate(rows):
                is_new[number] &= digest not in self._added
                self._added.add(digest)
        self._added |= unique
        num_old = int((~is_new).sum())
        if num_old < len(digests):
            if num_old:
                # Rewrite the part without its old rows; a part without old rows is only renamed.
                rows = read_parquet(part).filter(is_new)
                part.unlink()
                part, _ = put_hidden_part(self.table.path, rows.to_batches())
            self.table.add_hidden_part(part)
        else:
            part.unlink()
        return is_new

    def write_quarantine(self, files: set[str]) -> None:
        """Replace the rejections of these files in quarantine.jsonl by those of this import."""
        target = self.table.path / QUARANTINE
        if not self._rejections and not target.exists():
            return
        with write_atomic(target) as temporary, open(temporary, "wb") as file:
            if target.exists():
                with open_binary(target) as before:
                    file.writelines(line for line in before if _key_of_file(line) not in files)
            for rejection in self._rejections:
                if isinstance(rejection, bytes):
                    file.write(rejection)
                else:
                    with open_binary(rejection) as pieces:
                        file.writelines(pieces)
                    rejection.unlink()
        if not size_of(target):
            target.unlink()

    def summary(self) -> ImportSummary:
        total = self.total
        return ImportSummary(
            formats={name: dict(counts) for name, counts in sorted(total.counts.items())},
            reasons=dict(total.reasons.most_common()),
            secrets=[dict(zip(("file", "line", "kind", "where"), secret, strict=True)) for secret in total.secrets],
            examples=total.examples,
            scores_to_choose=[name for name, _ in total.unchosen.most_common(_NUM_NAMES)],
            repairs=dict(total.repairs),
            not_read=dict(total.not_read.most_common()),
        )


def _no_reward(name: str, names: Counter[str]) -> str:
    """Return the error message for a reward that no record has, with the names that exist."""
    near = difflib.get_close_matches(name, names, n=1)
    listing = ", ".join(list(names)[:_NUM_NAMES]) + (", ..." if len(names) > _NUM_NAMES else "")
    return (
        f"--reward {name!r}: no record has a number of that name"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + (f" The records have: {listing}." if names else " The records have no numbers at all.")
        + " Nothing was imported"
    )


def _contains(sorted_digests: Array, digests: Array) -> Array:
    """Mask of digests that are in `sorted_digests`."""
    if not len(sorted_digests):
        return np.zeros(len(digests), bool)
    # The insertion point is the index of an equal digest; past the end, compare with the last one.
    places = np.minimum(np.searchsorted(sorted_digests, digests), len(sorted_digests) - 1)
    return np.asarray(sorted_digests[places] == digests)


def _key_of_file(line: bytes) -> str | None:
    try:
        return key_of(msgspec.json.decode(line, type=Rejected).file)
    except msgspec.MsgspecError:
        return None


def _is_plain(file: Place) -> bool:
    with open_binary(file) as begin:
        return begin.read(1) in (b"{", b"[", b" ", b"\n", b"\r", b"\t")
