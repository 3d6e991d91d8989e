"""The interface that the loop expects from a channel, with the members that most channels share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from pairwright.ledger.trained import HeldTurns
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceLogps
from pairwright.training.run_dir import Signals

NO_ITEMS: Array = np.zeros(0, np.int64)


class Channel(ABC):
    """Items to train on, their order, and their loss."""

    name: str
    weight: float
    data: Any  # what it trains on, with `token_weights` of each item
    order: BatchOrder  # which items each batch has
    validation: Array = NO_ITEMS  # items that are held out
    counts: dict[str, int]
    notes: list[str]  # for the log of the run
    reference: ReferenceLogps | None = None  # set before the first update where `needs_reference`
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

    @property
    def refusals(self) -> dict[str, str]:
        """What could not be encoded: id -> reason."""
        refusals: dict[str, str] = self.data.refusals
        return refusals

    @property
    @abstractmethod
    def num_items(self) -> int: ...

    @abstractmethod
    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        """The ids of items, and their trees."""

    @abstractmethod
    def item_weights(self, items: Array) -> Array:
        """How much each item counts beside the others, before its tokens are weighed."""

    @abstractmethod
    def list_held(self, item: int) -> list[HeldTurns]:
        """The sequences of an item, for the ledger."""

    def signals(self, item: int) -> Signals:
        """What the loss takes beside tokens and weights, for a batch that is written."""
        return {}

    def reference_trees(self) -> list[tuple[int, Callable[[], Tree]]]:
        """What the reference has to score: sizes, and functions that make the trees when they are scored."""
        return []

    def parts(self, items: Array, num_all: int) -> list[Array]:
        """The items in parts that are in memory together."""
        return self._limits.cut(items, num_all, self.trees_in_memory)

    def trees_in_memory(self, item: int) -> list[Tree]:
        return [self.data.tree(item)]

    @abstractmethod
    def total(self, items: Array) -> float:
        """What the sum of the losses of a batch is divided by."""

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:  # noqa: B027
        """Compute what the loss needs to know of the whole update."""

    @abstractmethod
    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        """The share of a part in the loss of the batch, and what it measured."""

    def after_update(self, policy: Policy, num_updates: int) -> None:  # noqa: B027
        """Let models that follow the policy take a step."""

    def followers(self) -> dict[str, Any]:
        """Tensors beside the weights that an update changes, by names of their own: a checkpoint has to hold them."""
        return {}
