"""The preference channel: pairs in, the loss that is named in the configuration out.

B  pairs of a part      S  branches, 2·B: chosen and rejected in turns      N  trained tokens
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import NO_ANCHOR, PreferenceConfig, TrainConfig
from pairwright.ledger.trained import HeldTurns
from pairwright.losses.logps import sum_by_sequence
from pairwright.losses.preference import (
    PairLogps,
    PairLosses,
    check_preference,
    preference_loss,
)
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.channels.likelihood import weigh_tokens
from pairwright.training.channels.unpaired_channel import find_reference_point
from pairwright.training.data import PairData, join_weights
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.load_model import trainable
from pairwright.training.model.policy_model import Policy, Scored, follow, open_policy
from pairwright.training.model.ranks import Ranks

NUM_SAMPLED = 64  # pairs that are looked at for the length of sides
FEW_TOKENS = 8  # sides with fewer trained tokens are short


class PreferenceChannel(Channel):
    """Pairs, their order, and what the reference says of them."""

    name = "dpo"
    data: PairData

    def __init__(
        self, data: PairData, options: PreferenceConfig, weight: float, order: BatchOrder, limits: Limits
    ) -> None:
        self.options = options
        self.kind = check_preference(options.losses, self.options)
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = data.validation
        self.counts = data.counts
        self.notes = self._describe_terms()
        self.moving_reference: Policy | None = None  # a second model, where `open_moving_reference` has one
        self._point: Tensor | None = None  # z₀ of the current update, for kto

    def _describe_terms(self) -> list[str]:
        """Warnings about a loss without an SFT term, and about a small β for sides of a few tokens."""
        notes = []
        # orpo has a likelihood term of its own.
        if not self.options.sft_loss_weight and "orpo" not in self.options.losses:
            notes.append(f"warning: dpo: {NO_ANCHOR}")
        sample = self.data.train[:NUM_SAMPLED]
        sizes = [int(mask.sum()) for item in sample for mask in self.data.tree(item).masks]
        if "beta" not in self.options.model_fields_set and sizes and np.median(sizes) < FEW_TOKENS:
            notes.append(
                f"warning: dpo: sides have {np.median(sizes):g} trained tokens (median), and with beta "
                f"{self.options.beta:g} their probabilities may move far: try train.dpo.beta=1"
            )
        return notes

    @property
    def needs_reference(self) -> bool:
        """Whether values of a fixed reference are wanted before the first update."""
        return self.kind.needs_reference and self.options.reference_sync is None

    def reference_trees(self) -> list[Any]:
        """What the reference has to score, as functions that make the trees, with their sizes."""
        items = np.concatenate([self.data.train, self.data.validation])
        # `item=item` binds the item of this iteration; trees are made when they are scored.
        wanted = [(self.data.num_tokens(item), lambda item=item: self.data.tree(item)) for item in items]
        if self.kind.needs_reference_point:
            wanted += [(self.data.num_tokens(item), lambda item=item: self.mismatch(item)) for item in items]
        return wanted

    def total(self, items: Array) -> float:
        """What the sum of losses is divided by: the weights of pairs that have something trained on both sides."""
        return float(sum(self.data.weights[item] for item in items if self.data.is_full(item)))

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        if self.kind.needs_reference_point:
            self._point = find_reference_point(self, policy, items, ranks)

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        """The part's share of the batch's loss, and what it measured."""
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        weights_N = weigh_tokens(self.data, items, policy)
        sums_S, num_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches, weights_N)
        known_S = None
        if self.kind.needs_reference:
            known_N = self.reference_of(trees, policy)
            known_S, _ = sum_by_sequence(known_N, scored.branch_N, scored.num_branches, weights_N)
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
            noise_B=None if self.data.noise is None else torch.from_numpy(self.data.noise[items]).to(policy.device),
            reference_point=self._point,
        )
        losses = preference_loss(self.options.losses, logps, self.options)
        sums = _measure(losses, sums_S.detach(), policy, scored)
        sums["num_tokens"] = (float(sum(tree.num_tokens for tree in trees)), 0.0)
        sums["mask_fraction"] = (float(len(scored.logps_N)), sums["num_tokens"][0])
        sums["trained_tokens"] = (float(len(scored.logps_N)), 0.0)
        return losses.loss_B.sum() / max(total, 1e-12), sums

    def after_update(self, policy: Policy, num_updates: int) -> None:
        if self.moving_reference is None:
            return
        self.moving_reference.settle()
        if self.options.reference_sync and num_updates % self.options.reference_sync == 0:
            follow(self.moving_reference, policy, self.options.reference_mixup)

    def followers(self) -> dict[str, Any]:
        """The weights of a reference that follows the policy."""
        if self.moving_reference is None:
            return {}
        return {f"reference.{name}": tensor for name, tensor in trainable(self.moving_reference.model).items()}

    @property
    def num_items(self) -> int:
        return len(self.data.pairs)

    def list_held(self, item: int) -> list[HeldTurns]:
        return self.data.list_held(item)

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.pairs.ids[item] for item in items], [self.data.tree(item) for item in items]

    def item_weights(self, items: Array) -> Array:
        return self.data.weights[items]

    def reference_of(self, trees: list[Tree], policy: Policy) -> Tensor:
        if self.moving_reference is not None:
            with torch.no_grad():
                return self.moving_reference.score(trees).logps_N
        assert self.reference is not None, "the loop computes the reference before the first update"
        return torch.from_numpy(self.reference.of(trees)).to(policy.device)

    def mismatch(self, item: int) -> Tree:
        """The prompt of a pair with the chosen completion of another, always the same one."""
        mine, others = self.data.tree(item), self.data.tree(self._find_other(item))
        return Tree(mine.prompt, others.branches[:1], others.masks[:1])

    def _find_other(self, item: int) -> int:
        # Half the table away: another pair, and the same one in every epoch and process.
        return (item + max(1, len(self.data.pairs) // 2)) % len(self.data.pairs)

    def mismatch_weights(self, items: Array, policy: Policy) -> Tensor | None:
        others = [self._find_other(item) for item in items]
        counts = [int(self.data.tree(item).masks[0].sum()) for item in others]
        # The weights of a pair begin with those of its chosen side.
        weights = [self.data.token_weights(item) for item in others]
        chosen = [None if one is None else one[:num] for one, num in zip(weights, counts, strict=True)]
        weights_N = join_weights(chosen, counts)
        return None if weights_N is None else weights_N.to(policy.device)


def open_moving_reference(settings: TrainConfig, model: Path, ranks: Ranks) -> Policy | None:
    """A second model where the reference follows the policy (TR-DPO, Gorbatovski et al. 2024)."""
    if settings.dpo.reference_sync is None:
        return None
    reference = open_policy(model, settings, ranks)
    reference.model.eval()
    return reference


def _measure(losses: PairLosses, sums_S: Tensor, policy: Policy, scored: Scored) -> Sums:
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
        "logps/chosen": (sums_S[0::2][full_B].sum(), num),
        "logps/rejected": (sums_S[1::2][full_B].sum(), num),
        "logits/chosen": (logits_N[is_chosen_N].sum(), float(is_chosen_N.sum())),
        "logits/rejected": (logits_N[~is_chosen_N].sum(), float((~is_chosen_N).sum())),
        "empty_pairs": (losses.num_empty, 0.0),
    }
    return {name: (float(value), count) for name, (value, count) in sums.items()}
