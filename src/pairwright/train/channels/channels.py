"""Channels: what a run trains on, each with its own data and loss, all against one model.

`CHANNELS` lists them. A weight of 0 leaves a channel out, with its data and its cost.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import TrainConfig
from pairwright.errors import ConfigError
from pairwright.ledger.trained import Held
from pairwright.pairs.selection import Curriculum
from pairwright.paths import local_path
from pairwright.records.arrays import Array
from pairwright.records.canonical import content_hash
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage.stage import adopt_options, holds_pairs, missing_table
from pairwright.train.batch_schedule import Order
from pairwright.train.channels.distillation import DistillChannel, open_teacher
from pairwright.train.channels.likelihood import LikelihoodChannel, Likely
from pairwright.train.channels.policy_gradient import PolicyChannel
from pairwright.train.channels.preference_channel import PreferenceChannel, open_moving_reference
from pairwright.train.channels.unpaired_channel import UnpairedChannel
from pairwright.train.data import (
    DataError,
    PairData,
    PolicyData,
    load_distill_data,
    load_pairs,
    load_policy_data,
)
from pairwright.train.metrics import Sums
from pairwright.train.model.distributed import Ranks
from pairwright.train.model.load_model import model_hash
from pairwright.train.model.policy_model import Policy, open_policy
from pairwright.train.model.reference import ReferenceCache, ReferenceLogps

CHANNELS = ("dpo", "sft", "grpo", "sdpo", "kto")


class Channel(Protocol):
    """What the loop needs of each."""

    name: str
    weight: float
    order: Order
    validation: Array
    counts: dict[str, int]
    notes: list[str]
    reference: ReferenceLogps | None

    @property
    def needs_reference(self) -> bool: ...
    @property
    def has_validation(self) -> bool: ...
    @property
    def fingerprint(self) -> str: ...
    def reference_trees(self) -> list[tuple[int, Callable[[], Tree]]]: ...
    def total(self, items: Array) -> float: ...
    def parts(self, items: Array, num_all: int) -> list[Array]: ...
    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None: ...
    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]: ...
    def after_update(self, policy: Policy, num_updates: int) -> None: ...
    def followers(self) -> dict[str, Any]:
        """Tensors beside the weights that an update changes, by names of their own: a checkpoint has to hold them."""
        ...

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]: ...
    @property
    def num_items(self) -> int: ...
    def list_held(self, item: int) -> list[Held]:
        """The sequences of an item, for the ledger."""
        ...

    @property
    def refusals(self) -> dict[str, str]:
        """What could not be encoded: id -> reason."""
        ...


class Limits:
    """How much of a batch is in memory at once."""

    def __init__(self, settings: TrainConfig) -> None:
        self.tokens = settings.micro_batch_tokens
        self._items, self._parts = settings.micro_batch_size, settings.gradient_accumulation_steps

    def items(self, num_all: int) -> int | None:
        # Items of a part: the batch divided into so many parts, rounded up, or a fixed number.
        return -(-num_all // self._parts) if self._parts else self._items


class TokenFolders:
    """Where the sequences of each table are: as they were in the folder `tokens`, which has those of one table, or
    below `output`, where they are encoded."""

    def __init__(self, tokens: Path | None, output: Path) -> None:
        self._tokens, self._output = tokens, output
        # The folder holds the sequences of one table: of pairs or of runs.
        self._ready = None if tokens is None else "pairs" if holds_pairs(tokens) else "runs"
        self.encoded: list[str] = []

    def of(self, name: str) -> dict[str, Any]:
        if name == self._ready:
            return {"tokens": self._tokens, "is_encoded": True}
        self.encoded.append(name)
        return {"tokens": self._output / name}

    def describe(self) -> list[str]:
        """What is encoded although there is a folder of sequences."""
        names = ", ".join(dict.fromkeys(self.encoded))
        return [f"tokens: {names} encoded: {self._tokens} has only {self._ready}"] if self._tokens and names else []


# Loading: the channels of a configuration, with their data encoded and the values of the reference.


def use_tokens(
    config: Config, tokens: Path, pairs: Path | None, experience: Path | None
) -> tuple[Config, Path | None, Path | None]:
    """The configuration with the options that sequences were encoded with, and the tables: pairs, experience. The one
    that the sequences were made of is that of their manifest unless it is named."""
    missing = missing_table(tokens, has_pairs=pairs is not None, has_experience=experience is not None)
    for kind, source in missing.items():
        path = local_path(source)
        if path is None:
            raise ConfigError(f"tokens: {tokens} was made of {source}: copy the {kind} here, and name the copy")
        pairs, experience = (path, experience) if kind == "pairs" else (pairs, path)
    weights, held = config.train.channels, "pairs" if holds_pairs(tokens) else "runs"
    uses_pairs = pairs is not None and bool(weights.dpo or weights.sft)
    # Sequences of pairs serve dpo and sft; those of runs serve grpo and kto, and sft where no pairs do.
    if not (uses_pairs if held == "pairs" else weights.grpo or weights.kto or (weights.sft and not uses_pairs)):
        raise ConfigError(
            f"tokens: {tokens} has the sequences of {held}, but no channel with a weight trains on them; "
            "see train.channels, or train without --tokens"
        )
    return config.model_copy(update={"tokens": adopt_options(tokens, config.tokens)}), pairs, experience


def load_channels(
    config: Config,
    policy: Policy,
    model: Path,
    initial: str,
    output: Path,
    ranks: Ranks,
    *,
    pairs: Path | None,
    experience: Path | None,
    validation: Path | None,
    tokens: Path | None,
    cache: ReferenceCache,
    progress: Callable[[dict[str, Any]], None],
) -> list[Any]:
    """The channels that have a weight, their data encoded and their reference computed."""
    settings, weights, options = config.train, config.train.channels, token_options(config, model)
    show = _report_to(progress, "encode")
    folders = TokenFolders(tokens, output / "tokens")
    # The first process encodes while the others wait; they then read everything from the cache.
    if not ranks.is_first:
        ranks.wait()  # released by the wait of the first process below
    channels: list[Any] = []
    limits = Limits(settings)
    pair_data: PairData | None = None
    if pairs is not None and (weights.dpo or weights.sft):
        pair_data = load_pairs(pairs, options=options, show=show, where=settings.where, **folders.of("pairs"))
    if weights.dpo:
        data = _require(pair_data, "dpo", "--pairs")
        channels.append(PreferenceChannel(data, settings.dpo, weights.dpo, _order(config, data.train, data), limits))
    if weights.sft:
        likely = _likely_of_pairs(pair_data) if pair_data is not None else None
        if likely is None and experience is not None:
            load_runs = partial(load_policy_data, options=options, show=show, scored=False, where=settings.where)
            # A validation table is encoded as the runs are, into a folder of its own.
            sources = {"runs": experience} | ({"validation": validation} if validation is not None else {})
            parts = [load_runs(source, **folders.of(name)) for name, source in sources.items()]
            likely = _likely_of_runs(parts, settings.run_weight)
        likely = _require(likely, "sft", "--pairs or --experience")
        channels.append(LikelihoodChannel(likely, weights.sft, _order(config, likely.train, pair_data), limits))
    # Pairs come first, so channels[0] trains the curriculum.
    if pair_data is not None and pair_data.curriculum is not None:
        channels[0].notes.append(_curriculum_note(pair_data.curriculum, channels[0].order, settings))
    if weights.grpo or weights.kto:
        source = _require(experience, "grpo" if weights.grpo else "kto", "--experience")
        load_scored = partial(load_policy_data, options=options, show=show, where=settings.where)
        runs = load_scored(source, teacher_weight=settings.grpo.teacher_weight, **folders.of("runs"))
        order_of, run_weight = partial(_order, config), settings.run_weight
        if weights.grpo:
            channels.append(PolicyChannel(runs, settings.grpo, weights.grpo, order_of, limits, run_weight=run_weight))
        if weights.kto:
            channels.append(UnpairedChannel(runs, settings.kto, weights.kto, order_of, limits, run_weight=run_weight))
    if weights.sdpo:
        source = _require(experience, "sdpo", "--experience")
        hinted = load_distill_data(source, options, settings.sdpo, show, where=settings.where)
        order = _order(config, np.arange(len(hinted.items)))
        channels.append(DistillChannel(hinted, settings.sdpo, weights.sdpo, order, limits))
        folders.encoded.append("hinted turns")
    channels[0].notes += folders.describe()
    if ranks.is_first:
        ranks.wait()
    # After the wait: loading a sharded model is a collective.
    for channel in channels:
        if isinstance(channel, DistillChannel):
            channel.teacher = open_teacher(settings, policy, model, ranks)
        elif isinstance(channel, PreferenceChannel):
            channel.moving_reference = open_moving_reference(settings, model, ranks)
    _check_vocabulary(channels, policy, model)
    _compute_references(channels, policy, initial, cache, settings, ranks, progress)
    return channels


def token_options(config: Config, model: Path) -> TokensConfig:
    """The `tokens` section of a configuration, with the tokenizer of the model unless it names another."""
    return config.tokens.model_copy(update={"tokenizer": config.tokens.tokenizer or str(model)})


def _compute_references(
    channels: Items[Any],
    policy: Policy,
    initial: str,
    cache: ReferenceCache,
    settings: TrainConfig,
    ranks: Ranks,
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """Score everything with the reference, once; what is known from before is not scored again."""
    wanting = [channel for channel in channels if channel.needs_reference]
    if not wanting:
        return
    if settings.reference == "none":
        names = ", ".join(channel.name for channel in wanting)
        raise ConfigError(f"reference: none, but {names} needs one; set it to initial, or take simpo, orpo or sft")
    place = None if settings.reference == "initial" else Path(settings.reference)
    name = initial if place is None else model_hash(place)
    # Values of this reference, in this precision; those of earlier runs are read from the folder.
    known = ReferenceLogps(cache.folder / f"{name}-{settings.precision}")
    # Functions that make trees, not trees: those of a large table would not fit into memory.
    wanted = [make for channel in wanting for _, make in channel.reference_trees()]
    # Every tree is made once for its hash, and forgotten.
    lacking = [make for make in wanted if known.lacks(make())]
    ranks.wait()  # no process may add values before all have listed what is lacking: they share one list
    show = _report_to(progress, "reference")
    if lacking:
        scorer = policy if place is None else open_policy(place, settings, ranks, is_trained=False)
        scorer.model.eval()
        mine = ranks.share(lacking)
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            show(done, len(mine))

        batches = _batches(mine, settings.micro_batch_tokens)
        known.add(scorer, batches, ranks, lambda: [lacking[0]()], advance, cache.check_stop)
        scorer.settle()
        ranks.wait()
        known.refresh()
    for channel in wanting:
        channel.reference = known


def _batches(makers: Items[Callable[[], Tree]], max_tokens: int) -> Any:
    """Trees in batches of about so many tokens, made when they are needed."""
    batch: list[Tree] = []
    size = 0
    for make in makers:
        tree = make()
        # A tree that is too large is a batch of its own.
        if batch and size + tree.num_tokens > max_tokens:
            yield batch
            batch, size = [], 0
        batch.append(tree)
        size += tree.num_tokens
    if batch:
        yield batch


def _check_vocabulary(channels: Items[Any], policy: Policy, model: Path) -> None:
    for channel in channels:
        # A sample: with another model's tokenizer, some id of the first batch is usually too high.
        for tree in channel.trees_of(channel.order.batch(0))[1]:
            highest = max(int(part.max(initial=0)) for part in (tree.prompt, *tree.branches))
            if highest >= policy.num_embeddings:
                raise DataError(
                    f"token id {highest} but {model} has {policy.num_embeddings} embeddings: "
                    "the tokenizer beside the model is another model's"
                )


# What the channels are fed with: sequences of the sft channel, and the order of items.


def _likely_of_pairs(data: PairData) -> Likely:
    def tree(item: int) -> Tree:
        # The first branch is the chosen side.
        pair = data.tree(item)
        return Tree(pair.prompt, pair.branches[:1], pair.masks[:1], pair.rows[:1])

    return Likely(
        tree=tree,
        num_tokens=lambda item: int(data.pairs.lengths[item, 0]),
        identity=lambda item: data.pairs.ids[item],
        list_held=lambda item: data.list_held(item)[:1],
        weights=data.weights,
        train=data.train,
        validation=data.validation,
        counts=data.counts,
        refusals=data.refusals,
        fingerprint=data.fingerprint,
    )


def _likely_of_runs(parts: list[PolicyData], run_weight: str) -> Likely:
    """Runs of a table, and where there is a second one, its runs for validation."""
    trees = [tree for part in parts for tree in part.trees]
    ids = [name for part in parts for name in part.ids]
    sequences = [sequence for part in parts for sequence in part.sequences]
    num_train = len(parts[0].ids)  # the first part is trained, the second validates
    return Likely(
        tree=lambda item: trees[item],
        num_tokens=lambda item: trees[item].num_tokens,
        identity=lambda item: ids[item],
        list_held=lambda item: [_make_held(ids[item], sequences[item])],
        weights=np.concatenate([part.weigh(run_weight) for part in parts]),
        train=np.arange(num_train),
        validation=np.arange(num_train, len(trees)),
        counts={
            **parts[0].counts,
            **{f"validation: {name}": count for part in parts[1:] for name, count in part.counts.items()},
        },
        refusals=parts[0].refusals,
        fingerprint=content_hash([part.fingerprint for part in parts]),
    )


def _make_held(name: str, sequence: Sequence) -> Held:
    left_out = sequence.report.not_selected
    return Held(name, "", sequence.ids, sequence.mask, sequence.message_index, not_selected=left_out)


def _order(config: Config, items: Array, pairs: PairData | None = None) -> Order:
    """The order of items. A curriculum of `pairs` is never shuffled away: its stages decide what an epoch has, and
    without stages the order of the table stays."""
    settings, curriculum = config.train, None if pairs is None else pairs.curriculum
    if curriculum is None:
        return Order(items, settings.batch_size, config.seed, settings.shuffle)
    if curriculum.stages is None:
        return Order(items, settings.batch_size, config.seed, shuffle=False)
    stages, interval = curriculum.stages[items], curriculum.interval
    return Order(items, settings.batch_size, config.seed, settings.shuffle, stages=stages, interval=interval)


def _curriculum_note(curriculum: Curriculum, order: Order, settings: TrainConfig) -> str:
    """What a curriculum makes of a run: how many pairs its epochs have, and which are never reached."""
    if curriculum.stages is None:
        return f"curriculum {curriculum.name}: every epoch takes the pairs in the order of the table, not shuffled"
    # Pairs that the last epoch has: stages only grow.
    total, reached = len(order.items), len(order.active(settings.epochs - 1))
    note = f"curriculum {curriculum.name}: the first epoch has {len(order.active(0)):,} of {total:,} pairs, "
    note += f"the last {reached:,}"
    if reached < total:
        last = int(order.stages.max()) * curriculum.interval + 1 if order.stages is not None else 1
        note += f"; {total - reached:,} are never trained: all are in from epoch {last} on"
    return note


def _require(value: Any, channel: str, option: str) -> Any:
    if value is None:
        raise ConfigError(f"the {channel} channel needs {option}")
    return value


def _report_to(progress: Callable[[dict[str, Any]], None], kind: str) -> Callable[[int, int], None]:
    return lambda done, total: progress({"kind": kind, "done": done, "total": total})


__all__ = ["CHANNELS", "Channel", "Limits", "load_channels", "token_options", "use_tokens"]
