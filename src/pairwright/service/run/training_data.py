"""Checks uploaded rows and converts them to tables for the trainer, with the import and pairing of the command line.

    dpo   rows of any preference format of `sources/`   ->  OUT/pairs, a pairs table with both splits
    sft   rows of the format customizer-sft             ->  OUT/experience and OUT/validation, experience tables

Rows are checked when a job is submitted, and again by its worker. Splits follow the training and validation files; rows
are neither dropped nor reordered. An invalid row fails the job, with its file and line in the message.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import polars as pl
import pyarrow as pa

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs.build import build_pairs
from pairwright.pairs.funnel import Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES
from pairwright.pairs.pair_table import PAIR_SCHEMA, pair_batches, write_pairs
from pairwright.paths import open_binary
from pairwright.records.experience import Experience
from pairwright.records.messages import Message, content_hash
from pairwright.sources.files import line_units
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file
from pairwright.store.importing import QUARANTINE, import_files
from pairwright.store.table import Table

# "text" is a prompt or answer outside any chat template.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "text"})
# Messages name a file by its path in the dataset, not by the path of its blob.
_OPTIONS = Options()


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its path in the dataset, the blob with its content, and its split."""

    path: str
    blob: Path
    split: str


def check_rows(files: Sequence[DataFile], training_type: str, *, max_bytes: int | None = None) -> int:
    """Count the rows of a dataset. Raises SourceError for the first one that cannot be trained on.

    training_type: dpo or sft.
    max_bytes: maximum bytes to read, from the start of each file; None reads whole files.
    """
    count = 0
    for file in files:
        layout = layout_of(file, training_type)
        if layout is None:
            continue
        whole = max_bytes is None or file.blob.stat().st_size <= max_bytes
        # For a file above the limit, the number of rows is estimated from the size of its first rows.
        most = None if whole else _rows_within(file.blob, max_bytes or 0)
        for record in islice(read_file(file.blob, layout, _OPTIONS), most):
            if isinstance(record, Rejected):
                raise refuse_row(file.path, record.line, record.reason.replace(str(file.blob), file.path))
            check_record(record, training_type, file.path)
            count += 1
        if max_bytes is not None:
            max_bytes = max(1, max_bytes - file.blob.stat().st_size)
    return count


def layout_of(file: DataFile, training_type: str) -> Layout | None:
    """Return the layout of a file, None if it has no rows. Raises SourceError for other formats."""
    name = "customizer" if training_type == "dpo" else "customizer-sft"
    layout = detect(file.blob, name)
    if isinstance(layout, Rejected):
        if next(line_units(file.blob), None) is None:
            return None
        raise refuse_row(file.path, layout.line, layout.reason.replace(str(file.blob), file.path))
    if training_type == "dpo":
        other = detect(file.blob)
        if isinstance(other, Layout) and _has_preferences(file.blob, other):
            return other
    if layout.format != name:
        raise SourceError(f"{file.path}: expected JSON Lines, got a file of the format {layout.format}")
    if layout.shape == "document" and next(line_units(file.blob), None) is None:
        return None
    return layout


def check_record(record: Experience, training_type: str, path: str) -> None:
    """Raise SourceError if a record cannot be trained on."""
    line = record.source.line if record.source is not None else None
    for message in (*record.prompt, *record.completion):
        _check_role(message, path, line)
    if training_type != "dpo":
        return
    if record.chosen is None or record.rejected is None:
        raise refuse_row(path, line, "expected a preference: a prompt with a chosen and a rejected response")
    for name, side in (("chosen_response", record.chosen), ("rejected_response", record.rejected)):
        for message in side.messages:
            _check_role(message, path, line)
        if not any(message.is_generated and (message.text.strip() or message.tool_calls) for message in side.messages):
            raise refuse_row(path, line, f"{name}: the answer is empty")
    if record.chosen.messages == record.rejected.messages:
        raise refuse_row(path, line, "chosen_response and rejected_response are the same")
    chosen, rejected = record.chosen.reward, record.rejected.reward
    if chosen is not None and rejected is not None and chosen <= rejected:
        raise refuse_row(path, line, f"the chosen response has reward {chosen!r}, the rejected one {rejected!r}")


def refuse_row(path: str, line: int | None, reason: str) -> SourceError:
    return SourceError(f"{path}: {reason}" if line is None else f"{path}:{line}: {reason}")


def _check_role(message: Message, path: str, line: int | None) -> None:
    if message.role not in ROLES:
        raise refuse_row(path, line, f"role: got {message.role[:40]!r}, expected one of {', '.join(sorted(ROLES))}")


def _has_preferences(blob: Path, layout: Layout) -> bool:
    records: Iterator[Experience | Rejected] = read_file(blob, layout, _OPTIONS)
    first = next((record for record in islice(records, 20) if isinstance(record, Experience)), None)
    return first is not None and first.chosen is not None and first.rejected is not None


def _rows_within(blob: Path, max_bytes: int) -> int:
    with open(blob, "rb") as file:
        start = file.read(min(max_bytes, 2**20))
    return max(1, max_bytes * max(1, start.count(b"\n")) // max(1, len(start)))


SFT_TABLES = {"train": "experience", "validation": "validation"}
# Every row becomes a pair, in its order: no deduplication, no tolerance, no filter.
_PAIRS = PairOptions(strategy="imported", verbatim=True, tie_tolerance=0.0, keep_masked=True)


def write_training_data(files: Sequence[DataFile], output: Path, *, training_type: str) -> dict[str, int]:
    """Write the tables of a dataset to `output`. Returns the number of rows per split."""
    is_dpo = training_type == "dpo"
    check_rows(files, training_type)
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output) as temporary:
        scratch = Path(temporary)
        # For DPO the tables are temporary: only the pairs are kept.
        tables = {split: Table((scratch if is_dpo else output) / name) for split, name in SFT_TABLES.items()}
        paths: dict[str, str] = {}  # imported path -> path in the dataset
        for split, table in tables.items():
            own = [file for file in files if file.split == split]
            paths |= _import_rows(own, table, scratch, training_type)
        counts = {split: table.count() for split, table in tables.items()}
        if not counts["train"]:
            raise PairwrightError("the training files of the dataset have no rows")
        if is_dpo:
            built = scratch / "pairs"
            summary = build_pairs(list(tables.values()), built, _PAIRS)
            # A dropped preference fails the job, with the reason.
            if summary["pairs"] < sum(counts.values()):
                raise _refuse_pair(list(tables.values()), built, paths)
            write_pairs(output / "pairs", _assign_splits(pair_batches(built), counts["train"]))
    return counts


def _import_rows(files: Sequence[DataFile], table: Table, scratch: Path, training_type: str) -> dict[str, str]:
    """Import files in order, and return the dataset path of each. Raises SourceError for the first invalid row."""
    paths: dict[str, str] = {}
    # Consecutive files of one format are imported together; a new format starts a new import, to keep the order.
    for format_name, numbered in groupby(enumerate(files), key=lambda item: _format_of(item[1], training_type)):
        copies: list[str] = []
        for number, file in numbered:
            if format_name is None:
                continue
            # A unique name: blobs are named by content, but identical files are imported separately.
            copy = scratch / f"{file.split}-{number}{_suffix(file.blob)}"
            try:
                os.link(file.blob, copy)
            except OSError:  # another file system
                shutil.copyfile(file.blob, copy)
            copies.append(str(copy))
            paths[str(copy)] = file.path
        if copies and format_name is not None:
            import_files(copies, table, format_name=format_name, num_workers=1)
    if (table.path / QUARANTINE).exists():
        with open_binary(table.path / QUARANTINE) as quarantine:
            rejected = msgspec.json.decode(quarantine.readline(), type=Rejected)
        raise refuse_row(paths[rejected.file], rejected.line, rejected.reason)
    return paths


def _format_of(file: DataFile, training_type: str) -> str | None:
    layout = layout_of(file, training_type)
    return None if layout is None else layout.format


def _suffix(blob: Path) -> str:
    with open(blob, "rb") as file:
        return ".parquet" if file.read(4) == b"PAR1" else ".jsonl"


def _refuse_pair(tables: Sequence[Table], built: Path, paths: Mapping[str, str]) -> SourceError:
    """Create the error for the first preference that did not become a pair."""
    dropped = pl.read_parquet(built / OUTCOMES).filter(pl.col("reason").is_not_null())
    reasons = dict(dropped.select("uid", "reason").iter_rows())
    experiences: Iterator[Experience] = chain.from_iterable(table.records() for table in tables)
    first = next(experience for experience in experiences if experience.eid.uid in reasons)
    assert first.source is not None
    assert first.chosen is not None
    assert first.rejected is not None
    reason = reasons[first.eid.uid]
    if reason == Reason.IDENTICAL:
        reason = "chosen_response and rejected_response are the same"
    elif reason in (Reason.TIED, Reason.OPPOSITE):
        reason = f"the chosen response has reward {first.chosen.reward!r}, the rejected one {first.rejected.reward!r}"
    return refuse_row(paths[first.source.file], first.source.line, reason)


def _assign_splits(batches: Iterator[pa.RecordBatch], num_train: int) -> Iterator[pa.RecordBatch]:
    """Set the splits of pairs. Duplicate rows of a dataset stay separate pairs, with distinct ids."""
    counts: Counter[str] = Counter()
    num_before = 0
    for batch in batches:
        ids = batch.column("id").to_pylist()
        for place, identity in enumerate(ids):
            counts[identity] += 1
            if counts[identity] > 1:
                ids[place] = content_hash(identity, counts[identity])
        # Pairs are in the order of the tables: training first.
        splits = ["train" if num_before + place < num_train else "validation" for place in range(len(ids))]
        num_before += len(ids)
        columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), "id": ids, "split": splits}
        yield pa.RecordBatch.from_pydict(columns, schema=PAIR_SCHEMA)
