"""The sft channel: sequences trained by their likelihood alone: the chosen sides of pairs, or the runs of a table.

Every trained token counts alike: the loss is the mean over the tokens of the whole batch, by the weight of their
sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.ledger.trained import Held
from pairwright.losses.logps import sum_by_sequence
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.train.batch_schedule import Order, micro_batches
from pairwright.train.metrics import Sums
from pairwright.train.model.distributed import Ranks
from pairwright.train.model.policy_model import Policy


@dataclass(frozen=True)
class Likely:
    """Sequences by position: what to train on, with its weight."""

    tree: Callable[[int], Tree]
    num_tokens: Callable[[int], int]
    identity: Callable[[int], str]
    list_held: Callable[[int], list[Held]]
    weights: Array  # (N,) over all items
    train: Array  # positions to train on
    validation: Array  # positions that are held out
    counts: dict[str, int]
    refusals: dict[str, str]
    fingerprint: str


class LikelihoodChannel:
    name = "sft"
    needs_reference = False

    def __init__(self, data: Likely, weight: float, order: Order, limits: Any) -> None:
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = data.validation
        self.counts = data.counts
        self.notes: list[str] = []
        self.reference = None

    @property
    def has_validation(self) -> bool:
        return len(self.validation) > 0

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.data.fingerprint}"

    def reference_trees(self) -> list[Any]:
        return []

    def total(self, items: Array) -> float:
        """Trained tokens of the batch, by weight."""
        return float(sum(self.data.weights[item] * self.data.tree(item).masks[0].sum() for item in items))

    def parts(self, items: Array, num_all: int) -> list[Array]:
        # Tokens of prompt and completion: all of them are in memory during a pass.
        sizes = [self.data.num_tokens(item) for item in items]
        return micro_batches(items, sizes, max_items=self._limits.items(num_all), max_tokens=self._limits.tokens)

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        pass

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        trees = [self.data.tree(item) for item in items]
        scored = policy.score(trees)
        sums_S, num_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches)
        # A sequence's weight times the sum over its tokens; `total` is the same sum of weights over the whole batch.
        weight_S = torch.from_numpy(np.asarray(self.data.weights[items])).to(policy.device)
        num_tokens = float(sum(tree.num_tokens for tree in trees))
        # (sum, count); a count of 0 marks a total, which has no mean.
        sums: Sums = {
            "nll": (-float(sums_S.detach().sum()), float(num_S.sum())),
            "num_tokens": (num_tokens, 0.0),
            "mask_fraction": (float(num_S.sum()), num_tokens),
            "trained_tokens": (float(len(scored.logps_N)), 0.0),
        }
        return -(weight_S * sums_S).sum() / max(total, 1e-12), sums

    def after_update(self, policy: Policy, num_updates: int) -> None:
        pass

    def followers(self) -> dict[str, Any]:
        return {}

    @property
    def num_items(self) -> int:
        return len(self.data.weights)

    def list_held(self, item: int) -> list[Held]:
        return self.data.list_held(item)

    @property
    def refusals(self) -> dict[str, str]:
        return self.data.refusals

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.identity(item) for item in items], [self.data.tree(item) for item in items]
