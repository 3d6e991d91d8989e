"""KTO: single examples labelled desirable or undesirable, without pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExampleLosses:
    loss_S: Tensor
    """w · λ · loss, with gradient."""
    weight_S: Tensor
    """w, 0 for an example without trained tokens; the sum of losses is divided by the sum of weights."""
    rewards_S: Tensor
    """β (log π − log ref), without gradient."""
    num_empty: int


def mismatch_sums(logps_M: Tensor, ref_logps_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of log π − log ref over mismatched examples, and their number, to add up over the update."""
    apart_M = (logps_M - ref_logps_M).detach()  # z₀ has no gradient
    return apart_M.sum(), torch.tensor(float(len(apart_M)), dtype=apart_M.dtype, device=apart_M.device)


def reference_point(total: Tensor, count: Tensor) -> Tensor:
    """Return z₀ = max(0, mean); 0 without mismatched examples."""
    # A KL divergence is never negative, but an estimate may be.
    return (total / count.clamp(min=1)).clamp(min=0).detach()


def kto_loss(
    logps_S: Tensor,
    ref_logps_S: Tensor,
    num_S: Tensor,
    is_desirable_S: Tensor,
    z0: Tensor,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    weight_S: Tensor | None = None,
) -> ExampleLosses:
    """Compute λ_D σ(β (z₀ − s)) of desirable examples, λ_U σ(β (s − z₀)) of undesirable ones (λ − v in the paper).

    >>> logps, reference = torch.tensor([-1.0, -5.0]), torch.tensor([-3.0, -3.0])
    >>> is_desirable = torch.tensor([True, False])
    >>> losses = kto_loss(logps, reference, torch.tensor([4, 4]), is_desirable, torch.tensor(0.0), beta=0.5)
    >>> losses.rewards_S, losses.loss_S  # both moved in the direction of their label
    (tensor([ 1., -1.]), tensor([0.2689, 0.2689]))
    """
    full_S = num_S > 0
    zeros_S = torch.zeros_like(logps_S)
    score_S = torch.where(full_S, logps_S - ref_logps_S, zeros_S)
    # s − z₀ should grow for desirable examples and shrink for the others.
    sign_S = torch.where(is_desirable_S, 1.0, -1.0).to(score_S.dtype)
    lambda_S = torch.where(is_desirable_S, desirable_weight, undesirable_weight).to(score_S.dtype)
    loss_S = lambda_S * torch.sigmoid(beta * sign_S * (z0.detach() - score_S))
    weight_S = full_S.to(score_S.dtype) if weight_S is None else torch.where(full_S, weight_S, zeros_S)
    return ExampleLosses(
        loss_S=weight_S * loss_S,
        weight_S=weight_S,
        rewards_S=beta * score_S.detach(),
        num_empty=int((~full_S).sum()),
    )
