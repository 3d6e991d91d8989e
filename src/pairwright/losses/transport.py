"""Partners of the AOT losses, which compare sorted values of a whole update and not the two sides of each pair.

    B  pairs of the update

Sorting needs all pairs of an update at once, the gradient does not: a value's partner is a constant. So the loop finds
the partners in a pass without gradients, and the loss is then added up in micro-batches like any other.

Invariant: the partners do not depend on how the update is cut into micro-batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partners:
    """What the two sides of each pair are compared with; no gradient."""

    chosen_B: Tensor
    rejected_B: Tensor

    def at(self, places: Tensor) -> "Partners":
        """Those of some pairs of the update."""
        return Partners(self.chosen_B[places], self.rejected_B[places])


def match_ranks(values_B: Tensor, others_B: Tensor) -> Tensor:
    """For each value the other one that has the same rank.

    >>> match_ranks(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([10.0, 30.0, 20.0]))
    tensor([30., 10., 20.])
    """
    # The sorted others, put at the places that the values have in their own order.
    partners_B = torch.empty_like(others_B)
    partners_B[torch.argsort(values_B, stable=True)] = torch.sort(others_B).values
    return partners_B


@torch.no_grad()
def match_paired(chosen_B: Tensor, rejected_B: Tensor, ref_chosen_B: Tensor, ref_rejected_B: Tensor) -> Partners:
    """aot: log-ratios of the policy against those of the reference, both of chosen over rejected.

    The loss has the scores log π − log ref, which hold the pair's own log-ratio under the reference: the partner is
    the difference from it.
    """
    ref_gap_B = ref_chosen_B - ref_rejected_B
    offset_B = match_ranks(chosen_B - rejected_B, ref_gap_B) - ref_gap_B
    return Partners(offset_B, offset_B)


@torch.no_grad()
def match_unpaired(chosen_B: Tensor, rejected_B: Tensor, ref_chosen_B: Tensor, ref_rejected_B: Tensor) -> Partners:
    """aot_unpaired: scores of all chosen sides against those of all rejected ones."""
    chosen_B, rejected_B = chosen_B - ref_chosen_B, rejected_B - ref_rejected_B
    return Partners(match_ranks(chosen_B, rejected_B), match_ranks(rejected_B, chosen_B))
