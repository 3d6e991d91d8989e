"""Mismatched prompts: each prompt with the completion of another item, for the reference point z₀ of KTO."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from pairwright.losses.logps import sum_by_sequence
from pairwright.losses.unpaired import mismatch_sums, reference_point
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.channels.channel import Channel
from pairwright.training.data import join_weights
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks


class MismatchingChannel(Channel):
    """A channel whose loss may compare with z₀, the mean divergence of the policy from the reference."""

    point: Tensor | None = None  # z₀ of the current update

    @property
    @abstractmethod
    def needs_point(self) -> bool:
        """Whether the loss uses z₀."""

    @abstractmethod
    def find_other(self, item: int) -> int:
        """Return the item whose completion is paired with the prompt of `item`; deterministic."""

    def mismatch(self, item: int) -> Tree:
        """Combine the prompt of an item with the first completion of another item."""
        mine, other = self.data.tree(item), self.data.tree(self.find_other(item))
        return Tree(mine.prompt, other.branches[:1], other.masks[:1])

    def reference_trees(self) -> list[Callable[[], Tree]]:
        wanted = super().reference_trees()
        if self.needs_point:
            items = [*self.order.items.tolist(), *self.validation.tolist()]
            wanted += [lambda item=item: self.mismatch(item) for item in items]  # type: ignore[misc]
        return wanted

    @torch.no_grad()
    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        """Compute z₀ of an update: the mean of log π − log ref over mismatched prompts, clipped at 0 (Ethayarajh et al.
        2024)."""
        self.point = torch.zeros((), device=policy.device)
        if not self.needs_point:
            return
        total = count = 0.0
        for part in self.parts(items, ranks):
            trees = [self.mismatch(item) for item in part]
            scored = policy.score(trees)
            counts = [int(tree.masks[0].sum()) for tree in trees]
            weights = [self.data.token_weights(self.find_other(item)) for item in part]
            # The weights of an item begin with the weights of its first completion.
            chosen = [None if one is None else one[:num] for one, num in zip(weights, counts, strict=True)]
            weights_N = join_weights(chosen, counts)
            weights_N = None if weights_N is None else weights_N.to(policy.device)
            sums_S, known_S = (
                sum_by_sequence(values_N, scored.branch_N, scored.num_branches, weights_N)[0]
                for values_N in (scored.logps_N, self.reference_logps(trees, policy))
            )
            mismatch = mismatch_sums(sums_S, known_S)
            total, count = total + float(mismatch[0]), count + float(mismatch[1])
        summed = ranks.sum_values({"z0": (total, count)})["z0"]
        self.point = reference_point(*(torch.tensor(value, device=policy.device) for value in summed))
