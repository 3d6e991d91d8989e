"""A channel: items to train on, their order, and their loss. The loop uses only this interface.

S  branches of a part      N  trained tokens
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.ledger.trained import HeldTurns
from pairwright.losses.logps import sum_by_sequence
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.data import join_weights
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy, Scored
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceLogps
from pairwright.training.run_dir import Signals

NO_ITEMS: Array = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ScoredPart:
    """A part of a batch, scored by the policy; sums and counts of branches are weighted by token."""

    trees: list[Tree]
    scored: Scored
    weights_N: Tensor | None
    sums_S: Tensor
    num_S: Tensor

    def sum_branches(self, values_N: Tensor) -> Tensor:
        return sum_by_sequence(values_N, self.scored.branch_N, self.scored.num_branches, self.weights_N)[0]

    @property
    def num_tokens(self) -> float:
        return float(sum(tree.num_tokens for tree in self.trees))

    @property
    def counts(self) -> Sums:
        """Totals of tokens: a count of 0 marks a total, which has no mean."""
        return {"num_tokens": (self.num_tokens, 0.0), "trained_tokens": (float(len(self.scored.logps_N)), 0.0)}


class Channel(ABC):
    """The interface that the loop expects, with the members that most channels share.

    `data` has for each item: id, weight, tree, weights of its trained tokens, and its turns for the ledger; `refusals`
    maps the ids of items that could not be encoded to reasons.
    """

    name: str
    weight: float
    data: Any
    order: BatchOrder  # which items each batch has
    validation: Array = NO_ITEMS  # held-out items
    counts: dict[str, int]
    notes: list[str]  # for the log of the run
    reference: ReferenceLogps | None = None  # set before the first update if `needs_reference`
    _limits: Limits

    @property
    def needs_reference(self) -> bool:
        """Whether values of a fixed reference are computed before the first update."""
        return False

    @property
    def has_validation(self) -> bool:
        return len(self.validation) > 0

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.data.fingerprint}"

    def list_held(self, item: int) -> list[HeldTurns]:
        """The sequences of an item, for the ledger."""
        held: list[HeldTurns] = self.data.list_held(item)
        return held

    def signals(self, item: int) -> Signals:
        """Return the inputs of the loss besides tokens and weights, for a dumped batch."""
        return {}

    def reference_trees(self) -> list[Callable[[], Tree]]:
        """Return functions that build the trees for the reference to score, lazily."""
        items = np.concatenate([self.order.items, self.validation])
        return [lambda item=item: self.data.tree(item) for item in items.tolist()]  # type: ignore[misc]

    def parts(self, items: Array, ranks: Ranks) -> list[Array]:
        """Split this process's share of a batch into parts that fit into memory, the largest first."""
        # Neighbours share the most tokens.
        return self._limits.cut(ranks.share_neighbours(items), len(items), self.trees_in_memory)

    def trees_in_memory(self, item: int) -> list[Tree]:
        return [self.data.tree(item)]

    def total(self, items: Array) -> float:
        """Return the divisor of a batch's summed losses: the total weight of items with trained tokens."""
        return float(sum(self.data.weights[item] for item in items if self.data.is_full(item)))

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:  # noqa: B027
        """Compute values that the loss needs from the whole update."""

    @abstractmethod
    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        """Return a part's share of the batch loss, and its metrics."""

    def score(self, policy: Policy, items: Array) -> ScoredPart:
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        counts = [sum(int(mask.sum()) for mask in tree.masks) for tree in trees]
        weights_N = join_weights([self.data.token_weights(item) for item in items], counts)
        weights_N = None if weights_N is None else weights_N.to(policy.device)
        sums_S, num_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches, weights_N)
        return ScoredPart(trees, scored, weights_N, sums_S, num_S)

    def reference_logps(self, trees: list[Tree], policy: Policy) -> Tensor:
        """Log-probabilities (N,) of the trained tokens of trees under the reference."""
        assert self.reference is not None, "the loop computes the reference before the first update"
        return torch.from_numpy(self.reference.of(trees)).to(policy.device)
