"""Training data: encoded pairs and scored sequences, with the inputs of their losses. Tokens are in mapped files.

Nothing is left out silently: refused and unscored items are in `counts`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import torch

from pairwright.config.sections import CreditConfig, TokensConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.trained import HeldTurns
from pairwright.pairs.decisions.exclusions import check_exclusions, read_exclusions
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import FILE_NAME, PAIR_SCHEMA, pair_batches, read_curriculum
from pairwright.paths import Place
from pairwright.records.arrays import Array
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.json_text import from_json
from pairwright.records.messages import Json, Message, content_hash
from pairwright.store.conditions import parse_where
from pairwright.store.table import Table
from pairwright.tokens.batch.collate import Tree, as_tree
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage.cache import LOSSES, CachedPairs, CachedSequences, list_refusals
from pairwright.tokens.stage.stage import encode_into, read_encoded
from pairwright.training.token_signals import TokenSignals, read_token_signals
from pairwright.training.token_weighting import UNWEIGHTED, TokenWeighting, count_unlikely, find_report

Show = Callable[[int, int], None]
NUM_RECENT = 2048  # pairs or runs whose trees are kept in memory
FILTERED = "filtered by --where"  # rows for which `train.where` does not hold
UNUSED = ("teacher_logprobs", "returns", "custom_fields")  # recorded with runs, but not used by training
_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode
Looked = tuple[Tree, Array | None]  # a tree, and the weights of its trained tokens


class DataError(PairwrightError):
    """There is nothing to train on, or it does not fit the model."""


def find_weights(sequences: Items[Sequence], start: int) -> Array | None:
    """Return the weights of the trained tokens from `start` on, concatenated; None if no sequence has weights."""
    if all(sequence.weights is None for sequence in sequences):
        return None
    return np.concatenate(
        [
            np.ones(int(sequence.mask[start:].sum()), np.float32)
            if sequence.weights is None
            else sequence.weights[start:][sequence.mask[start:]]
            for sequence in sequences
        ]
    )


def join_weights(weights: Items[Array | None], counts: Items[int]) -> torch.Tensor | None:
    """Concatenate the token weights of several items with `counts` trained tokens; None if no item has weights."""
    if all(one is None for one in weights):
        return None
    filled = [np.ones(num, np.float32) if one is None else one for one, num in zip(weights, counts, strict=True)]
    return torch.from_numpy(np.concatenate(filled))


class _Trees(ABC):
    """Trees and token weights of items by position; recent ones are cached."""

    _recent: dict[int, Looked]

    def tree(self, position: int) -> Tree:
        return self._look(position)[0]

    def token_weights(self, position: int) -> Array | None:
        """Return the weight of each trained token (of a pair: chosen side first); None if all are equal."""
        return self._look(position)[1]

    def num_counted(self, position: int) -> float:
        """Return the weighted number of trained tokens of an item with one branch."""
        tree, weights = self._look(position)
        return float(tree.masks[0].sum() if weights is None else weights.sum())

    def _look(self, position: int) -> Looked:
        if position not in self._recent:
            if len(self._recent) >= NUM_RECENT:
                self._recent.clear()
            self._recent[position] = self._make(position)
        return self._recent[position]

    @abstractmethod
    def _make(self, position: int) -> Looked: ...


@dataclass(frozen=True)
class PairData(_Trees):
    """Encoded pairs with their weights and gaps; `train` and `validation` are positions."""

    pairs: CachedPairs
    weights: Array
    gaps: Array
    train: Array
    validation: Array
    counts: dict[str, int]
    refusals: dict[str, str] = field(default_factory=dict)
    curriculum: str | None = None  # easy-first or hard-first if the table is in this order
    tasks: Array | None = None  # the number of each pair's task
    noise: Array | None = None  # probability that a pair's label is wrong, NaN if unknown; None if all are unknown
    weighting: TokenWeighting = UNWEIGHTED
    _recent: dict[int, Looked] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        return self.pairs.ids

    @cached_property
    def _outside(self) -> set[int]:
        # Neither trained nor held out: `where` excluded them.
        return set(range(len(self.pairs))).difference(self.train.tolist(), self.validation.tolist())

    def _make(self, position: int) -> Looked:
        pair = self.pairs[position]
        sides = [self.weighting.weigh(pair.chosen), self.weighting.weigh_rejected(pair)]
        return as_tree(pair), find_weights(sides, pair.prompt_length)

    def list_held(self, position: int) -> list[HeldTurns]:
        pair, name = self.pairs[position], self.pairs.ids[position]
        unused = None if self.weights[position] > 0 else "the pair has weight 0"
        unused = FILTERED if position in self._outside else unused
        sides = (("chosen", pair.chosen), ("rejected", pair.rejected))
        return [HeldTurns.of(name, side, one, unused) for side, one in sides]

    def is_full(self, position: int) -> bool:
        """Return whether both sides have trained tokens with a weight."""
        tree, weights = self._look(position)
        counts = [int(mask.sum()) for mask in tree.masks]
        if weights is None or not all(counts):
            return all(counts)
        return bool(weights[: counts[0]].any() and weights[counts[0] :].any())

    @property
    def fingerprint(self) -> str:
        parts: list[Any] = [self.pairs.ids, self.pairs.lengths.tolist(), self.weights.tolist(), self.train.tolist()]
        if self.curriculum is not None:
            # As earlier versions described it, so that their runs resume.
            parts.append({"name": self.curriculum, "stages": None, "interval": 1})
        return content_hash(*parts)


@dataclass(frozen=True)
class ChosenSides(PairData):
    """Only the chosen sides of pairs."""

    def _look(self, position: int) -> Looked:
        pair, weights = super()._look(position)  # shares the cache of whole pairs
        chosen = Tree(pair.prompt, pair.branches[:1], pair.masks[:1], pair.rows[:1])
        return chosen, None if weights is None else weights[: int(pair.masks[0].sum())]

    def list_held(self, position: int) -> list[HeldTurns]:
        return super().list_held(position)[:1]


@dataclass(frozen=True)
class PolicyData(_Trees):
    """Runs of an experience table: sequences with reward (NaN: unscored) and group."""

    ids: list[str]
    sequences: "SelectedSequences"
    lengths: Array  # (N,) tokens of each
    rewards: Array
    groups: Array
    counts: dict[str, int]
    num_validation: int = 0  # the last ones are held out
    refusals: dict[str, str] = field(default_factory=dict)
    signals: TokenSignals = field(default_factory=TokenSignals)  # values recorded for single tokens
    weighting: TokenWeighting = UNWEIGHTED
    _recent: dict[int, Looked] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Array:
        return np.ones(len(self.ids), np.float32)

    @property
    def left_out(self) -> str:
        """A message prefix: how many runs were left out and why; empty if none were."""
        reasons = {FILTERED, Reason.EXCLUDED.value, "unscored"}
        counts = {name: num for name, num in self.counts.items() if name.startswith("refused: ") or name in reasons}
        num_runs = len(set(self.ids))
        if not any(counts.values()):
            return ""
        return f"{sum(counts.values())} runs were left out ({list_reasons(counts)}); of the {num_runs} others, "

    def is_full(self, position: int) -> bool:
        return self.num_counted(position) > 0

    def list_held(self, position: int, unused: str | None = None) -> list[HeldTurns]:
        return [HeldTurns.of(self.ids[position], "", self.sequences[position], unused)]

    @property
    def train(self) -> Array:
        return np.arange(len(self.ids) - self.num_validation)

    @property
    def validation(self) -> Array:
        return np.arange(len(self.ids) - self.num_validation, len(self.ids))

    def _make(self, position: int) -> Looked:
        sequence = self.weighting.weigh(self.sequences[position])
        tree = as_tree(sequence)
        return tree, find_weights([sequence], len(tree.prompt))

    def with_validation(self, other: "PolicyData") -> "PolicyData":
        counts = self.counts | {f"validation: {name}": count for name, count in other.counts.items()}
        names = ("lengths", "rewards", "groups")
        joined: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return replace(
            self,
            ids=self.ids + other.ids,
            sequences=SelectedSequences(self.sequences.places + other.sequences.places),
            **joined,
            counts=counts,
            num_validation=len(other.ids),
        )

    @property
    def fingerprint(self) -> str:
        return content_hash(self.ids, self.lengths.tolist(), self.rewards.tolist(), self.signals.fingerprint)


class SelectedSequences:
    """Sequences of folders, read lazily from their mapped files: (folder, position in it)."""

    def __init__(self, places: list[tuple[CachedSequences, int]]) -> None:
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, position: int) -> Sequence:
        cached, place = self.places[position]
        return cached[place]


def load_pairs(
    source: Path,
    tokens: Path,
    options: TokensConfig,
    show: Show,
    *,
    where: str | None = None,
    is_encoded: bool = False,
    weighting: TokenWeighting = UNWEIGHTED,
) -> PairData:
    """Encode the pairs of a table (cached ones are reused) and read those that match `where`.

    With `is_encoded`, nothing is encoded: sequences of another table or other options are refused.
    """
    manifest = _encode(source, tokens, options, show, is_encoded=is_encoded)
    unlikely = _check_weighting(weighting, source, tokens, manifest)
    pairs = CachedPairs(tokens)
    # One row per pair id, in the order of the cache; `row` is the position in the table.
    columns = ["id", "weight", "gap", "split", "tid", "label_noise"]
    empty = pa.Table.from_batches([], schema=pa.schema([PAIR_SCHEMA.field(name) for name in columns]))
    frames = [pl.DataFrame(empty), *(pl.DataFrame(batch) for batch in pair_batches(source, columns))]
    narrow = pl.concat(frames).with_row_index("row")
    narrow = narrow.unique("id", keep="first")
    rows = pl.DataFrame({"id": pairs.ids}, schema={"id": pl.String}).join(
        narrow, on="id", how="left", maintain_order="left"
    )
    # (N,) over the encoded pairs: held out for validation, matched by `where`.
    held = (rows["split"] == "validation").to_numpy()
    counts = {f"refused: {reason}": count for reason, count in manifest["refused"].items()}
    wanted = match_pairs(source, where, pairs.ids)
    if where is not None:
        counts[FILTERED] = int((~wanted).sum())
    if not (wanted & ~held).any():
        why = list_reasons(counts)
        way_out = f"see pairwright tokens check --tokenizer {options.tokenizer}"
        if not why:
            why = "all are in the validation split" if len(pairs.ids) else "the table is empty"
            way_out = f"build them again with other options: {source}/funnel.json says why candidates were dropped"
        raise DataError(f"{source}: no pair to train on ({why}); {way_out}")
    in_order = np.argsort(rows["row"].to_numpy(), kind="stable")  # table order instead of cache order
    return PairData(
        pairs=pairs,
        weights=rows["weight"].to_numpy().astype(np.float32),
        gaps=rows["gap"].to_numpy().astype(np.float32),
        train=in_order[(wanted & ~held)[in_order]],
        validation=in_order[(wanted & held)[in_order]],
        counts={
            **counts,
            "truncated": manifest["truncated"],
            "recorded": manifest["recorded"],
            **_losses(manifest),
            **unlikely,
            **(
                {}
                if weighting.contrasts_reports
                else {"last_turns_left_out": sum(find_report(pair) is not None for pair in pairs)}
            ),
        },
        refusals={name: reason for name, reason, _ in list_refusals(tokens)},
        curriculum=read_curriculum(source),
        tasks=rows["tid"].rank("dense").to_numpy(),
        noise=None
        if rows["label_noise"].null_count() == rows.height
        else rows["label_noise"].fill_null(float("nan")).to_numpy().astype(np.float32),
        weighting=weighting,
    )


def load_policy_data(
    source: Path,
    tokens: Path,
    options: TokensConfig,
    show: Show,
    *,
    scored: bool = True,
    where: str | None = None,
    score: str | None = None,
    is_encoded: bool = False,
    weighting: TokenWeighting = UNWEIGHTED,
) -> PolicyData:
    """Load the experiences of a table as sequences, with their groups (same task, step and prompt)."""
    manifest = _encode(source, tokens, options, show, is_encoded=is_encoded)
    unlikely = _check_weighting(weighting, source, tokens, manifest)
    table, columns = Table(source, create=False).with_score(score), ["uid", "tid", "step", "prompt_hash", "reward"]
    rewards: dict[str, tuple[str, float | None]] = {}  # uid -> (hash of its group, reward)
    for batch in table.scan(columns=columns):
        for row in batch.to_pylist():
            rewards[row["uid"]] = (content_hash(row["tid"], row["step"], row["prompt_hash"]), row["reward"])
    counts: Counter[str] = Counter({f"refused: {reason}": num for reason, num in manifest["refused"].items()})
    left_out = find_left_out(table, where)
    counts.update(left_out.values())
    cached = CachedSequences(tokens)  # without the sides of preferences
    encoded = [(place, uid) for place, uid in enumerate(cached.ids) if uid not in left_out]
    signals = TokenSignals()
    if scored:
        last = {uid: place for place, uid in encoded}
        signals = read_token_signals(table, cached, last, tokens)
    places, values, groups = [], [], []
    unscored: set[str] = set()  # ids: a run may be several sequences
    number_of: dict[str, int] = {}  # groups, numbered by first occurrence
    for place, uid in encoded:
        group, reward = rewards[uid]
        if reward is None and not signals.has(uid):
            unscored.add(uid)
            if scored:
                continue
        places.append(place)
        values.append(np.nan if reward is None else reward)
        groups.append(number_of.setdefault(group, len(number_of)))
    counts.update({"unscored": len(unscored)} if unscored else {})
    if not places:
        what = "scored run" if scored else "run"
        raise DataError(
            f"{source}: no {what} to train on ({list_reasons(counts) or 'the table is empty'}); see pairwright tokens "
            f"check --tokenizer {options.tokenizer}"
        )
    return PolicyData(
        ids=[cached.ids[place] for place in places],
        sequences=SelectedSequences([(cached, place) for place in places]),
        lengths=cached.lengths[places],
        rewards=np.array(values, np.float32),
        groups=np.array(groups, np.int64),
        counts={**counts, **signals.counts, **_losses(manifest), **unlikely},
        refusals={name: reason for name, reason, _ in list_refusals(tokens)},
        signals=signals,
        weighting=weighting,
    )


def load_anchor(pairs: Path, folder: Path, options: TokensConfig, show: Show, *, is_ready: bool) -> PolicyData | None:
    """Load the anchor turns of pairs, the generated turns in their prompts, each prompt once; None if there are none.

    Pairs of steps and of divergence points compare one decision; the turns before it are context, so their likelihood
    may drift: `dpo.anchor_weight` trains it. `is_ready`: another process has written the sequences.
    """
    runs = list(_find_anchor_runs(pairs))
    if not runs:
        return None
    # A table of exactly these runs: a resumed training finds it, other pairs get another table.
    place = folder / content_hash([run.eid.uid for run in runs])
    if not is_ready and not (place / "experience" / "table.json").exists():
        with Table(place / "experience") as table:
            table.append(runs)
    everything = {"train_turns": "all", "credit": CreditConfig(), "recorded": "ignore"}
    return load_policy_data(
        place / "experience", place / "tokens", options.model_copy(update=everything), show, scored=False
    )


def _find_anchor_runs(pairs: Path) -> Iterator[Experience]:
    """Yield distinct prompts of training pairs with generated turns, cut after the last generated turn."""
    seen: set[str] = set()
    for batch in pair_batches(pairs, ["split", "prompt", "tools", "info"]):
        for row in batch.to_pylist():
            key = content_hash(row["prompt"], row["tools"])
            if row["split"] == "validation" or key in seen:
                continue
            seen.add(key)
            messages = _messages_of(row["prompt"] or "[]")
            turns = [number for number, message in enumerate(messages) if message.is_generated]
            if not turns:
                continue
            info = from_json(row["info"]) if row["info"] else {}
            yield Experience(
                eid=EID(task=key, suffix=key),
                kind=Kind.MULTI_TURN,
                prompt=messages[: turns[0]],
                completion=messages[turns[0] : turns[-1] + 1],
                tools=_tools_of(row["tools"] or "[]"),
                info=info,
            )


def list_reasons(counts: Mapping[str, int]) -> str:
    """Format nonzero reasons with their counts, for a message."""
    return ", ".join(f"{count} × {reason}" for reason, count in counts.items() if count)


def _encode(source: Path, tokens: Path, options: TokensConfig, show: Show, *, is_encoded: bool) -> dict[str, Any]:
    """Encode the sequences of a table unless `is_encoded`; return their manifest."""
    if is_encoded:
        return read_encoded(source, tokens, options)
    manifest = encode_into(source, tokens, options, show)
    stop_for_inputs(source, manifest["refused"])
    return manifest


def _check_weighting(
    weighting: TokenWeighting, source: Place, tokens: Path, manifest: dict[str, Any]
) -> dict[str, int]:
    """Refuse a weighting that would have no effect; return the number of tokens that are too unlikely, by name."""
    if weighting.uses_credit and not manifest.get("turns_with_value"):
        raise DataError(
            f"{source}: train.credit is value, but no trained turn has a value: record step rewards, name a function "
            "(tokens.credit.function), or encode with tokens.credit.store=true"
        )
    if not weighting.min_probability:
        return {}
    num_known, num_unlikely = count_unlikely(tokens, weighting.min_probability)
    if not num_known and manifest["sequences"] and weighting.needs_probabilities:
        raise DataError(
            f"{source}: train.min_probability needs log-probabilities recorded with the token ids, and no sequence has "
            "any: collect with a local model or an endpoint that returns them, or set it to 0"
        )
    return {"too_unlikely": num_unlikely}


def stop_for_inputs(source: Place, refused: dict[str, int]) -> None:
    """Stop if records have multi-modal inputs beside their tokens: the model saw them, but no channel uses them."""
    if num := refused.get("multi_modal_inputs"):
        raise DataError(
            f"{source}: {num:,} records have multi_modal_inputs, which no channel uses: train on the tokens alone with "
            "tokens.allow_images (--allow-images), or leave the records out with --where"
        )


def _losses(manifest: dict[str, Any]) -> dict[str, int]:
    return {name: manifest[name] for name in LOSSES.values() if manifest[name]}


def match_pairs(source: Path, where: str | None, ids: list[str]) -> Array:
    """Return for each pair id whether its first row matches the condition."""
    if where is None:
        return np.ones(len(ids), np.bool_)
    condition = parse_where(where, PAIR_SCHEMA, option="train.where")
    path = source / FILE_NAME if source.is_dir() else source
    columns = list(dict.fromkeys(["id", *condition.meta.root_names()]))
    rows = pl.read_parquet(path, columns=columns).unique("id", keep="first", maintain_order=True)
    wanted = set(rows.filter(condition)["id"])
    return np.array([name in wanted for name in ids], np.bool_)


def find_left_out(table: Table, where: str | None) -> dict[str, str]:
    """Return the experiences that a person excluded or that do not match the condition: id -> reason."""
    check_exclusions([table])
    left_out: dict[str, str] = {}
    if where is not None:
        condition = parse_where(where, option="train.where").not_()
        left_out = {uid: FILTERED for batch in table.scan(condition, ["uid"]) for uid in batch.column(0).to_pylist()}
    return left_out | dict.fromkeys(read_exclusions(table.path), Reason.EXCLUDED.value)
