"""The kto channel: scored runs that are good or bad on their own. No pairs are needed, and no groups.

A run is desirable where its reward reaches the threshold, is above the mean of its group, or the highest of it. The
loss asks how far a run is from where the policy stands as a whole: z₀, the mean divergence of the update, estimated on
prompts with another run's completion.

    S  sequences of a part      N  trained tokens
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from pairwright.config.train_config import NO_ANCHOR, KtoConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.trained import HeldTurns
from pairwright.losses.logps import sum_by_sequence
from pairwright.losses.unpaired import kto_loss, mismatch_sums, reference_point
from pairwright.pairs.desirability import choose_threshold
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.channels.likelihood import weigh_tokens
from pairwright.training.data import PolicyData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits, Parted, even_parts
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.run_dir import Signals


class Mismatching(Parted, Protocol):
    """A channel that can put another completion after a prompt, and knows what the reference says of it."""

    def mismatch(self, item: int) -> Tree: ...
    def mismatch_weights(self, items: Array, policy: Policy) -> Tensor | None: ...
    def reference_of(self, trees: list[Tree], policy: Policy) -> Tensor: ...


def find_reference_point(channel: Mismatching, policy: Policy, items: Array, ranks: Ranks) -> Tensor:
    """z₀ of an update: the mean of log π − log ref over mismatched completions, at least 0 (Ethayarajh et al. 2024)."""
    total = count = 0.0
    with torch.no_grad():
        # All processes take part; parts that only fill up are not counted.
        for part, is_mine in even_parts(channel, items, ranks):
            trees = [channel.mismatch(item) for item in part]
            scored = policy.score(trees)
            weights_N = channel.mismatch_weights(part, policy)
            sums_S, _ = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches, weights_N)
            known_N = channel.reference_of(trees, policy)
            known_S, _ = sum_by_sequence(known_N, scored.branch_N, scored.num_branches, weights_N)
            mismatch = mismatch_sums(sums_S, known_S)
            if is_mine:
                total, count = total + float(mismatch[0]), count + float(mismatch[1])
    summed = ranks.sum_values({"z0": (total, count)})["z0"]
    return reference_point(*(torch.tensor(value, device=policy.device) for value in summed))


class UnpairedChannel(Channel):
    """Runs with a label each, their order, and what the reference says of them."""

    name = "kto"
    data: PolicyData
    needs_reference = True

    def __init__(
        self,
        data: PolicyData,
        options: KtoConfig,
        weight: float,
        order: Callable[[Array], BatchOrder],
        limits: Limits,
        *,
        run_weight: str = "sequence",
    ) -> None:
        self.data, self.options, self.weight, self._limits = data, options, weight, limits
        self._weights = data.weigh(run_weight)
        is_scored = np.isfinite(data.rewards)
        self._is_desirable, is_labelled, rule = _label_runs(data, options)
        is_used = _drop_repetitions(data, self._is_desirable, is_labelled) if options.unique else is_labelled
        used = np.flatnonzero(is_used)
        no_label = (
            "no label: equal rewards" if options.label_by != "best-worst" else "no label: equal or middle rewards"
        )
        self._unused = {
            int(item): "the same run again" if is_labelled[item] else no_label if is_scored[item] else "unscored"
            for item in np.flatnonzero(~is_used)
        }
        num_good = int(self._is_desirable[used].sum())
        num_bad = len(used) - num_good
        self.order = order(used)
        self.counts = {**data.counts, "desirable": num_good, "undesirable": num_bad}
        # Every run is desirable, undesirable, or counted under one of these.
        left_out = {
            "unscored": ~is_scored,
            "without_label" if options.label_by == "best-worst" else "equal_rewards": is_scored & ~is_labelled,
            "repeated": is_labelled & ~is_used,
        }
        for name, is_left_out in left_out.items():
            if num := int(is_left_out.sum()):
                self.counts[name] = self.counts.get(name, 0) + num
        self.notes = [_describe_balance(num_good, num_bad, rule, options)]
        self.notes += [] if options.sft_loss_weight else [f"warning: kto: {NO_ANCHOR}"]
        self.others = _find_others(data.groups)  # whose completion the mismatched example of a run has
        self._point: Tensor | None = None  # z₀ of the current update

    def reference_trees(self) -> list[Any]:
        items = [int(item) for item in self.order.items]
        # `item=item` binds the item of this iteration; trees are made when they are scored.
        wanted: list[Any] = [(int(self.data.lengths[item]), lambda item=item: self.data.tree(item)) for item in items]
        if self.options.loss == "kto":
            wanted += [(int(self.data.lengths[item]), lambda item=item: self.mismatch(item)) for item in items]
        return wanted

    def total(self, items: Array) -> float:
        """What the sum of losses is divided by: the weights of sequences that have something trained."""
        return float(sum(self._weights[item] for item in items if self.data.num_counted(item) > 0))

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        self._point = torch.zeros((), device=policy.device)
        if self.options.loss == "kto":
            self._point = find_reference_point(self, policy, items, ranks)

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        assert self._point is not None, "the loop prepares an update before its parts"
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        weights_N = weigh_tokens(self.data, items, policy)
        sums_S, num_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches, weights_N)
        known_N = self.reference_of(trees, policy)
        known_S, _ = sum_by_sequence(known_N, scored.branch_N, scored.num_branches, weights_N)
        is_good_S = torch.from_numpy(self._is_desirable[items]).to(policy.device)
        losses = kto_loss(
            sums_S,
            known_S,
            num_S,
            is_good_S,
            self._point,
            beta=self.options.beta,
            desirable_weight=self.options.desirable_weight,
            undesirable_weight=self.options.undesirable_weight,
            weight_S=torch.from_numpy(self._weights[items]).to(policy.device),
        )
        total_S = losses.loss_S
        if self.options.sft_loss_weight:
            # An anchor: what is pushed away from everywhere must go somewhere.
            mean_S = sums_S / num_S.clamp(min=1e-12) if self.options.sft_average_log_probs else sums_S
            total_S = total_S - self.options.sft_loss_weight * losses.weight_S * is_good_S * mean_S
        full_S = losses.weight_S > 0
        rewards_S = losses.rewards_S
        # A run is on the right side of z₀ where its reward says the same as its label.
        is_right_S = (rewards_S > self.options.beta * self._point) == is_good_S
        sums: Sums = {"kto/z0": (float(self._point) * len(items), float(len(items)))}
        for name, of_S in (("desirable", is_good_S & full_S), ("undesirable", ~is_good_S & full_S)):
            sums[f"kto/rewards_{name}"] = (float(rewards_S[of_S].sum()), float(of_S.sum()))
            sums[f"kto/logps_{name}"] = (float(sums_S.detach()[of_S].sum()), float(of_S.sum()))
        sums["kto/accuracies"] = (float((is_right_S & full_S).sum()), float(full_S.sum()))
        sums["num_tokens"] = (float(sum(tree.num_tokens for tree in trees)), 0.0)
        sums["trained_tokens"] = (float(len(scored.logps_N)), 0.0)
        return total_S.sum() / max(total, 1e-12), sums

    @property
    def num_items(self) -> int:
        return len(self.data.ids)

    def list_held(self, item: int) -> list[HeldTurns]:
        return [HeldTurns.of(self.data.ids[item], "", self.data.sequences[item], self._unused.get(item))]

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.ids[item] for item in items], [self.data.tree(item) for item in items]

    def item_weights(self, items: Array) -> Array:
        return self._weights[items]

    def signals(self, item: int) -> Signals:
        return {"label": bool(self._is_desirable[item])}

    def mismatch(self, item: int) -> Tree:
        """The prompt of a run with the completion of a run of another group, always the same one."""
        mine, other = self.data.tree(item), self.data.tree(self.others[item])
        return Tree(mine.prompt, other.branches[:1], other.masks[:1])

    def mismatch_weights(self, items: Array, policy: Policy) -> Tensor | None:
        return weigh_tokens(self.data, np.array([self.others[item] for item in items]), policy)

    def reference_of(self, trees: list[Tree], policy: Policy) -> Tensor:
        assert self.reference is not None, "the loop computes the reference before the first update"
        return torch.from_numpy(self.reference.of(trees)).to(policy.device)


def _label_runs(data: PolicyData, options: KtoConfig) -> tuple[Array, Array, str]:
    """Which runs (N,) are desirable, which have a label at all, and the rule in words. NaN is neither."""
    rewards, is_scored = data.rewards, np.isfinite(data.rewards)
    if options.label_by == "threshold":
        try:
            threshold = choose_threshold(rewards[is_scored], options.threshold, option="train.kto.threshold")
        except PairwrightError as error:
            raise PairwrightError(f"kto: {data.left_out}{error}") from None
        return rewards >= threshold, is_scored, f"reward ≥ {threshold:g}"
    # Sums of each group over its scored runs, and its extremes.
    num_groups = int(data.groups.max(initial=-1)) + 1
    scored_groups, scored_rewards = data.groups[is_scored], rewards[is_scored]
    totals = np.bincount(scored_groups, scored_rewards, num_groups)
    counts = np.bincount(scored_groups, minlength=num_groups)
    lowest, highest = np.full(num_groups, np.inf, np.float32), np.full(num_groups, -np.inf, np.float32)
    np.minimum.at(lowest, scored_groups, scored_rewards)
    np.maximum.at(highest, scored_groups, scored_rewards)
    is_used = is_scored & (lowest < highest)[data.groups]
    if not is_used.any():
        raise PairwrightError(
            f"kto: {data.left_out}in no group do the rewards differ: set train.kto.label_by=threshold"
        )
    if options.label_by != "group":
        # Several runs of a group may share its highest reward.
        is_best = rewards >= highest[data.groups]
        if options.label_by == "best-worst":
            is_used &= is_best | (rewards <= lowest[data.groups])
        return is_best, is_used, "the highest reward of the group"
    means = totals / np.maximum(counts, 1)
    return rewards > means[data.groups], is_used, "reward above the mean of the group"


def _drop_repetitions(data: PolicyData, is_desirable: Array, is_labelled: Array) -> Array:
    """Which labelled runs (N,) are the first of their tokens and label."""
    is_first, met = np.zeros_like(is_labelled), set()
    for item in np.flatnonzero(is_labelled).tolist():
        sequence = data.sequences[item]
        # Digests and not ids: of millions of runs these would not fit into memory.
        arrays = (sequence.ids.tobytes(), sequence.mask.tobytes(), bytes([int(is_desirable[item])]))
        key = xxhash.xxh3_128_digest(b"".join(arrays))
        is_first[item] = key not in met
        met.add(key)
    return is_first


def _describe_balance(num_good: int, num_bad: int, rule: str, options: KtoConfig) -> str:
    """How many runs of each kind there are, and weights that would balance them."""
    ratio = options.desirable_weight * num_good / max(options.undesirable_weight * num_bad, 1e-12)
    note = f"kto: {num_good:,} desirable runs ({rule}), {num_bad:,} undesirable; by weight {ratio:.2f} : 1"
    # The paper keeps λ_D n_D / (λ_U n_U) between 1 and 4/3.
    if not 0.5 <= ratio <= 2:
        side, count, other = ("desirable", num_good, num_bad) if ratio < 1 else ("undesirable", num_bad, num_good)
        note += f": train.kto.{side}_weight={other / count:.3g} would balance them"
    return note


def _find_others(groups: Array) -> list[int]:
    """For each run one of another group, about half the table away; of its own group where there is no other."""
    num, step = len(groups), max(1, len(groups) // 2)
    others = []
    for item in range(num):
        candidates = ((item + step + more) % num for more in range(num))
        others.append(next((other for other in candidates if groups[other] != groups[item]), (item + step) % num))
    return others
