"""The preference losses, one function each: from the scores of a pair's two sides to the loss of the pair.

At the end stand the partners for losses that compare sorted scores (optimal transport).

    B  pairs        ε  label smoothing        σ  logistic function

A score s is log π − log ref of a side, summed over its tokens, or divided by their number where the loss or the
options say so; for losses without a reference it is the averaged log π. z = β (s_chosen − s_rejected) − margin.

Invariant: a function takes finite scores and gives finite losses and gradients, however large the scores are: logistic
terms go through `logsigmoid` and `sigmoid`, never through a logarithm of a rounded probability.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

MAX_EXPONENT = 80.0  # e^80 is finite in float32


@dataclass(frozen=True)
class Scores:
    chosen_B: Tensor
    rejected_B: Tensor
    margin_B: Tensor
    """What z is lowered by: γ for simpo, the scaled reward gap where margins are used, else 0."""
    gap_B: Tensor
    """The scaled reward gap, for rpo."""
    nll_B: Tensor
    """Negative log-likelihood of the chosen side per token, for orpo."""
    reference_point: Tensor
    """z₀, for kto."""
    partner_chosen_B: Tensor
    """aot: what the chosen side is compared with, see `losses.transport`."""
    partner_rejected_B: Tensor
    """aot_unpaired: the same for the rejected side."""


@dataclass(frozen=True)
class Strength:
    beta: float
    label_smoothing: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    discopop_tau: float = 0.05


def sigmoid(scores: Scores, strength: Strength) -> Tensor:
    """−(1−ε) log σ(z) − ε log σ(−z). DPO (Rafailov et al. 2023, eq. 7); with ε cDPO (Mitchell 2023, eq. 3).

    simpo is this with s the averaged log π and γ as margin (Meng et al. 2024, eq. 6).
    """
    z_B, smoothing = _z(scores, strength), strength.label_smoothing
    return -(1 - smoothing) * logsigmoid(z_B) - smoothing * logsigmoid(-z_B)


def robust(scores: Scores, strength: Strength) -> Tensor:
    """(−(1−ε) log σ(z) + ε log σ(−z)) / (1 − 2ε), unbiased if ε of the labels are wrong (Chowdhury et al. 2024)."""
    z_B, smoothing = _z(scores, strength), strength.label_smoothing
    # 1 / (1 − 2ε) undoes what flipped labels take from the expected loss; needs ε < ½.
    return (-(1 - smoothing) * logsigmoid(z_B) + smoothing * logsigmoid(-z_B)) / (1 - 2 * smoothing)


def hinge(scores: Scores, strength: Strength) -> Tensor:
    """max(0, 1 − z). SLiC-HF (Zhao et al. 2023) on DPO's implicit rewards, as in RSO (Liu et al. 2023)."""
    return torch.relu(1 - _z(scores, strength))


def ipo(scores: Scores, strength: Strength) -> Tensor:
    """(s_chosen − s_rejected − 1/(2β))², averaged scores. IPO (Azar et al. 2023, eq. 17, where β is τ)."""
    # The target is finite: beyond 1/(2β) the loss grows again, so the two scores do not drift apart.
    return (scores.chosen_B - scores.rejected_B - 1 / (2 * strength.beta)).square()


def apo_zero(scores: Scores, strength: Strength) -> Tensor:
    """σ(−β s_chosen) + σ(β s_rejected): chosen up, rejected down. APO (D'Oosterlinck et al. 2024, eq. 7)."""
    return torch.sigmoid(-strength.beta * scores.chosen_B) + torch.sigmoid(strength.beta * scores.rejected_B)


def apo_down(scores: Scores, strength: Strength) -> Tensor:
    """σ(β s_chosen) + σ(−β (s_chosen − s_rejected)): both down, rejected more. APO (eq. 8)."""
    # z without its margin.
    apart_B = strength.beta * (scores.chosen_B - scores.rejected_B)
    return torch.sigmoid(strength.beta * scores.chosen_B) + torch.sigmoid(-apart_B)


def sppo_hard(scores: Scores, strength: Strength) -> Tensor:
    """(s_chosen − 1/(2β))² + (s_rejected + 1/(2β))². SPPO (Wu et al. 2024, eq. 4.7 with P ∈ {0, 1} and β = 1/η)."""
    target = 1 / (2 * strength.beta)
    return (scores.chosen_B - target).square() + (scores.rejected_B + target).square()


def nca_pair(scores: Scores, strength: Strength) -> Tensor:
    """−log σ(r_c) − ½ log σ(−r_c) − ½ log σ(−r_r), r = β s. NCA (Chen et al. 2024, its loss for K = 2)."""
    chosen_B, rejected_B = strength.beta * scores.chosen_B, strength.beta * scores.rejected_B
    return -logsigmoid(chosen_B) - 0.5 * logsigmoid(-chosen_B) - 0.5 * logsigmoid(-rejected_B)


def bco_pair(scores: Scores, strength: Strength) -> Tensor:
    """−log σ(r_c) − log σ(−r_r), r = β s. BCO (Jung et al. 2024) with a reward shift of 0, as TRL has it."""
    return -logsigmoid(strength.beta * scores.chosen_B) - logsigmoid(-strength.beta * scores.rejected_B)


def discopop(scores: Scores, strength: Strength) -> Tensor:
    """(1 − m) · −log σ(z) + m · e^−z with m = σ(z/τ). DiscoPOP's log-ratio modulated loss (Lu et al. 2024, eq. 5)."""
    z_B = _z(scores, strength)
    mix_B = torch.sigmoid(z_B / strength.discopop_tau)
    # e^−z is bounded where it does not count: m is 0 there to the last bit.
    return (1 - mix_B) * -logsigmoid(z_B) + mix_B * torch.exp(-z_B.clamp(min=-MAX_EXPONENT))


def aot(scores: Scores, strength: Strength) -> Tensor:
    """`sigmoid` with the sorted log-ratios of the policy against the sorted ones of the reference.

    AOT for pairs (Melnyk et al. 2024): distributions are compared, not pairs. The partner of a pair is the
    reference's gap of its rank, less its own.
    """
    z_B, smoothing = _z(scores, strength) - strength.beta * scores.partner_chosen_B, strength.label_smoothing
    return -(1 - smoothing) * logsigmoid(z_B) - smoothing * logsigmoid(-z_B)


def aot_unpaired(scores: Scores, strength: Strength) -> Tensor:
    """The same for the sorted scores of all chosen against those of all rejected sides (Melnyk et al. 2024).

    Each side stands against the value of its partner, as a constant. Both halves together have the gradient of the
    loss, and their mean its value.
    """
    z_2B = strength.beta * torch.stack(
        [scores.chosen_B - scores.partner_chosen_B, scores.partner_rejected_B - scores.rejected_B]
    )
    smoothing = strength.label_smoothing
    both_B = (-(1 - smoothing) * logsigmoid(z_2B) - smoothing * logsigmoid(-z_2B)).sum(0)
    return both_B - both_B.detach() / 2


def exo_pair(scores: Scores, strength: Strength) -> Tensor:
    """KL of (σ(z), σ(−z)) from (1−ε, ε). EXO (Ji et al. 2024, eq. 16)."""
    z_B, smoothing = _z(scores, strength), strength.label_smoothing
    # Both terms of the KL: the label as it is, and flipped.
    kept_B = torch.sigmoid(z_B) * (logsigmoid(z_B) - math.log1p(-smoothing))
    flipped_B = torch.sigmoid(-z_B) * (logsigmoid(-z_B) - math.log(smoothing))  # ε > 0: see check_preference
    return kept_B + flipped_B


def rpo(scores: Scores, strength: Strength) -> Tensor:
    """KL of (σ(g), σ(−g)) from (σ(z), σ(−z)), g the scaled reward gap: the margin learnt is the gap, not ∞.

    Reward-aware preference optimization with the backward KL (Adler et al. 2024, Nemotron-4 340B).
    """
    z_B, gap_B = _z(scores, strength), scores.gap_B
    # The two terms of the KL: chosen is better, and rejected is better.
    kept_B = torch.sigmoid(gap_B) * (logsigmoid(gap_B) - logsigmoid(z_B))
    return kept_B + torch.sigmoid(-gap_B) * (logsigmoid(-gap_B) - logsigmoid(-z_B))


def orpo(scores: Scores, strength: Strength) -> Tensor:
    """NLL(chosen) − β log σ(log-odds of chosen − log-odds of rejected). ORPO (Hong et al. 2024, eq. 6 and 7, β is λ).

    The odds of a side are p/(1−p) with p its averaged probability, p = exp(averaged log π) (eq. 4).
    """
    apart_B = _log_odds(scores.chosen_B) - _log_odds(scores.rejected_B)
    return scores.nll_B - strength.beta * logsigmoid(apart_B)


def kto(scores: Scores, strength: Strength) -> Tensor:
    """½ λ_D σ(β (z₀ − s_chosen)) + ½ λ_U σ(β (s_rejected − z₀)). KTO (Ethayarajh et al. 2024, section 4) on both sides.

    A pair counts as two examples, so the mean over pairs is the mean over examples.
    """
    # z₀ is a constant here: the policy's mean distance from the reference, estimated on mismatched examples.
    z0, beta = scores.reference_point, strength.beta
    chosen_B = strength.desirable_weight * torch.sigmoid(beta * (z0 - scores.chosen_B))
    rejected_B = strength.undesirable_weight * torch.sigmoid(beta * (scores.rejected_B - z0))
    return (chosen_B + rejected_B) / 2


def _z(scores: Scores, strength: Strength) -> Tensor:
    return strength.beta * (scores.chosen_B - scores.rejected_B) - scores.margin_B


def _log_odds(logp_B: Tensor) -> Tensor:
    """log(p / (1 − p)) = log p − log(1 − p). p of 1 to the last bit counts as the largest number below 1."""
    # expm1 keeps 1 − p exact where p is close to 1.
    logp_B = logp_B.clamp(max=-torch.finfo(logp_B.dtype).eps)
    return logp_B - torch.log(-torch.expm1(logp_B))


# Partners of the AOT losses, which compare sorted values of a whole update and not the two sides of each pair.
#
#     B  pairs of the update
#
# Sorting needs all pairs of an update at once, the gradient does not: a value's partner is a constant. So the loop
# finds the partners in a pass without gradients, and the loss is then added up in micro-batches like any other.
#
# Invariant: the partners do not depend on how the update is cut into micro-batches.


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
