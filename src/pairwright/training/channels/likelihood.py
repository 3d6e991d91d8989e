"""The sft channel: sequences trained by their likelihood alone: the chosen sides of pairs, or the runs of a table;
and under the name `anchor` the turns that pairs leave in their prompts.

The loss is the mean over the tokens of the whole batch, by the weight of their sequence, and their own where they have
one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pairwright.ledger.trained import HeldTurns
from pairwright.losses.logps import sum_by_sequence
from pairwright.pairs.curriculum import Curriculum
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.data import join_weights
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy


@dataclass(frozen=True)
class Likely:
    """Sequences by position: what to train on, with its weight."""

    tree: Callable[[int], Tree]  # of an item: its prompt and one branch
    num_tokens: Callable[[int], int]
    identity: Callable[[int], str]
    list_held: Callable[[int], list[HeldTurns]]
    token_weights: Callable[[int], Array | None]  # of its trained tokens; None where all count alike
    weights: Array  # (N,) over all items
    train: Array  # positions to train on
    validation: Array  # positions that are held out
    counts: dict[str, int]
    refusals: dict[str, str]  # id -> why it could not be encoded
    fingerprint: str
    curriculum: Curriculum | None = None


class Weighted(Protocol):
    """Data whose trained tokens may have weights."""

    @property
    def tree(self) -> Callable[[int], Tree]: ...
    @property
    def token_weights(self) -> Callable[[int], Array | None]: ...


def weigh_tokens(data: Weighted, items: Array, policy: Policy) -> Tensor | None:
    """The weights (N,) of the trained tokens of items, as a policy scores them; None where all count alike."""
    counts = [sum(int(mask.sum()) for mask in data.tree(item).masks) for item in items]
    weights_N = join_weights([data.token_weights(item) for item in items], counts)
    return None if weights_N is None else weights_N.to(policy.device)


class LikelihoodChannel(Channel):
    name = "sft"
    data: Likely

    def __init__(self, data: Likely, weight: float, order: BatchOrder, limits: Limits, name: str = "sft") -> None:
        self.name = name
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = data.validation
        self.counts = data.counts
        self.notes: list[str] = []

    def total(self, items: Array) -> float:
        """Trained tokens of the batch, by weight."""
        return float(sum(self.data.weights[item] * self._count(item) for item in items))

    def _count(self, item: int) -> float:
        weights = self.data.token_weights(item)
        return float(self.data.tree(item).masks[0].sum() if weights is None else weights.sum())

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        weights_N = weigh_tokens(self.data, items, policy)
        sums_S, num_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches, weights_N)
        # A sequence's weight times the sum over its tokens; `total` is the same sum of weights over the whole batch.
        weight_S = torch.from_numpy(np.asarray(self.data.weights[items])).to(policy.device)
        num_tokens = float(sum(tree.num_tokens for tree in trees))
        # (sum, count); a count of 0 marks a total, which has no mean.
        sums: Sums = {
            "nll" if self.name == "sft" else f"{self.name}/nll": (-float(sums_S.detach().sum()), float(num_S.sum())),
            "num_tokens": (num_tokens, 0.0),
            "mask_fraction": (float(len(scored.logps_N)), num_tokens),
            "trained_tokens": (float(len(scored.logps_N)), 0.0),
        }
        return -(weight_S * sums_S).sum() / max(total, 1e-12), sums

    @property
    def num_items(self) -> int:
        return len(self.data.weights)

    def list_held(self, item: int) -> list[HeldTurns]:
        return self.data.list_held(item)

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.identity(item) for item in items], [self.data.tree(item) for item in items]

    def item_weights(self, items: Array) -> Array:
        return self.data.weights[items]
