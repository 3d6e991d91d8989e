"""The sft channel trains sequences by likelihood: the chosen sides of pairs, or the runs of a table. Under the name
`anchor`, it trains the generated turns in the prompts of pairs.

The loss is the mean over the tokens of the whole batch, weighted by sequence and token.
"""

import numpy as np
import torch
from torch import Tensor

from pairwright.records.arrays import Array
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.data import ChosenSides, PolicyData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy


class LikelihoodChannel(Channel):
    data: ChosenSides | PolicyData

    def __init__(
        self, data: ChosenSides | PolicyData, weight: float, order: BatchOrder, limits: Limits, name: str = "sft"
    ) -> None:
        self.name = name
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation, self.counts = data.validation, data.counts
        self.notes: list[str] = []

    def total(self, items: Array) -> float:
        """Return the weighted number of trained tokens of the batch."""
        return float(sum(self.data.weights[item] * self.data.num_counted(item) for item in items))

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        part = self.score(policy, items)
        # A sequence's weight times the sum over its tokens; `total` is the same sum of weights over the whole batch.
        weight_S = torch.from_numpy(np.asarray(self.data.weights[items])).to(policy.device)
        name = "nll" if self.name == "sft" else f"{self.name}/nll"
        sums: Sums = part.counts | {
            name: (-float(part.sums_S.detach().sum()), float(part.num_S.sum())),
            "mask_fraction": (float(len(part.scored.logps_N)), part.num_tokens),
        }
        return -(weight_S * part.sums_S).sum() / max(total, 1e-12), sums
