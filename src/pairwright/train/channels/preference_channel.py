"""The preference channel: pairs in, the loss that is named in the configuration out.

B  pairs of a part      S  branches, 2·B: chosen and rejected in turns      N  trained tokens
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import PreferenceConfig, TrainConfig
from pairwright.ledger.trained import Held
from pairwright.losses.logps import length_weights, sum_by_sequence
from pairwright.losses.pairwise import Partners
from pairwright.losses.preference import (
    PairLogps,
    PairLosses,
    check_preference,
    match_partners,
    policy_weights,
    preference_loss,
)
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.train.batch_schedule import Order
from pairwright.train.channels.likelihood import weigh_tokens
from pairwright.train.channels.unpaired_channel import find_reference_point
from pairwright.train.data import PairData, join_weights
from pairwright.train.metrics import Sums
from pairwright.train.micro_batches import Limits, even_parts
from pairwright.train.model.load_model import trainable
from pairwright.train.model.policy_model import Policy, Scored, follow, open_policy
from pairwright.train.model.ranks import Ranks
from pairwright.train.model.reference import ReferenceLogps

_SUMS = ("chosen_B", "rejected_B", "num_chosen_B", "num_rejected_B", "ref_chosen_B", "ref_rejected_B")


class PreferenceChannel:
    """Pairs, their order, and what the reference says of them."""

    name = "dpo"

    def __init__(self, data: PairData, options: PreferenceConfig, weight: float, order: Order, limits: Limits) -> None:
        self.options = options
        self.kind = check_preference(options.losses, self.options)
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = data.validation
        self.counts = data.counts
        self.notes: list[str] = []
        self.reference: ReferenceLogps | None = None
        self.moving_reference: Policy | None = None  # a second model, where `open_moving_reference` has one
        self._point: Tensor | None = None  # z₀ of the current update, for kto
        self._places: dict[int, int] = {}  # item -> place among the partners of the current update, for aot
        self._partners: dict[str, Partners] = {}

    @property
    def has_validation(self) -> bool:
        return len(self.validation) > 0

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.data.fingerprint}"

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

    def parts(self, items: Array, num_all: int) -> list[Array]:
        return self._limits.cut(items, num_all, lambda item: [self.data.tree(item)])

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        """What the losses need to know of the whole update."""
        if self.kind.needs_reference_point:
            self._point = find_reference_point(self, policy, items, ranks)
        if self.kind.needs_partners:
            self._partners = self._find_partners(policy, items, ranks)
            self._places = {int(item): place for place, item in enumerate(items)}

    def _find_partners(self, policy: Policy, items: Array, ranks: Ranks) -> dict[str, Partners]:
        """aot: which value of the update each pair is compared with, by a pass without gradients."""
        values: dict[str, tuple[float, float]] = {}  # "item field" -> its sum, from whichever process scored it
        with torch.no_grad():
            for part, is_mine in even_parts(self, items, ranks):
                logps, _, _ = self._score(policy, part)
                if is_mine:
                    columns = {name: getattr(logps, name).tolist() for name in _SUMS}
                    values |= {
                        f"{item} {name}": (column[place], 1.0)
                        for name, column in columns.items()
                        for place, item in enumerate(part)
                    }
        values = ranks.sum_values(values)
        # A field of the whole update (B,), in the order of its items.
        sums = {name: torch.tensor([values[f"{item} {name}"][0] for item in items]) for name in _SUMS}
        partners = match_partners(self.kind, PairLogps(**sums))
        return {
            name: Partners(one.chosen_B.to(policy.device), one.rejected_B.to(policy.device))
            for name, one in partners.items()
        }

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        """The part's share of the batch's loss, and what it measured."""
        logps, plain_S, scored = self._score(policy, items)
        # 0 where no loss needs partners: `_partners` is empty then, and the places are not used.
        places = torch.tensor([self._places.get(int(item), 0) for item in items], device=policy.device)
        logps = replace(
            logps,
            reference_point=self._point,
            partners={name: partners.at(places) for name, partners in self._partners.items()},
        )
        losses = preference_loss(self.options.losses, logps, self.options)
        sums = _measure(losses, plain_S.detach(), policy, scored)
        sums["num_tokens"] = (float(sum(self.data.tree(item).num_tokens for item in items)), 0.0)
        sums["mask_fraction"] = (float(len(scored.logps_N)), sums["num_tokens"][0])
        sums["trained_tokens"] = (float(len(scored.logps_N)), 0.0)
        return losses.loss_B.sum() / max(total, 1e-12), sums

    def _score(self, policy: Policy, items: Array) -> tuple[PairLogps, Tensor, Scored]:
        """What the losses compare, plain sums (S,) of the branches, and the scored tokens."""
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        # Weights of the data count everywhere, those of LD-DPO in the preference loss alone, and not as numbers.
        weights_N, desensitised_N = weigh_tokens(self.data, items, policy), self._length_weights(scored)
        plain_S, num_S = _sums(scored.logps_N, scored, weights_N)
        sums_S = plain_S
        if desensitised_N is not None:
            sums_S, _ = _sums(scored.logps_N * desensitised_N, scored, weights_N)
        known_S = None
        if self.kind.needs_reference:
            known_N = self.reference_of(trees, policy)
            known_N = known_N if desensitised_N is None else known_N * desensitised_N
            known_S, _ = _sums(known_N, scored, weights_N)
        likely_B = None
        if self.options.use_weighting:
            likely_B = policy_weights(
                scored.logps_N, policy.log_sum_squares(scored.hidden_NH), scored.branch_N, len(items)
            )
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
            policy_weight_B=likely_B,
        )
        return logps, plain_S, scored

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

    def list_held(self, item: int) -> list[Held]:
        return self.data.list_held(item)

    @property
    def refusals(self) -> dict[str, str]:
        return self.data.refusals

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

    def _length_weights(self, scored: Scored) -> Tensor | None:
        """Length-desensitised (Liu et al. 2024, LD-DPO): tokens beyond the other side's length count less."""
        if self.options.ld_alpha is None:
            return None
        _, num_S = sum_by_sequence(scored.logps_N.detach(), scored.branch_N, scored.num_branches)
        # Tokens of the shorter side (B,), once for each of the two branches (S,).
        shorter_S = torch.minimum(num_S[0::2], num_S[1::2]).repeat_interleave(2)
        return length_weights(scored.branch_N, shorter_S, self.options.ld_alpha)


def open_moving_reference(settings: TrainConfig, model: Path, ranks: Ranks) -> Policy | None:
    """A second model where the reference follows the policy (TR-DPO, Gorbatovski et al. 2024)."""
    if settings.dpo.reference_sync is None:
        return None
    reference = open_policy(model, settings, ranks)
    reference.model.eval()
    return reference


def _sums(values_N: Tensor, scored: Scored, weights_N: Tensor | None) -> tuple[Tensor, Tensor]:
    return sum_by_sequence(values_N, scored.branch_N, scored.num_branches, weights_N)


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
