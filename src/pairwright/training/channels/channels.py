"""Load the channels of a run, each with its own data and loss, for one model.

`CHANNELS` lists them. A channel with weight 0 is not loaded.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.config import Config
from pairwright.config.sections import TokensConfig
from pairwright.config.train_config import ChannelWeights, TrainConfig
from pairwright.errors import ConfigError
from pairwright.pairs.pair_table import pair_batches
from pairwright.paths import local_path
from pairwright.records.arrays import Array
from pairwright.tokens.stage.stage import adopt_options, holds_pairs, missing_table
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.distillation import DistillChannel, open_teacher
from pairwright.training.channels.likelihood import LikelihoodChannel
from pairwright.training.channels.policy_gradient import PolicyChannel
from pairwright.training.channels.preference_channel import PreferenceChannel
from pairwright.training.channels.unpaired_channel import UnpairedChannel
from pairwright.training.data import (
    ChosenSides,
    DataError,
    PairData,
    PolicyData,
    load_anchor,
    load_pairs,
    load_policy_data,
)
from pairwright.training.distill_data import distill_runs, load_distill_data
from pairwright.training.micro_batches import Limits, tree_batches
from pairwright.training.model.load_model import model_hash
from pairwright.training.model.policy_model import Policy, open_policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceCache, ReferenceLogps
from pairwright.training.token_weighting import TokenWeighting

CHANNELS = ("dpo", "sft", "grpo", "sdpo", "kto")

MIN_PROBABILITY = 0.02  # of tokens that are imitated where pairs compare several turns
_TURN = '"role":"assistant"'  # a generated turn in the JSON text of a side


class TokenFolders:
    """The folders of each table's sequences: the existing `tokens` for its table, else a new one in `output`."""

    def __init__(self, tokens: Path | None, output: Path) -> None:
        self._tokens, self._output = tokens, output
        self._ready = None if tokens is None else "pairs" if holds_pairs(tokens) else "runs"
        self.encoded: list[str] = []

    def of(self, name: str) -> dict[str, Any]:
        if name == self._ready:
            return {"tokens": self._tokens, "is_encoded": True}
        self.encoded.append(name)
        return {"tokens": self._output / name}

    def describe(self) -> list[str]:
        """Describe the tables that are encoded although `tokens` exists."""
        names = ", ".join(dict.fromkeys(self.encoded))
        return [f"tokens: {names} encoded: {self._tokens} has only {self._ready}"] if self._tokens and names else []


def use_tokens(
    config: Config, tokens: Path, pairs: Path | None, experience: Path | None
) -> tuple[Config, Path | None, Path | None]:
    """Return the configuration with the options of the encoded sequences, and the tables (pairs, experience). The table
    of the sequences is taken from their manifest unless it is named."""
    missing = missing_table(tokens, has_pairs=pairs is not None, has_experience=experience is not None)
    for kind, source in missing.items():
        path = local_path(source)
        if path is None:
            raise ConfigError(f"tokens: {tokens} was encoded from {source}: copy the {kind} here, and name the copy")
        pairs, experience = (path, experience) if kind == "pairs" else (pairs, path)
    weights, held = config.train.channels, "pairs" if holds_pairs(tokens) else "runs"
    uses_pairs = pairs is not None and bool(weights.dpo or weights.sft)
    # Sequences of pairs are used by dpo and sft; those of runs by grpo, kto, sdpo with another model as teacher, and
    # sft without pairs.
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
    cache: ReferenceCache,
    progress: Callable[[dict[str, Any]], None],
    **data: Path | None,
) -> list[Any]:
    """Load the channels with a weight, encode their data and compute their references; `data` as of `read_channels`."""
    settings, limits = config.train, Limits(config.train, shares=policy.can_share)
    # The first process encodes while the others wait; they then read everything from the cache.
    if not ranks.is_first:
        ranks.wait()  # released by the wait of the first process below
    channels = read_channels(config, model, output, limits, **data, progress=progress, is_ready=not ranks.is_first)
    if ranks.is_first:
        ranks.wait()
    for channel in channels:
        if isinstance(channel, DistillChannel):
            channel.teacher = open_teacher(settings, policy, model)
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
    """Load the channels with a weight and encode their data, without a model. `is_ready`: already encoded."""
    settings, options, show = config.train, token_options(config, model), _report_to(progress, "encode")
    weights, note = choose_channels(settings, pairs)
    shared: dict[str, Any] = {
        "options": options,
        "show": show,
        "where": settings.where,
        "weighting": TokenWeighting(
            uses_credit=settings.credit != "off",
            min_probability=max(settings.min_probability, MIN_PROBABILITY if note else 0),
            contrasts_reports=settings.dpo.contrast != "decisions",
            needs_probabilities=settings.min_probability > 0,
        ),
    }
    of_runs = {**shared, "score": settings.score}
    if settings.min_probability and not (weights.dpo or weights.sft):
        raise DataError("train.min_probability is for channels that imitate: dpo and sft")
    folders = TokenFolders(tokens, output / "tokens")
    channels: list[Any] = []
    pair_data: PairData | None = None
    units: Array | None = None  # what each item is shuffled with
    if pairs is not None and (weights.dpo or weights.sft):
        pair_data = load_pairs(pairs, **shared, **folders.of("pairs"))
        units = pair_data.tasks if settings.shuffle_by == "group" else None
    if weights.dpo:
        data = _require(pair_data, "dpo", "--pairs")
        order = _order(config, data.train, units, curriculum=data.curriculum)
        channels.append(PreferenceChannel(data, settings.dpo, weights.dpo, order, limits))
    if weights.dpo and settings.dpo.anchor_weight:
        anchor = load_anchor(pairs, output / "anchor", options, show, is_ready=is_ready) if pairs is not None else None
        if anchor is None:
            channels[0].notes.append("dpo.anchor_weight: no prompt of a pair has a generated turn: there is no anchor")
        else:
            weight = weights.dpo * settings.dpo.anchor_weight
            channels.append(LikelihoodChannel(anchor, weight, _order(config, anchor.train), limits, name="anchor"))
    if weights.sft:
        likely: ChosenSides | PolicyData
        if pair_data is not None:
            likely = ChosenSides(**{field.name: getattr(pair_data, field.name) for field in fields(pair_data)})
        else:
            source = _require(experience, "sft", "--pairs or --experience")
            likely = load_policy_data(source, scored=False, **of_runs, **folders.of("runs"))
            units = _number_units(likely, settings.shuffle_by or "run")
            if validation is not None:  # encoded like the runs, into a separate folder
                held = load_policy_data(validation, scored=False, **of_runs, **folders.of("validation"))
                likely = likely.with_validation(held)
        order = _order(config, likely.train, units, curriculum=pair_data.curriculum if pair_data else None)
        channels.append(LikelihoodChannel(likely, weights.sft, order, limits))
    if weights.grpo or weights.kto:
        source = _require(experience, "grpo" if weights.grpo else "kto", "--experience")
        plain_weighting = TokenWeighting(settings.credit != "off")  # unlikely tokens of bad runs are to be avoided
        runs = load_policy_data(source, **{**of_runs, "weighting": plain_weighting}, **folders.of("runs"))
        if weights.grpo:
            draw = partial(_order, config, units=_number_units(runs, settings.shuffle_by or "group"))
            channels.append(PolicyChannel(runs, settings.grpo, weights.grpo, draw, limits))
        if weights.kto:
            draw = partial(_order, config, units=_number_units(runs, settings.shuffle_by or "run"))
            channels.append(UnpairedChannel(runs, settings.kto, weights.kto, draw, limits))
    if weights.sdpo:
        source = _require(experience, "sdpo", "--experience")
        if settings.sdpo.context:
            taught = load_distill_data(
                source, output / "taught", options, settings.sdpo, show, where=settings.where, is_ready=is_ready
            )
            folders.encoded.append("what is taught")
        else:
            plain: dict[str, Any] = {"options": options, "show": show, "where": settings.where, "scored": False}
            taught = distill_runs(load_policy_data(source, **plain, **folders.of("runs")))
        order = _order(config, np.arange(len(taught.items)))
        channels.append(DistillChannel(taught, settings.sdpo, weights.sdpo, order, limits))
    if pair_data is not None and pair_data.curriculum is not None:
        name = pair_data.curriculum
        channels[0].notes.append(
            f"curriculum {name}: every epoch takes the pairs in the order of the table, not shuffled"
        )
    channels[0].notes += [*folders.describe(), *([note] if note else [])]
    return channels


def choose_channels(settings: TrainConfig, pairs: Path | None) -> tuple[ChannelWeights, str | None]:
    """Return the weights of the channels, and a note if pairs of several turns are imitated instead of compared.

    DPO on whole runs also pushes away what was right in them, such as the report of a failure: see "Imitation" in
    docs/explanation/evidence.md.
    """
    weights, options = settings.channels, settings.dpo
    is_chosen = options.contrast != "single" or options.losses != {"sigmoid": 1.0} or options.anchor_weight
    if pairs is None or not weights.dpo or is_chosen:
        return weights, None
    num_pairs = num_long = 0
    for batch in pair_batches(pairs, ["split", "chosen", "rejected"]):
        rows = pl.DataFrame(batch).filter(pl.col("split").ne_missing("validation"))
        turns = pl.max_horizontal(pl.col("chosen", "rejected").str.count_matches(_TURN, literal=True))
        num_pairs, num_long = num_pairs + rows.height, num_long + rows.select((turns > 1).sum()).item()
    if 2 * num_long <= num_pairs:
        return weights, None
    note = (
        f"{num_long:,} of {num_pairs:,} pairs compare several turns: their chosen sides train by sft, without tokens "
        f"sampled below {MIN_PROBABILITY:g}. train.dpo.contrast=all compares them"
    )
    return weights.model_copy(update={"dpo": 0.0, "sft": weights.sft + weights.dpo}), note


def token_options(config: Config, model: Path) -> TokensConfig:
    """Return the `tokens` section of a configuration, by default with the model's tokenizer; credit is stored if
    training weighs by it."""
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
    """Score all items with the reference once; cached values are not computed again."""
    wanting = [channel for channel in channels if channel.needs_reference]
    if not wanting:
        return
    if settings.reference == "none":
        names = ", ".join(channel.name for channel in wanting)
        raise ConfigError(f"reference: none, but {names} needs one; set it to initial, or take simpo, orpo or sft")
    place = None if settings.reference == "initial" else Path(settings.reference)
    name = initial if place is None else model_hash(place)
    # Values of this reference in this precision, including those of earlier runs.
    known = ReferenceLogps(cache.folder / f"{name}-{settings.precision}")
    # Functions that build trees: the trees of a large table would not fit into memory.
    wanted = [make for channel in wanting for make in channel.reference_trees()]
    lacking = [known.lacks(make()) for make in wanted]
    ranks.wait()  # all processes must compute the same `lacking` before any adds values
    show = _report_to(progress, "reference")
    if any(lacking):
        scorer = policy if place is None else open_policy(place, settings, is_trained=False)
        scorer.model.eval()
        num_mine = sum(ranks.share_neighbours(lacking))
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            show(min(done, num_mine), num_mine)

        # The last bits of a value depend on its batch: a resumed run has the same batches as an uninterrupted one.
        batches = tree_batches(ranks.share_neighbours(wanted), Limits(settings, shares=scorer.can_share))
        new = (batch for batch in batches if any(map(known.lacks, batch)))
        known.add(scorer, new, advance, cache.check_stop)
        ranks.wait()
        known.refresh()
    for channel in wanting:
        channel.reference = known


def _check_vocabulary(channels: Items[Any], policy: Policy, model: Path) -> None:
    for channel in channels:
        # A sample: with another model's tokenizer, some id of the first batch is usually too high.
        for tree in map(channel.data.tree, channel.order.batch(0)):
            highest = max(int(part.max(initial=0)) for part in (tree.prompt, *tree.branches))
            if highest >= policy.num_embeddings:
                raise DataError(
                    f"token id {highest} but {model} has {policy.num_embeddings} embeddings: "
                    "the tokenizer in its folder is another model's"
                )


def _order(config: Config, items: Array, units: Array | None = None, *, curriculum: str | None = None) -> BatchOrder:
    """Return the order of items; a curriculum keeps the table's. `units` has a number for each item of the data."""
    settings = config.train
    units = None if units is None else units[items]
    return BatchOrder(
        items, settings.batch_size, config.seed, shuffle=settings.shuffle and curriculum is None, units=units
    )


def _number_units(data: PolicyData, by: str) -> Array | None:
    """Number the shuffling unit of each sequence: its run or its group; None if sequences are shuffled individually."""
    if by == "item":
        return None
    return data.groups if by == "group" else np.unique(data.ids, return_inverse=True)[1]


def _require(value: Any, channel: str, option: str) -> Any:
    if value is None:
        raise ConfigError(f"the {channel} channel needs {option}")
    return value


def _report_to(progress: Callable[[dict[str, Any]], None], kind: str) -> Callable[[int, int], None]:
    return lambda done, total: progress({"kind": kind, "done": done, "total": total})
