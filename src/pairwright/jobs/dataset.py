"""Training and validation files for external trainers: exports a pairs table in the trainer's format.

An existing validation split is used. Otherwise the table is split here, by groups that share no task and no prompt
(pairs/candidates/pair_ids.py), so that validation data does not leak into training. The output is deterministic for the
same pairs and seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.export import EXPORTERS, ExportOptions
from pairwright.jobs.job import BackendError
from pairwright.pairs.lineage import LINEAGE_FILE, source_tables, table_references
from pairwright.pairs.pair_table import pair_batches, write_pairs
from pairwright.pairs.selection import splits
from pairwright.paths import write_json
from pairwright.records.messages import Json

# The columns that `splits` reads, and the existing split.
_SPLIT_BY = ["tid", "prompt_hash", "across_groups", "rejected_uid", "split"]
# Notes of pairs on which the trainer would train other data than the pair contains.
UNFAITHFUL = ("several_messages_a_side", "tools_not_rendered", "a_side_begins_in_the_environment")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The exported files, with the number of pairs written, and of pairs refused or noted by reason."""

    training: Path
    validation: Path | None
    num_training: int
    num_validation: int
    refused: dict[str, int]
    noted: dict[str, int]

    def as_json(self) -> Json:
        fields: Json = msgspec.to_builtins(self, enc_hook=str)
        return fields

    def __str__(self) -> str:
        refused = ", ".join(f"{reason} {num}" for reason, num in sorted(self.refused.items()))
        noted = ", ".join(f"{reason} {num}" for reason, num in sorted(self.noted.items()))
        remarks = (f"; refused: {refused}" if refused else "") + (f"; noted: {noted}" if noted else "")
        return f"{self.num_training:,} pairs for training, {self.num_validation:,} for validation{remarks}"


def write_dataset(
    pairs: Path,
    folder: Path,
    *,
    target: str,
    names: tuple[str, str],
    validation: float,
    seed: int,
    history: bool = False,
) -> Dataset:
    """Export a pairs table to `folder` as a training and a validation file.

    names: file names for training and validation, relative to `folder`.
    validation: share of pairs for validation, if the table has no split; 0 for none.
    """
    table = with_split(pairs, folder / "pairs", validation=validation, seed=seed)
    refused: dict[str, int] = {}
    noted: dict[str, int] = {}
    written: list[int] = []
    parts: tuple[tuple[Literal["train", "validation"], str], ...] = (("train", names[0]), ("validation", names[1]))
    for split, name in parts:
        summary = EXPORTERS[target](table, folder / name, ExportOptions(split=split, history=history))
        written.append(summary.written)
        for counts, reasons in ((refused, summary.refused), (noted, summary.noted)):
            for reason, num in reasons.items():
                counts[reason] = counts.get(reason, 0) + num
    noted |= _lost_by_text(table)
    _check(written, refused, pairs=pairs, target=target, validation=validation)
    # The exporter always writes the file, but trainers fail on a file without rows.
    if not written[1]:
        (folder / names[1]).unlink()
    return Dataset(
        training=folder / names[0],
        validation=folder / names[1] if written[1] else None,
        num_training=written[0],
        num_validation=written[1],
        refused=refused,
        noted=noted,
    )


def _lost_by_text(pairs: Path) -> dict[str, int]:
    """Count sides that change as text: recorded ids are encoded again, truncated sides get a stop token."""
    facts = {"recorded_ids_encoded_anew": "recorded", "stop_added_to_cut_answers": "cut"}
    columns = [f"{side}_{name}" for name in facts.values() for side in ("chosen", "rejected")]
    counts = dict.fromkeys(facts, 0)
    for batch in pair_batches(pairs, columns):
        for note, name in facts.items():
            # Sums of boolean columns; None for a batch without values.
            counts[note] += sum(pc.sum(batch.column(f"{side}_{name}")).as_py() or 0 for side in ("chosen", "rejected"))
    return {note: num for note, num in counts.items() if num}


def with_split(pairs: Path, output: Path, *, validation: float, seed: int) -> Path:
    """Return the table if it has a split or `validation` is 0, else write a copy with a split to `output`."""
    narrow = [pl.from_arrow(batch) for batch in pair_batches(pairs, _SPLIT_BY)]
    if not narrow:
        raise BackendError(f"{pairs}: no pairs; see: pairwright pairs stats {pairs}")
    frame = pl.concat([table for table in narrow if isinstance(table, pl.DataFrame)])
    if validation <= 0 or (frame["split"] == "validation").any():
        return pairs
    split_column = splits(frame, validation=validation, seed=seed)
    if (split_column == "train").all() or (split_column == "validation").all():
        raise BackendError(
            f"{pairs}: its pairs share tasks or prompts, so that none can be held out for validation: "
            f"set validation: 0 in the backend's section, or bring more tasks"
        )
    write_pairs(output, _replace_split(pairs, split_column))
    # Recorded ids are looked up in the tables that the pairs were built from.
    write_json(output / LINEAGE_FILE, {"tables": table_references(source_tables(pairs), output)})
    return output


def _replace_split(pairs: Path, split_column: pl.Series) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in pair_batches(pairs):
        # Rows are in the same order as the narrow columns.
        column = pa.array(split_column[start : start + batch.num_rows].to_list(), pa.string())
        yield batch.set_column(batch.schema.get_field_index("split"), "split", column)
        start += batch.num_rows


def _check(written: list[int], refused: dict[str, int], *, pairs: Path, target: str, validation: float) -> None:
    reasons = ", ".join(f"{reason} {num}" for reason, num in sorted(refused.items()))
    if not written[0]:
        raise BackendError(f"{pairs}: no pair for training fits {target} ({reasons}); docs: Exports")
    if not written[1] and validation > 0:
        raise BackendError(
            f"{pairs}: none of the pairs held out for validation fits {target} ({reasons}): bring more "
            f"tasks, or set validation: 0 in the backend's section"
        )
