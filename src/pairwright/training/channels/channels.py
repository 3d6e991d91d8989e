"""Channels: what a run trains on, each with its own data and loss, all against one model.

`CHANNELS` lists them. A weight of 0 leaves a channel out, with its data and its cost.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import TrainConfig
from pairwright.errors import ConfigError
from pairwright.ledger.trained import HeldTurns
from pairwright.pairs.curriculum import Curriculum
from pairwright.paths import local_path
from pairwright.records.arrays import Array
from pairwright.records.messages import content_hash
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.stage.stage import adopt_options, holds_pairs, missing_table
from pairwright.training.anchor_turns import load_anchor
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.channels.distillation import DistillChannel, open_teacher
from pairwright.training.channels.likelihood import LikelihoodChannel, Likely
from pairwright.training.channels.policy_gradient import PolicyChannel
from pairwright.training.channels.preference_channel import PreferenceChannel, open_moving_reference
from pairwright.training.channels.unpaired_channel import UnpairedChannel
from pairwright.training.data import PairData, PolicyData, find_stages, load_pairs, load_policy_data
from pairwright.training.distill_data import distill_runs, load_distill_data
from pairwright.training.micro_batches import Limits, tree_batches
from pairwright.training.model.load_model import model_hash
from pairwright.training.model.policy_model import Policy, open_policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceCache, ReferenceLogps
from pairwright.training.table_signals import DataError

CHANNELS = ("dpo", "sft", "grpo", "sdpo", "kto")


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
    # Sequences of pairs serve dpo and sft; those of runs serve grpo and kto, sdpo where another model teaches, and sft
    # where no pairs do.
    uses_runs = weights.grpo or weights.kto or (weights.sft and not uses_pairs)
    uses_runs = uses_runs or (weights.sdpo and not config.train.sdpo.context)
    if not (uses_pairs if held == "pairs" else uses_runs):
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
    settings, limits = config.train, Limits(config.train, shares=policy.can_share)
    data = {"pairs": pairs, "experience": experience, "validation": validation, "tokens": tokens}
    # The first process encodes while the others wait; they then read everything from the cache.
    if not ranks.is_first:
        ranks.wait()  # released by the wait of the first process below
    channels = read_channels(config, model, output, limits, **data, progress=progress, is_ready=not ranks.is_first)
    if ranks.is_first:
        ranks.wait()
    # After the wait: loading a sharded model is a collective.
    for channel in channels:
        if isinstance(channel, DistillChannel):
            channel.teacher = open_teacher(settings, policy, model, ranks)
        elif isinstance(channel, PreferenceChannel):
            channel.moving_reference = open_moving_reference(settings, model, ranks)
    _check_vocabulary(channels, policy, model)
    compute_references(channels, policy, initial, cache, settings, ranks, progress)
    return channels


def read_channels(
    config: Config,
    model: Path,
    output: Path,
    limits: Limits,
    *,
    pairs: Path | None = None,
    experience: Path | None = None,
    validation: Path | None = None,
    tokens: Path | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda event: None,
    is_ready: bool = False,
) -> list[Any]:
    """The channels that have a weight with their data encoded; no model is loaded. `is_ready`: by another process."""
    settings, weights, options = config.train, config.train.channels, token_options(config, model)
    show = _report_to(progress, "encode")
    shared: dict[str, Any] = {
        "options": options,
        "show": show,
        "where": settings.where,
        "uses_credit": settings.credit != "off",
    }
    folders = TokenFolders(tokens, output / "tokens")
    channels: list[Any] = []
    pair_data: PairData | None = None
    units: Array | None = None  # what each item is shuffled with
    if pairs is not None and (weights.dpo or weights.sft):
        pair_data = load_pairs(pairs, **shared, **folders.of("pairs"))
        pair_data = _add_stages(pair_data, pairs, settings, pair_data.pairs.ids, has_pairs=True)
        units = pair_data.tasks if settings.shuffle_by == "group" else None
    if weights.dpo:
        data = _require(pair_data, "dpo", "--pairs")
        order = _order(config, data.train, data, units)
        channels.append(PreferenceChannel(data, settings.dpo, weights.dpo, order, limits))
    if weights.dpo and settings.dpo.anchor_weight:
        anchor = load_anchor(pairs, output / "anchor", options, show, is_ready=is_ready) if pairs is not None else None
        if anchor is None:
            channels[0].notes.append("dpo.anchor_weight: no prompt of a pair has a generated turn: there is no anchor")
        else:
            held = _likely_of_runs([anchor], settings.run_weight)
            weight = weights.dpo * settings.dpo.anchor_weight
            channels.append(LikelihoodChannel(held, weight, _order(config, held.train), limits, name="anchor"))
    if weights.sft:
        likely = _likely_of_pairs(pair_data) if pair_data is not None else None
        if likely is None and experience is not None:
            # A validation table is encoded as the runs are, into a folder of its own.
            sources = {"runs": experience} | ({"validation": validation} if validation is not None else {})
            parts = [
                load_policy_data(source, scored=False, score=settings.score, **shared, **folders.of(name))
                for name, source in sources.items()
            ]
            parts[0] = _add_stages(parts[0], experience, settings, parts[0].ids)
            likely = _likely_of_runs(parts, settings.run_weight)
            units = _number_units(parts[0], settings.shuffle_by or "run")
        likely = _require(likely, "sft", "--pairs or --experience")
        order = _order(config, likely.train, likely, units)
        channels.append(LikelihoodChannel(likely, weights.sft, order, limits))
    if weights.grpo or weights.kto:
        source = _require(experience, "grpo" if weights.grpo else "kto", "--experience")
        runs = load_policy_data(source, policy=settings.grpo, score=settings.score, **shared, **folders.of("runs"))
        runs = _add_stages(runs, source, settings, runs.ids)
        order_of, run_weight = partial(_order, config, data=runs), settings.run_weight
        if weights.grpo:
            draw = partial(order_of, units=_number_units(runs, settings.shuffle_by or "group"))
            channels.append(PolicyChannel(runs, settings.grpo, weights.grpo, draw, limits, run_weight=run_weight))
        if weights.kto:
            draw = partial(order_of, units=_number_units(runs, settings.shuffle_by or "run"))
            channels.append(UnpairedChannel(runs, settings.kto, weights.kto, draw, limits, run_weight=run_weight))
    if weights.sdpo:
        source = _require(experience, "sdpo", "--experience")
        taught = _load_taught(source, output / "taught", settings, options, show, folders, is_ready=is_ready)
        order = _order(config, np.arange(len(taught.items)), taught)
        channels.append(DistillChannel(taught, settings.sdpo, weights.sdpo, order, limits))
    # The first channel decides how long an epoch is.
    channels[0].notes += _describe_curriculum(channels[0].data.curriculum, channels[0].order, settings)
    channels[0].notes += folders.describe()
    return channels


def _load_taught(
    source: Path,
    output: Path,
    settings: TrainConfig,
    options: TokensConfig,
    show: Callable[[int, int], None],
    folders: TokenFolders,
    *,
    is_ready: bool,
) -> Any:
    """What a teacher is asked about: turns or runs with more to read, or the runs as they are."""
    where = settings.where
    if settings.sdpo.context:
        taught = load_distill_data(source, output, options, settings.sdpo, show, where=where, is_ready=is_ready)
        folders.encoded.append("what is taught")
    else:
        load_runs = partial(load_policy_data, options=options, show=show, scored=False, where=where)
        taught = distill_runs(load_runs(source, **folders.of("runs")))
    return _add_stages(taught, source, settings, taught.ids)


def token_options(config: Config, model: Path) -> TokensConfig:
    """The `tokens` section of a configuration, with the tokenizer of the model unless it names another, and with
    credit stored where training weighs by it."""
    changes: dict[str, Any] = {"tokenizer": config.tokens.tokenizer or str(model)}
    if config.train.credit != "off" and not config.tokens.uses_credit:
        changes["credit"] = config.tokens.credit.model_copy(update={"store": True})
    return config.tokens.model_copy(update=changes)


def compute_references(
    channels: Items[Any],
    policy: Policy,
    initial: str,
    cache: ReferenceCache,
    settings: TrainConfig,
    ranks: Ranks,
    progress: Callable[[dict[str, Any]], None] = lambda event: None,
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
        mine = ranks.share_neighbours(lacking)
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            show(done, len(mine))

        batches = tree_batches(mine, Limits(settings, shares=scorer.can_share))
        known.add(scorer, batches, ranks, lambda: [lacking[0]()], advance, cache.check_stop)
        scorer.settle()
        ranks.wait()
        known.refresh()
    for channel in wanting:
        channel.reference = known


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

    def token_weights(item: int) -> Array | None:
        weights = data.token_weights(item)
        return None if weights is None else weights[: int(data.tree(item).masks[0].sum())]

    return Likely(
        tree=tree,
        num_tokens=lambda item: int(data.pairs.lengths[item, 0]),
        identity=lambda item: data.pairs.ids[item],
        list_held=lambda item: data.list_held(item)[:1],
        token_weights=token_weights,
        weights=data.weights,
        train=data.train,
        validation=data.validation,
        counts=data.counts,
        refusals=data.refusals,
        fingerprint=data.fingerprint,
        curriculum=data.curriculum,
    )


def _likely_of_runs(parts: list[PolicyData], run_weight: str) -> Likely:
    """Runs of a table, and where there is a second one, its runs for validation."""
    ids = [name for part in parts for name in part.ids]
    lengths = np.concatenate([part.lengths for part in parts])
    num_train = len(parts[0].ids)  # the first part is trained, the second validates

    def find(item: int) -> tuple[PolicyData, int]:
        return (parts[0], item) if item < num_train else (parts[1], item - num_train)

    def tree(item: int) -> Tree:
        part, place = find(item)
        return part.tree(place)

    def token_weights(item: int) -> Array | None:
        part, place = find(item)
        return part.token_weights(place)

    def list_held(item: int) -> list[HeldTurns]:
        part, place = find(item)
        return [HeldTurns.of(ids[item], "", part.sequences[place])]

    return Likely(
        tree=tree,
        num_tokens=lambda item: int(lengths[item]),
        identity=lambda item: ids[item],
        list_held=list_held,
        token_weights=token_weights,
        weights=np.concatenate([part.weigh(run_weight) for part in parts]),
        train=np.arange(num_train),
        validation=np.arange(num_train, len(ids)),
        counts={
            **parts[0].counts,
            **{f"validation: {name}": count for part in parts[1:] for name, count in part.counts.items()},
        },
        refusals=parts[0].refusals,
        fingerprint=content_hash([part.fingerprint for part in parts]),
        curriculum=parts[0].curriculum,
    )


class Staged(Protocol):
    """Data that may have a curriculum."""

    @property
    def curriculum(self) -> Curriculum | None: ...


def _add_stages(data: Any, source: Path, settings: TrainConfig, ids: list[str], *, has_pairs: bool = False) -> Any:
    """The data with the curriculum of `train.stages`, where there is one."""
    if not settings.stages:
        return data
    if data.curriculum is not None:
        raise ConfigError(
            f"train.stages: the pairs have a curriculum of their own ({data.curriculum.name}): leave it out"
        )
    return replace(
        data, curriculum=find_stages(source, ids, settings.stages, settings.stage_epochs, has_pairs=has_pairs)
    )


def _order(config: Config, items: Array, data: Staged | None = None, units: Array | None = None) -> BatchOrder:
    """The order of items. A curriculum of their data is never shuffled away: its stages decide what an epoch has, and
    without stages the order of the table stays. `units` has a number for each item of the data."""
    settings, curriculum = config.train, None if data is None else data.curriculum
    units = None if units is None else units[items]
    if curriculum is None:
        return BatchOrder(items, settings.batch_size, config.seed, settings.shuffle, units=units)
    if curriculum.stages is None:
        return BatchOrder(items, settings.batch_size, config.seed, shuffle=False)
    stages, interval = curriculum.stages[items], curriculum.interval
    return BatchOrder(
        items, settings.batch_size, config.seed, settings.shuffle, stages=stages, interval=interval, units=units
    )


def _number_units(data: PolicyData, by: str) -> Array | None:
    """The number of what each sequence is shuffled with: its run, or its group; None where it goes by itself."""
    if by == "item":
        return None
    return data.groups if by == "group" else np.unique(data.ids, return_inverse=True)[1]


def _describe_curriculum(curriculum: Curriculum | None, order: BatchOrder, settings: TrainConfig) -> list[str]:
    """What a curriculum makes of a run: how many items its epochs have, and which are never reached."""
    if curriculum is None:
        return []
    if curriculum.stages is None:
        return [f"curriculum {curriculum.name}: every epoch takes the pairs in the order of the table, not shuffled"]
    # What the last epoch has: stages only grow.
    total, reached = len(order.items), len(order.active(settings.epochs - 1))
    note = f"curriculum {curriculum.name}: the first epoch has {len(order.active(0)):,} of {total:,} items, "
    note += f"the last {reached:,}"
    if reached < total:
        last = int(order.stages.max()) * curriculum.interval + 1 if order.stages is not None else 1
        note += f"; {total - reached:,} are never trained: all are in from epoch {last} on"
    return [note]


def _require(value: Any, channel: str, option: str) -> Any:
    if value is None:
        raise ConfigError(f"the {channel} channel needs {option}")
    return value


def _report_to(progress: Callable[[dict[str, Any]], None], kind: str) -> Callable[[int, int], None]:
    return lambda done, total: progress({"kind": kind, "done": done, "total": total})


__all__ = ["CHANNELS", "Channel", "Limits", "load_channels", "token_options", "use_tokens"]
