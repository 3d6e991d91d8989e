"""Distillation data: turns or runs of a table, in the student's and in the teacher's context.

    hints      turns after an error, with a hint before them (tokens/hints.py)
    nothing    whole runs unchanged, if the teacher is another model

A hint is text at the end of a message, rendered by the chat template like any other. Sequences are in a mapped file,
like those of pairs. Nothing is left out silently: `counts` has everything that is not distilled.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import DistillConfig
from pairwright.ledger.trained import HeldTurns
from pairwright.paths import write_json
from pairwright.records.arrays import Array
from pairwright.records.messages import Json, content_hash
from pairwright.store.table import Table
from pairwright.tokens.batch.collate import Tree, tree_of
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.hints import Hinter
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Origin
from pairwright.tokens.stage.cache import LOSSES, CachedSequences, sequence_row, write_items, write_part
from pairwright.tokens.teacher_sequences import Distillation, distill_experience, truncate_distillation
from pairwright.tokens.tokenizer import load_tokenizer
from pairwright.training.data import (
    DataError,
    PolicyData,
    SelectedSequences,
    Show,
    find_left_out,
    list_reasons,
    stop_for_inputs,
)

MANIFEST = "taught.json"
NUM_AT_ONCE = 1024  # runs that are in memory while they are encoded
SIDES = ("student", "teacher")


class Aligned:
    """Items by position, built lazily: two sequences, whose masks mark the same distilled tokens."""

    def __init__(self, *sides: CachedSequences | SelectedSequences) -> None:
        self._sides = sides  # student, teacher

    def __len__(self) -> int:
        return len(self._sides[0])

    def __getitem__(self, position: int) -> Distillation:
        student, teacher = (side[position] for side in self._sides)
        # (K,) positions of the distilled tokens: the k-th is the same token on both sides. Nothing predicts the first.
        index = [np.flatnonzero(side.mask[1:]).astype(np.int32) + 1 for side in (student, teacher)]
        return Distillation(student=student, teacher=teacher, student_index=index[0], teacher_index=index[1])


@dataclass(frozen=True)
class DistillData:
    ids: list[str]
    items: Aligned
    num_tokens: Array  # (N,) of both sides together
    counts: dict[str, int]
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> Array:
        return np.ones(len(self.ids), np.float32)

    def tree(self, position: int) -> Tree:
        item = self.items[position]
        return tree_of(item.student.ids, item.student_mask, (Origin(item.student.report.uid, tuple(item.targets)),))

    def list_held(self, position: int) -> list[HeldTurns]:
        one, student = self.items[position], self.items[position].student
        added = student.report.added_tokens
        return [
            HeldTurns(self.ids[position], "", student.ids, one.student_mask, student.message_index, added_tokens=added)
        ]

    def token_weights(self, position: int) -> Array | None:
        """Return the weight of each distilled token; None if all are equal."""
        item = self.items[position]
        return None if item.student.weights is None else item.student.weights[item.student_index]

    @property
    def fingerprint(self) -> str:
        return content_hash(self.ids, self.num_tokens.tolist())


def load_distill_data(
    source: Path,
    output: Path,
    options: TokensConfig,
    settings: DistillConfig,
    show: Show,
    *,
    where: str | None = None,
    is_ready: bool = False,
) -> DistillData:
    """Encode the distilled turns of a table into a folder, and read them from there.

    With `is_ready` (another process has written them for the same table and options), only read them.
    """
    if options.tools_as_text != "off":
        raise DataError("tokens.tools_as_text: hints are not written into such text: leave out the channel sdpo")
    table = Table(source, create=False)
    # Everything that the sequences depend on, except the user's hint function and the judge.
    key = content_hash(
        options.content(),
        options.tokenizer,
        settings.model_dump(mode="json"),
        where,
        sorted(table.segments()),
        table.count(),
    )
    if not (is_ready and _read_manifest(output).get("key") == key):
        _encode(table, output, options, settings, show, where=where, key=key)
    manifest = _read_manifest(output)
    if not manifest["num_items"]:
        reasons = list_reasons(manifest["counts"])
        raise DataError(f"{source}: no error turn with a hint and a recovery to distil ({reasons})")
    students, teachers = (CachedSequences(output, side) for side in SIDES)
    num_tokens, items = students.lengths + teachers.lengths, Aligned(students, teachers)
    return DistillData(students.ids, items, num_tokens, manifest["counts"], manifest["refusals"])


def distill_runs(runs: PolicyData) -> DistillData:
    """Distil whole runs: the teacher reads the student's context."""
    items = Aligned(runs.sequences, runs.sequences)
    # Twice the length: both sides are computed, although they are one sequence.
    return DistillData(runs.ids, items, 2 * runs.lengths, runs.counts, runs.refusals)


def _encode(
    table: Table,
    output: Path,
    options: TokensConfig,
    settings: DistillConfig,
    show: Show,
    *,
    where: str | None,
    key: str,
) -> None:
    tokenizer = load_tokenizer(options)
    counts: Counter[str] = Counter()
    refused: dict[str, str] = {}
    left_out = find_left_out(table, where)
    counts.update(left_out.values())
    # Remove parts of an earlier run, which have the same keys. The manifest is written last, so interruptions show.
    (output / MANIFEST).unlink(missing_ok=True)
    for old in output.glob("*.parquet"):
        old.unlink()
    output.mkdir(parents=True, exist_ok=True)
    total, done, num_items = table.count(), 0, 0
    hinter = Hinter(settings)
    encode = partial(distill_experience, tokenizer, options=EncodeOptions.of(options))
    records = table.records()
    while part := list(islice(records, NUM_AT_ONCE)):
        rows: list[Json] = []
        for run in part:
            uid = run.eid.uid
            if uid in left_out:
                continue
            hints, num_hints = hinter(run.messages, run.errors)
            counts["without_hint"] += num_hints.without_hint
            counts["without_recovery"] += num_hints.without_recovery
            # Turns of the prompt are context: a hint for one of them trains nothing.
            hints = [hint for hint in hints if hint.target >= len(run.prompt)]
            if not hints:
                continue
            try:
                items = encode(run, hints)
                if options.max_length is not None:
                    cut = partial(truncate_distillation, keep_first=options.keep_first)
                    items = [cut(item, options.max_length, options.truncation) for item in items]
            except Refusal as refusal:
                stop_for_inputs(table.path, {refusal.reason: 1})
                counts[f"refused: {refusal.reason}"] += 1
                refused[uid] = refusal.reason
                continue
            for name, counted in LOSSES.items():
                if num_lacking := sum(bool(getattr(item.student.report, name)) for item in items):
                    counts[counted] += num_lacking
            counts["recorded"] += sum(item.student.report.source == "recorded" for item in items)
            # A template that rewrites history gives several items per run, each with its own number.
            for item in items:
                rows += _rows(item, uid, num_items)
                num_items += 1
        if rows:
            write_part(output, rows)
        done += len(part)
        show(done, total)
    hinter.close()
    write_items(output, [str(number) for number in range(num_items)])
    write_json(
        output / MANIFEST, {"key": key, "num_items": num_items, "counts": dict(counts), "refusals": dict(refused)}
    )


def _rows(item: Distillation, uid: str, number: int) -> Iterator[Json]:
    # Masks mark distilled, not generated, tokens: they define the alignment, so no index is stored.
    masks = item.student_mask, item.teacher_mask
    for name, side, mask in zip(SIDES, (item.student, item.teacher), masks, strict=True):
        yield sequence_row(str(number), uid, name, msgspec.structs.replace(side, mask=mask))


def _read_manifest(output: Path) -> dict[str, Any]:
    path = output / MANIFEST
    manifest: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    return manifest
