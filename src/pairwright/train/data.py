"""What is trained on: encoded pairs, scored sequences, hinted error turns; each with what its loss needs.

Nothing is left out silently: what was refused by the tokens stage, or is unscored, is in `counts`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import DistillConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.trained import Held
from pairwright.losses.advantages import token_advantages
from pairwright.pairs.pair_table import FILE_NAME, PAIR_SCHEMA
from pairwright.pairs.selection import Curriculum, read_curriculum
from pairwright.records.arrays import Array
from pairwright.records.canonical import content_hash
from pairwright.records.experience import Experience
from pairwright.store.columns import parse_where
from pairwright.store.table import Table
from pairwright.tokens.batch.collate import Tree, as_tree
from pairwright.tokens.hints import Hinter
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage.cache import CachedPairs, read_pairs, read_refusals, read_sequences
from pairwright.tokens.stage.stage import encode_source, read_encoded
from pairwright.tokens.teacher_sequences import Distillation, distill_experience, truncate_distillation
from pairwright.tokens.tokenizer import load_tokenizer

# Signals of single tokens: advantages that were recorded, and rewards of tokens or steps.


@dataclass(frozen=True)
class TokenSignals:
    """By id of the run: a value for each token of its sequence."""

    advantages: dict[str, Array] = field(default_factory=dict)
    rewards: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def has(self, uid: str) -> bool:
        return uid in self.advantages or uid in self.rewards

    @property
    def fingerprint(self) -> str:
        signals = (self.advantages, self.rewards)
        return content_hash([[uid, array.tobytes()] for arrays in signals for uid, array in sorted(arrays.items())])

    def by_token(self, ids: list[str], groups: Array, *, kind: str) -> dict[int, Array]:
        """The advantages of the tokens of runs that have some of their own, by position among `ids`.

        Recorded advantages are taken as they are. Rewards count where every run of the group has some: the runs of a
        group are compared with one another, and only like with like.
        """
        by_place = {place: self.advantages[uid] for place, uid in enumerate(ids) if uid in self.advantages}
        # Groups in which some run has no rewards of its own, or has recorded advantages instead.
        without = {int(groups[place]) for place, uid in enumerate(ids) if uid not in self.rewards or place in by_place}
        places = [place for place in range(len(ids)) if int(groups[place]) not in without]
        if places:
            rewards = [torch.from_numpy(self.rewards[ids[place]]) for place in places]
            advantages = token_advantages(rewards, torch.from_numpy(groups[places]), kind=kind)
            by_place |= {place: values.numpy() for place, values in zip(places, advantages, strict=True)}
        return by_place


def read_token_signals(table: Table, sequences: dict[str, Sequence], *, teacher_weight: float = 0.0) -> TokenSignals:
    """The signals of the runs of a table, for the sequences that are trained of them.

    With `teacher_weight`, what a recorded teacher says of each token comes first. What was recorded and is not used is
    counted.
    """
    signals = TokenSignals()
    counts: Counter[str] = Counter()
    for run in table.records(where=pl.col("num_tokens").is_not_null()) if sequences else ():
        sequence = sequences.get(run.eid.uid)
        if sequence is None or run.tokens is None:
            continue
        taught = _teacher_advantages(run, teacher_weight)
        unused = {"teacher_logprobs": run.teacher_logprobs if taught is None else None, "returns": run.returns}
        counts.update(f"{name}_unused" for name, array in unused.items() if array is not None)
        counts["custom_fields_unused"] += bool(run.custom_fields)
        advantages = run.advantages if taught is None else taught
        recorded = run.token_level_reward if advantages is None else advantages
        if recorded is None:
            continue
        # Cut, or encoded anew from the messages: the recorded values do not fit these tokens.
        if not np.array_equal(sequence.ids, run.tokens):
            counts["token_rewards_unused"] += 1
            continue
        # Signals are of the response: spread over the sequence, 0 in the prompt.
        values = np.zeros(len(sequence), np.float32)
        values[run.prompt_length :] = recorded
        is_finite = np.isfinite(values)
        if not is_finite[sequence.mask].all():
            counts["token_rewards_not_finite"] += 1
            continue
        target = signals.rewards if advantages is None else signals.advantages
        target[run.eid.uid] = np.where(is_finite, values, np.float32(0))  # others fill up where nothing was generated
    if teacher_weight and sequences and not signals.advantages:
        raise DataError(
            f"{table.path}: train.grpo.teacher_weight is {teacher_weight:g}, and no run has teacher_logprobs and "
            f"logprobs, one value a token of its recorded ids: record them, or set it to 0"
        )
    signals.counts.update(+counts)
    return signals


def _teacher_advantages(run: Experience, weight: float) -> Array | None:
    """How much likelier the teacher found each token than the policy that sampled it; None where that is not known."""
    teacher, sampled = run.teacher_logprobs, run.logprobs
    if not weight or teacher is None or sampled is None or teacher.ndim != 1:
        return None
    difference: Array = weight * (teacher.astype(np.float32) - sampled.astype(np.float32))
    return difference


# The data of the channels.

Show = Callable[[int, int], None]
NUM_RECENT = 2048  # pairs whose trees are kept in memory
FILTERED = "filtered by --where"  # rows for which `train.where` does not hold
# Field of a sequence's report -> its name in `counts`.
LOSSES = {
    "dropped": "with_dropped_content",
    "prompt_dropped": "with_dropped_prompt_content",
    "images": "with_images_left_out",
    "left_out": "with_turns_left_out",
}
# Values recorded with a run that training does not use, and how to use them where one can.
UNUSED = {
    "teacher_logprobs": ": train.grpo.teacher_weight distils from them, where logprobs are recorded, too",
    "returns": "",
    "custom_fields": "",
}


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
    refusals: dict[str, str] = field(default_factory=dict)
    curriculum: Curriculum | None = None
    _recent: dict[int, Tree] = field(default_factory=dict)

    @cached_property
    def _outside(self) -> set[int]:
        # Neither trained nor held out: `where` excluded them.
        return set(range(len(self.pairs))).difference(self.train.tolist(), self.validation.tolist())

    def tree(self, position: int) -> Tree:
        """The pair at a position. What an update has looked at is kept for its next looks."""
        if position not in self._recent:
            if len(self._recent) >= NUM_RECENT:
                self._recent.clear()
            self._recent[position] = as_tree(self.pairs[position])
        return self._recent[position]

    def list_held(self, position: int) -> list[Held]:
        """Both sides, for the ledger."""
        pair, name = self.pairs[position], self.pairs.ids[position]
        unused = None if self.weights[position] > 0 else "the pair has weight 0"
        unused = FILTERED if position in self._outside else unused
        sides = (("chosen", pair.chosen), ("rejected", pair.rejected))
        return [
            Held(name, side, one.ids, one.mask, one.message_index, unused, one.report.not_selected)
            for side, one in sides
        ]

    def is_full(self, position: int) -> bool:
        """Whether something is trained on both sides."""
        return all(mask.any() for mask in self.tree(position).masks)

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
    refusals: dict[str, str] = field(default_factory=dict)
    signals: TokenSignals = field(default_factory=TokenSignals)

    def weigh(self, by: str) -> Array:
        """The weight (N,) of each sequence: 1, or by "run" its share of the run that it is a part of."""
        num_parts = Counter(self.ids if by == "run" else ())
        return np.array([1 / num_parts.get(uid, 1) for uid in self.ids], np.float32)

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
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        return content_hash(self.ids, [len(item.student_index) for item in self.items])


def load_pairs(
    source: Path, tokens: Path, options: TokensConfig, show: Show, *, where: str | None = None, is_encoded: bool = False
) -> PairData:
    """Encode the pairs of a table (what is cached is not encoded again) and read those for which `where` holds.

    What `is_encoded` already is read as it is, or refused: nothing is encoded.
    """
    manifest = _encode(source, tokens, options, show, is_encoded=is_encoded)
    pairs = read_pairs(tokens)
    path = source / FILE_NAME if source.is_dir() else source
    # One row for each pair id, joined in the order of the cache; `row` is the place in the table.
    narrow = pl.read_parquet(path, columns=["id", "weight", "gap", "split", "curriculum_stage"]).with_row_index("row")
    narrow = narrow.unique("id", keep="first")
    rows = pl.DataFrame({"id": pairs.ids}, schema={"id": pl.String}).join(
        narrow, on="id", how="left", maintain_order="left"
    )
    # (N,) over the encoded pairs: held out for validation, and wanted by `where`.
    held = (rows["split"] == "validation").to_numpy()
    counts = {f"refused: {reason}": count for reason, count in manifest["refused"].items()}
    wanted = _match_pairs(source, where, pairs.ids)
    if where is not None:
        counts[FILTERED] = int((~wanted).sum())
    if not (wanted & ~held).any():
        why = ", ".join(f"{count} × {reason}" for reason, count in counts.items())
        way_out = f"see pairwright tokens check --tokenizer {options.tokenizer}"
        if not why:
            why = "all are in the validation split" if len(pairs.ids) else "the table is empty"
            way_out = f"build them again with other options: {source}/funnel.json says what became of the candidates"
        raise DataError(f"{source}: no pair to train on ({why}); {way_out}")
    in_order = np.argsort(rows["row"].to_numpy(), kind="stable")  # of the table, whatever the cache's order is
    return PairData(
        pairs=pairs,
        weights=rows["weight"].to_numpy().astype(np.float32),
        gaps=rows["gap"].to_numpy().astype(np.float32),
        train=in_order[(wanted & ~held)[in_order]],
        validation=in_order[(wanted & held)[in_order]],
        counts={**counts, "truncated": manifest["truncated"], "recorded": manifest["recorded"], **_losses(manifest)},
        refusals=read_refusals(tokens),
        curriculum=read_curriculum(source, rows["curriculum_stage"]),
    )


def load_policy_data(
    source: Path,
    tokens: Path,
    options: TokensConfig,
    show: Show,
    *,
    scored: bool = True,
    where: str | None = None,
    is_encoded: bool = False,
    teacher_weight: float = 0.0,
) -> PolicyData:
    """The experiences of a table as sequences, with their groups: same task, step and prompt."""
    manifest = _encode(source, tokens, options, show, is_encoded=is_encoded)
    table, columns = Table(source, create=False), ["uid", "tid", "step", "prompt_hash", "reward"]
    rewards: dict[str, tuple[str, float | None]] = {}  # uid -> (hash of its group, reward)
    for batch in table.scan(columns=columns):
        for row in batch.to_pylist():
            rewards[row["uid"]] = (content_hash(row["tid"], row["step"], row["prompt_hash"]), row["reward"])
    counts: Counter[str] = Counter({f"refused: {reason}": num for reason, num in manifest["refused"].items()})
    filtered = _find_excluded(table, where)
    counts |= {FILTERED: len(filtered)} if where is not None else {}
    # Rows with a side belong to preferences: only runs are wanted here.
    encoded = [(uid, sequence) for uid, side, sequence in read_sequences(tokens) if not side and uid not in filtered]
    signals = TokenSignals()
    if scored:
        signals = read_token_signals(table, dict(encoded), teacher_weight=teacher_weight)
    ids, sequences, values, groups = [], [], [], []
    number_of: dict[str, int] = {}  # groups are numbered as they come
    for uid, sequence in encoded:
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
        counts={**counts, **signals.counts, **_losses(manifest)},
        trees=[as_tree(sequence) for sequence in sequences],
        refusals=read_refusals(tokens),
        signals=signals,
    )


def load_distill_data(
    source: Path, options: TokensConfig, settings: DistillConfig, show: Show, *, where: str | None = None
) -> DistillData:
    """The error turns of a table that have a hint and a recovery, with the ids that were sampled where recorded."""
    if options.tools_as_text != "off":
        raise DataError("tokens.tools_as_text: hints are not written into such text: leave out the channel sdpo")
    tokenizer = load_tokenizer(options)
    hinter = Hinter(settings)
    ids: list[str] = []
    items: list[Distillation] = []
    counts: Counter[str] = Counter()
    refused: dict[str, str] = {}
    table = Table(source, create=False)
    total = table.count()
    filtered = _find_excluded(table, where)
    counts |= {FILTERED: len(filtered)} if where is not None else {}
    for number, experience in enumerate(table.records()):
        show(number, total)
        if experience.eid.uid in filtered:
            continue
        hints, num_hints = hinter(experience.messages, experience.errors)
        counts["without_hint"] += num_hints.without_hint
        counts["without_recovery"] += num_hints.without_recovery
        # Turns of the prompt are context: a hint for one of them trains nothing.
        hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
        if not hints:
            continue
        try:
            distillations = distill_experience(
                tokenizer,
                experience,
                hints,
                recorded=options.recorded,
                record_kwargs=options.record_kwargs,
                missing_reasoning=options.missing_reasoning,
                allow_dropped=options.allow_dropped,
                allow_images=options.allow_images,
            )
            if options.max_length is not None:
                cut = partial(truncate_distillation, keep_first=options.keep_first)
                distillations = [cut(item, options.max_length, options.truncation) for item in distillations]
        except Refusal as refusal:
            _stop_for_inputs(source, {refusal.reason: 1})
            counts[f"refused: {refusal.reason}"] += 1
            refused[experience.eid.uid] = refusal.reason
            continue
        for name, counted in LOSSES.items():
            if num_lacking := sum(bool(getattr(item.student.report, name)) for item in distillations):
                counts[counted] += num_lacking
        counts["recorded"] += sum(item.student.report.source == "recorded" for item in distillations)
        ids += [experience.eid.uid] * len(distillations)
        items += distillations
    hinter.close()
    if not items:
        raise DataError(f"{source}: no error turn with a hint and a recovery to distil: {dict(counts)}")
    return DistillData(ids, items, dict(counts), refused)


def _encode(source: Path, tokens: Path, options: TokensConfig, show: Show, *, is_encoded: bool) -> dict[str, Any]:
    """The manifest of the sequences of a table, which are encoded unless they are already."""
    if is_encoded:
        return read_encoded(source, tokens, options)
    manifest = encode_source(source, tokens, options, progress=show)
    _stop_for_inputs(source, manifest["refused"])
    return manifest


def _stop_for_inputs(source: Path, refused: dict[str, int]) -> None:
    """Recorded inputs beside the tokens are half of what the model was given: no channel uses them, so none trains."""
    if num := refused.get("multi_modal_inputs"):
        raise DataError(
            f"{source}: {num:,} records have multi_modal_inputs, which no channel uses: train on the tokens alone with "
            "tokens.allow_images (--allow-images), or leave the records out with --where"
        )


def _losses(manifest: dict[str, Any]) -> dict[str, int]:
    """Sequences that lack something, by what they lack."""
    return {name: manifest[name] for name in LOSSES.values() if manifest[name]}


def _match_pairs(source: Path, where: str | None, ids: list[str]) -> Array:
    """For each of the ids of a pairs table, whether the condition holds for its first row."""
    if where is None:
        return np.ones(len(ids), np.bool_)
    condition = parse_where(where, PAIR_SCHEMA, option="train.where")
    path = source / FILE_NAME if source.is_dir() else source
    # Only the columns that the condition names are read.
    columns = list(dict.fromkeys(["id", *condition.meta.root_names()]))
    rows = pl.read_parquet(path, columns=columns).unique("id", keep="first", maintain_order=True)
    wanted = set(rows.filter(condition)["id"])
    return np.array([name in wanted for name in ids], np.bool_)


def _find_excluded(table: Table, where: str | None) -> set[str]:
    """The ids of the experiences for which the condition does not hold."""
    if where is None:
        return set()
    condition = parse_where(where, option="train.where").not_()
    return {uid for batch in table.scan(condition, ["uid"]) for uid in batch.column(0).to_pylist()}
