"""The preference channel: pairs in, the loss that is named in the configuration out.

B  pairs of a part      S  branches, 2·B: chosen and rejected in turns      N  trained tokens
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import PreferenceConfig
from pairwright.ledger.trained import Held
from pairwright.losses.logps import length_weights, sum_by_sequence
from pairwright.losses.preference import (
    PairLogps,
    PairLosses,
    check_preference,
    mismatch_sums,
    preference_loss,
    reference_point,
)
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.train.batch_schedule import Order, even_parts, micro_batches
from pairwright.train.data import PairData
from pairwright.train.metrics import Sums
from pairwright.train.model.distributed import Ranks
from pairwright.train.model.policy_model import Policy, Scored
from pairwright.train.model.reference import ReferenceLogps


class PreferenceChannel:
    """Pairs, their order, and what the reference says of them."""

    name = "dpo"

    def __init__(self, data: PairData, options: PreferenceConfig, weight: float, order: Order, limits: Any) -> None:
        self.options = options
        self.loss_name = options.loss
        self.kind = check_preference(options.loss, self.options)
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = data.validation
        self.counts = data.counts
        self.notes: list[str] = []
        self.reference: ReferenceLogps | None = None
        self._point: Tensor | None = None  # z₀ of the current update, for kto

    @property
    def has_validation(self) -> bool:
        return len(self.validation) > 0

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.data.fingerprint}"

    @property
    def needs_reference(self) -> bool:
        return self.kind.needs_reference

    def reference_trees(self) -> list[Any]:
        """What the reference has to score, as functions that make the trees, with their sizes."""
        items = np.concatenate([self.data.train, self.data.validation])
        # `item=item` binds the item of this iteration; trees are made when they are scored.
        wanted = [(self.data.num_tokens(item), lambda item=item: self.data.tree(item)) for item in items]
        if self.kind.needs_reference_point:
            wanted += [(self.data.num_tokens(item), lambda item=item: self._mismatch(item)) for item in items]
        return wanted

    def total(self, items: Array) -> float:
        """What the sum of losses is divided by: the weights of pairs that have something trained on both sides."""
        return float(sum(self.data.weights[item] for item in items if self.data.is_full(item)))

    def parts(self, items: Array, num_all: int) -> list[Array]:
        sizes = [self.data.num_tokens(item) for item in items]
        return micro_batches(items, sizes, max_items=self._limits.items(num_all), max_tokens=self._limits.tokens)

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        """kto: z₀ of the whole update, from prompts with another pair's completion."""
        if not self.kind.needs_reference_point:
            return
        total = count = 0.0
        with torch.no_grad():
            # All processes take part; parts that only fill up are not counted.
            for part, is_mine in even_parts(self, items, ranks):
                trees = [self._mismatch(item) for item in part]
                scored = policy.score(trees)
                sums_S, _ = _sums(scored)
                known_S, _ = _sums_of(self._reference_of(trees, policy), scored)
                mismatch = mismatch_sums(sums_S, known_S)
                if is_mine:
                    total, count = total + float(mismatch[0]), count + float(mismatch[1])
        summed = ranks.sum_values({"z0": (total, count)})["z0"]
        self._point = reference_point(*(torch.tensor(value, device=policy.device) for value in summed))

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        """The part's share of the batch's loss, and what it measured."""
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        weight_N = self._length_weights(scored)
        sums_S, num_S = _sums(scored, weight_N)
        # Plain sums are for the NLL and for metrics, weighted ones for the preference loss.
        plain_S, _ = (sums_S, num_S) if weight_N is None else _sums(scored)
        known_S = None
        if self.needs_reference:
            known_S, _ = _sums_of(self._reference_of(trees, policy), scored, weight_N)
        # Branches alternate: even ones are chosen sides, odd ones rejected.
        logps = PairLogps(
            chosen_B=sums_S[0::2],
            rejected_B=sums_S[1::2],
            num_chosen_B=num_S[0::2],
            num_rejected_B=num_S[1::2],
            ref_chosen_B=None if known_S is None else known_S[0::2],
            ref_rejected_B=None if known_S is None else known_S[1::2],
            weight_B=torch.from_numpy(self.data.weights[items]).to(policy.device),
            margin_B=torch.from_numpy(self.data.gaps[items]).to(policy.device),
            chosen_nll_B=-plain_S[0::2],
            reference_point=self._point,
        )
        losses = preference_loss(self.loss_name, logps, self.options)
        sums = _measure(losses, plain_S.detach(), policy, scored)
        sums["num_tokens"] = (float(sum(tree.num_tokens for tree in trees)), 0.0)
        sums["mask_fraction"] = (float(len(scored.logps_N)), sums["num_tokens"][0])
        sums["trained_tokens"] = (float(len(scored.logps_N)), 0.0)
        return losses.loss_B.sum() / max(total, 1e-12), sums

    def after_update(self, policy: Policy) -> None:
        pass

    def followers(self) -> dict[str, Any]:
        return {}

    @property
    def num_items(self) -> int:
        return len(self.data.pairs)

    def list_held(self, item: int) -> list[Held]:
        return self.data.list_held(item)

    @property
    def refusals(self) -> dict[str, str]:
        return self.data.refusals

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.pairs.ids[item] for item in items], [self.data.tree(item) for item in items]

    def _reference_of(self, trees: list[Tree], policy: Policy) -> Tensor:
        assert self.reference is not None, "the loop computes the reference before the first update"
        return torch.from_numpy(self.reference.of(trees)).to(policy.device)

    def _mismatch(self, item: int) -> Tree:
        """The prompt of a pair with the chosen completion of another, always the same one."""
        # Half the table away: another pair, and the same one in every epoch and process.
        other = (item + max(1, len(self.data.pairs) // 2)) % len(self.data.pairs)
        mine, others = self.data.tree(item), self.data.tree(other)
        return Tree(mine.prompt, others.branches[:1], others.masks[:1])

    def _length_weights(self, scored: Scored) -> Tensor | None:
        """Length-desensitised (Liu et al. 2024, LD-DPO): tokens beyond the other side's length count less."""
        if self.options.ld_alpha is None:
            return None
        _, num_S = sum_by_sequence(scored.logps_N.detach(), scored.branch_N, scored.num_branches)
        # Tokens of the shorter side (B,), once for each of the two branches (S,).
        shorter_S = torch.minimum(num_S[0::2], num_S[1::2]).repeat_interleave(2)
        return length_weights(scored.branch_N, shorter_S, self.options.ld_alpha)


def _sums(scored: Scored, weight_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return _sums_of(scored.logps_N, scored, weight_N)


def _sums_of(values_N: Tensor, scored: Scored, weight_N: Tensor | None = None) -> tuple[Tensor, Tensor]:
    weighted_N = values_N if weight_N is None else values_N * weight_N
    return sum_by_sequence(weighted_N, scored.branch_N, scored.num_branches)


def _measure(losses: PairLosses, plain_S: Tensor, policy: Policy, scored: Scored) -> Sums:
    """Sums and counts of TRL's metrics over pairs that are not empty."""
    # Pairs with trained tokens on both sides and a weight above 0.
    full_B = losses.weight_B > 0
    num = float(full_B.sum())
    chosen_B, rejected_B = losses.chosen_rewards_B[full_B], losses.rejected_rewards_B[full_B]
    # (N,) branches alternate: even ones are chosen sides.
    is_chosen_N = scored.branch_N % 2 == 0
    logits_N = policy.mean_logits(scored.hidden_NH)
    sums = {
        "rewards/chosen": (chosen_B.sum(), num),
        "rewards/rejected": (rejected_B.sum(), num),
        "rewards/margins": ((chosen_B - rejected_B).sum(), num),
        "rewards/accuracies": ((chosen_B > rejected_B).sum(), num),
        "logps/chosen": (plain_S[0::2][full_B].sum(), num),
        "logps/rejected": (plain_S[1::2][full_B].sum(), num),
        "logits/chosen": (logits_N[is_chosen_N].sum(), float(is_chosen_N.sum())),
        "logits/rejected": (logits_N[~is_chosen_N].sum(), float((~is_chosen_N).sum())),
        "empty_pairs": (losses.num_empty, 0.0),
    }
    return {name: (float(value), count) for name, (value, count) in sums.items()}
