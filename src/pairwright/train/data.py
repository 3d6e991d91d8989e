"""What is trained on: encoded pairs, scored sequences, hinted error turns; each with what its loss needs beside tokens.

Nothing is left out silently: what was refused by the tokens stage, or is unscored, is in `counts`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.arrays import Array
from pairwright.canonical import content_hash
from pairwright.config.train import TrainConfig
from pairwright.errors import PairwrightError
from pairwright.pairs.curriculum import Curriculum, read_curriculum
from pairwright.pairs.table import FILE_NAME
from pairwright.store.table import Table
from pairwright.tokens.cache import CachedPairs, read_pairs, read_sequences
from pairwright.tokens.distill import Distillation, encode_distillations, truncate_distillation
from pairwright.tokens.hints import HINTS, hints_for
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage import EncodeOptions, encode_source
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.train.layout import Tree, tree_of
from pairwright.train.token_signals import TokenSignals, read_token_signals

Show = Callable[[int, int], None]
NUM_RECENT = 2048


class DataError(PairwrightError):
    """There is nothing to train on, or it does not fit the model."""


@dataclass(frozen=True)
class PairData:
    """Encoded pairs with their weights and gaps; `train` and `validation` are positions."""

    pairs: CachedPairs
    weights: Array
    gaps: Array
    train: Array
    validation: Array
    counts: dict[str, int]
    curriculum: Curriculum | None = None
    _recent: dict[int, Tree] = field(default_factory=dict)

    def tree(self, position: int) -> Tree:
        """The pair at a position. What an update has looked at is kept for its next looks."""
        if position not in self._recent:
            if len(self._recent) >= NUM_RECENT:
                self._recent.clear()
            self._recent[position] = self._made(position)
        return self._recent[position]

    def is_full(self, position: int) -> bool:
        """Whether something is trained on both sides."""
        return all(mask.any() for mask in self.tree(position).masks)

    def _made(self, position: int) -> Tree:
        pair = self.pairs[position]
        start = pair.prompt_length
        sides = (pair.chosen, pair.rejected)
        return Tree(
            pair.chosen.ids[:start],
            tuple(side.ids[start:] for side in sides),
            tuple(side.mask[start:] for side in sides),
        )

    @property
    def fingerprint(self) -> str:
        parts = [self.pairs.ids, self.pairs.lengths.tolist(), self.weights.tolist(), self.train.tolist()]
        return content_hash(*parts, *([] if self.curriculum is None else [self.curriculum.as_json()]))

    def num_tokens(self, position: int) -> int:
        """Tokens of the pair's row when its prompt is shared."""
        return int(self.pairs.lengths[position].sum() - self.pairs.prompt_lengths[position])


@dataclass(frozen=True)
class PolicyData:
    """Runs of an experience table: sequences with reward and group. Unscored ones only where they are asked for.

    `signals` is what was recorded for single tokens.
    """

    ids: list[str]
    sequences: list[Sequence]
    trees: list[Tree]
    rewards: Array
    groups: Array
    counts: dict[str, int]
    signals: TokenSignals = field(default_factory=TokenSignals)

    @property
    def fingerprint(self) -> str:
        lengths = [len(sequence) for sequence in self.sequences]
        return content_hash(self.ids, lengths, self.rewards.tolist(), self.signals.fingerprint)


@dataclass(frozen=True)
class DistillData:
    """Error turns: the student's sequence, the hinted teacher's, and which tokens are the same."""

    ids: list[str]
    items: list[Distillation]
    counts: dict[str, int]

    @property
    def fingerprint(self) -> str:
        return content_hash(self.ids, [len(item.student_index) for item in self.items])


def load_pairs(source: Path, tokens: Path, model: Path, settings: TrainConfig, show: Show) -> PairData:
    """Encode the pairs of a table with the model's tokenizer (what is cached is not encoded again) and read them."""
    manifest = encode_source(source, tokens, _options(model, settings), progress=show)
    pairs = read_pairs(tokens)
    path = source / FILE_NAME if source.is_dir() else source
    narrow = pl.read_parquet(path, columns=["id", "weight", "gap", "split", "curriculum_stage"]).with_row_index("row")
    narrow = narrow.unique("id", keep="first")
    rows = pl.DataFrame({"id": pairs.ids}, schema={"id": pl.String}).join(
        narrow, on="id", how="left", maintain_order="left"
    )
    held = (rows["split"] == "validation").to_numpy()
    counts = {f"refused: {reason}": count for reason, count in manifest["refused"].items()}
    if not len(pairs) or held.all():
        why = ", ".join(f"{count} × {reason}" for reason, count in counts.items()) or "the table is empty"
        raise DataError(f"{source}: no pair to train on ({why}); see pairwright tokens check --tokenizer {model}")
    in_order = np.argsort(rows["row"].to_numpy(), kind="stable")  # of the table, whatever the cache's order is
    return PairData(
        pairs=pairs,
        weights=rows["weight"].to_numpy().astype(np.float32),
        gaps=rows["gap"].to_numpy().astype(np.float32),
        train=in_order[~held[in_order]],
        validation=in_order[held[in_order]],
        counts={**counts, "truncated": manifest["truncated"]},
        curriculum=read_curriculum(source, rows["curriculum_stage"]),
    )


def load_policy_data(
    source: Path, tokens: Path, model: Path, settings: TrainConfig, show: Show, *, scored: bool = True
) -> PolicyData:
    """The experiences of a table as sequences, with their groups: same task, step and prompt."""
    manifest = encode_source(source, tokens, _options(model, settings), progress=show)
    table, columns = Table(source, create=False), ["uid", "tid", "step", "prompt_hash", "reward"]
    rewards: dict[str, tuple[str, float | None]] = {}
    for batch in table.scan(columns=columns):
        for row in batch.to_pylist():
            rewards[row["uid"]] = (content_hash(row["tid"], row["step"], row["prompt_hash"]), row["reward"])
    counts: Counter[str] = Counter({f"refused: {reason}": num for reason, num in manifest["refused"].items()})
    found = [(uid, sequence) for uid, side, sequence in read_sequences(tokens) if not side]
    signals = read_token_signals(table, dict(found)) if scored else TokenSignals()
    ids, sequences, values, groups = [], [], [], []
    number_of: dict[str, int] = {}
    for uid, sequence in found:
        group, reward = rewards[uid]
        if reward is None and not signals.has(uid):
            counts["unscored"] += 1
            if scored:
                continue
        ids.append(uid)
        sequences.append(sequence)
        values.append(np.nan if reward is None else reward)
        groups.append(number_of.setdefault(group, len(number_of)))
    if not sequences:
        raise DataError(f"{source}: no {'scored ' if scored else ''}run to train on: {dict(counts)}")
    return PolicyData(
        ids=ids,
        sequences=sequences,
        rewards=np.array(values, np.float32),
        groups=np.array(groups, np.int64),
        counts={**counts, **signals.counts},
        trees=[tree_of(sequence.ids, sequence.mask) for sequence in sequences],
        signals=signals,
    )


def load_distill_data(source: Path, model: Path, settings: TrainConfig, show: Show) -> DistillData:
    """The error turns of a table that have a hint and a recovery."""
    tokenizer = ChatTokenizer.from_folder(model)
    templates = {**HINTS, **settings.sdpo.templates}
    ids: list[str] = []
    items: list[Distillation] = []
    counts: Counter[str] = Counter()
    table = Table(source, create=False)
    total = table.count()
    for number, experience in enumerate(table.records()):
        show(number, total)
        hints, found = hints_for(experience.messages, experience.errors, templates=templates)
        counts["without_hint"] += found.without_hint
        counts["without_recovery"] += found.without_recovery
        hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
        if not hints:
            continue
        tools: Any = list(experience.tools) or None
        try:
            found_items = encode_distillations(
                tokenizer, experience.messages, hints, tools, train_from=len(experience.prompt)
            )
            if settings.max_length is not None:
                found_items = [
                    truncate_distillation(item, settings.max_length, settings.truncation) for item in found_items
                ]
        except Refusal as refusal:
            counts[f"refused: {refusal.reason}"] += 1
            continue
        ids += [experience.eid.uid] * len(found_items)
        items += found_items
    if not items:
        raise DataError(f"{source}: no error turn with a hint and a recovery to distil: {dict(counts)}")
    return DistillData(ids, items, dict(counts))


def _options(model: Path, settings: TrainConfig) -> EncodeOptions:
    return EncodeOptions(str(model), settings.max_length, settings.truncation)
