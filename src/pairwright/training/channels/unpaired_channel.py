"""The kto channel: single scored runs, labelled desirable or undesirable. Needs no pairs.

A run is desirable if its reward reaches the threshold, exceeds the mean of its group, or is the highest of its group
(`label_by`). The loss `kto` compares a run with z₀, the mean divergence of the policy from the reference in this
update, estimated on prompts with another run's completion; `apo_zero_unpaired` compares with 0.

    S  sequences of a part      N  runs of the data
"""

from collections.abc import Callable

import numpy as np
import torch
import xxhash
from torch import Tensor

from pairwright.config.train_config import NO_ANCHOR, KtoConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.trained import HeldTurns
from pairwright.losses.unpaired import kto_loss
from pairwright.pairs.desirability import choose_threshold
from pairwright.records.arrays import Array
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.mismatched_prompts import MismatchingChannel
from pairwright.training.data import PolicyData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy
from pairwright.training.run_dir import Signals


class UnpairedChannel(MismatchingChannel):
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
    ) -> None:
        self.data, self.options, self.weight, self._limits = data, options, weight, limits
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
        self._others = _find_others(data.groups)  # run -> run that provides its mismatched completion

    @property
    def needs_point(self) -> bool:
        return self.options.loss == "kto"

    def find_other(self, item: int) -> int:
        return self._others[item]

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        assert self.point is not None, "the loop prepares an update before its parts"
        part = self.score(policy, items)
        sums_S, num_S = part.sums_S, part.num_S
        known_S = part.sum_branches(self.reference_logps(part.trees, policy))
        is_good_S = torch.from_numpy(self._is_desirable[items]).to(policy.device)
        losses = kto_loss(
            sums_S,
            known_S,
            num_S,
            is_good_S,
            self.point,
            beta=self.options.beta,
            desirable_weight=self.options.desirable_weight,
            undesirable_weight=self.options.undesirable_weight,
            weight_S=torch.from_numpy(self.data.weights[items]).to(policy.device),
        )
        total_S = losses.loss_S
        if self.options.sft_loss_weight:
            mean_S = sums_S / num_S.clamp(min=1e-12) if self.options.sft_average_log_probs else sums_S
            total_S = total_S - self.options.sft_loss_weight * losses.weight_S * is_good_S * mean_S
        full_S = losses.weight_S > 0
        rewards_S = losses.rewards_S
        # Accurate: a desirable run with an implicit reward above β z₀, or an undesirable one with one below.
        is_right_S = (rewards_S > self.options.beta * self.point) == is_good_S
        sums: Sums = {"kto/z0": (float(self.point) * len(items), float(len(items)))}
        for name, of_S in (("desirable", is_good_S & full_S), ("undesirable", ~is_good_S & full_S)):
            sums[f"kto/rewards_{name}"] = (float(rewards_S[of_S].sum()), float(of_S.sum()))
            sums[f"kto/logps_{name}"] = (float(sums_S.detach()[of_S].sum()), float(of_S.sum()))
        sums["kto/accuracies"] = (float((is_right_S & full_S).sum()), float(full_S.sum()))
        return total_S.sum() / max(total, 1e-12), sums | part.counts

    def list_held(self, item: int) -> list[HeldTurns]:
        return self.data.list_held(item, self._unused.get(item))

    def signals(self, item: int) -> Signals:
        return {"label": bool(self._is_desirable[item])}


def _label_runs(data: PolicyData, options: KtoConfig) -> tuple[Array, Array, str]:
    """Return which runs (N,) are desirable, which have a label, and the rule in words. Unscored runs have no label."""
    rewards, is_scored = data.rewards, np.isfinite(data.rewards)
    if options.label_by == "threshold":
        try:
            threshold = choose_threshold(rewards[is_scored], options.threshold, option="train.kto.threshold")
        except PairwrightError as error:
            raise PairwrightError(f"kto: {data.left_out}{error}") from None
        return rewards >= threshold, is_scored, f"reward ≥ {threshold:g}"
    num_groups = int(data.groups.max(initial=-1)) + 1
    scored_groups, scored_rewards = data.groups[is_scored], rewards[is_scored]
    totals = np.bincount(scored_groups, scored_rewards, num_groups)
    counts = np.bincount(scored_groups, minlength=num_groups)
    lowest, highest = np.full(num_groups, np.inf, np.float32), np.full(num_groups, -np.inf, np.float32)
    np.minimum.at(lowest, scored_groups, scored_rewards)
    np.maximum.at(highest, scored_groups, scored_rewards)
    is_used = is_scored & (lowest < highest)[data.groups]
    if not is_used.any():
        raise PairwrightError(f"kto: {data.left_out}the rewards differ in no group: set train.kto.label_by=threshold")
    if options.label_by != "group":
        is_best = rewards >= highest[data.groups]
        if options.label_by == "best-worst":
            is_used &= is_best | (rewards <= lowest[data.groups])
        return is_best, is_used, "the highest reward of the group"
    means = totals / np.maximum(counts, 1)
    return rewards > means[data.groups], is_used, "reward above the mean of the group"


def _drop_repetitions(data: PolicyData, is_desirable: Array, is_labelled: Array) -> Array:
    """Return which labelled runs (N,) are the first with their tokens and label."""
    is_first, met = np.zeros_like(is_labelled), set()
    for item in np.flatnonzero(is_labelled).tolist():
        sequence = data.sequences[item]
        # `met` has digests, since the ids of millions of runs would not fit into memory.
        arrays = (sequence.ids.tobytes(), sequence.mask.tobytes(), bytes([int(is_desirable[item])]))
        key = xxhash.xxh3_128_digest(b"".join(arrays))
        is_first[item] = key not in met
        met.add(key)
    return is_first


def _describe_balance(num_good: int, num_bad: int, rule: str, options: KtoConfig) -> str:
    """Describe the number of desirable and undesirable runs, and weights that would balance them."""
    ratio = options.desirable_weight * num_good / max(options.undesirable_weight * num_bad, 1e-12)
    note = f"kto: {num_good:,} desirable runs ({rule}), {num_bad:,} undesirable; by weight {ratio:.2f} : 1"
    # The KTO paper keeps λ_D n_D / (λ_U n_U) between 1 and 4/3.
    if not 0.5 <= ratio <= 2:
        side, count, other = ("desirable", num_good, num_bad) if ratio < 1 else ("undesirable", num_bad, num_good)
        note += f": train.kto.{side}_weight={other / count:.3g} would balance them"
    return note


def _find_others(groups: Array) -> list[int]:
    """Return another run for each run, about half the table away: of another group, if there are several groups."""
    num, step = len(groups), max(1, len(groups) // 2)
    others = []
    for item in range(num):
        candidates = ((item + step + more) % num for more in range(num))
        others.append(next((other for other in candidates if groups[other] != groups[item]), (item + step) % num))
    return others
