"""The preference losses, one function each: scores of a pair's two sides in, loss of the pair out.

    B  pairs        ε  label smoothing        σ  logistic function

A score s is log π − log ref of a side, summed over its tokens, or averaged if the loss or the options demand it; for
losses without a reference, it is the averaged log π. z = β (s_chosen − s_rejected) − margin.

Invariant: finite scores give finite losses and gradients, however large the scores are: logistic terms use `logsigmoid`
and `sigmoid`, never the logarithm of a rounded probability.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class Scores:
    chosen_B: Tensor
    rejected_B: Tensor
    margin_B: Tensor
    """Subtracted from z: γ for simpo, the scaled reward gap with margins, else 0."""
    nll_B: Tensor
    """Negative log-likelihood of the chosen side per token, for orpo."""
    reference_point: Tensor
    """z₀, for kto."""


@dataclass(frozen=True)
class Strength:
    beta: float
    label_smoothing: float | Tensor = 0.0
    """ε, one for all pairs or (B,) one for each."""
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0


def sigmoid(scores: Scores, strength: Strength) -> Tensor:
    """−(1−ε) log σ(z) − ε log σ(−z). DPO (Rafailov et al. 2023, eq. 7); with ε cDPO (Mitchell 2023, eq. 3).

    simpo is this with s the averaged log π and γ as margin (Meng et al. 2024, eq. 6).
    """
    z_B, smoothing = _z(scores, strength), strength.label_smoothing
    return -(1 - smoothing) * logsigmoid(z_B) - smoothing * logsigmoid(-z_B)


def robust(scores: Scores, strength: Strength) -> Tensor:
    """(−(1−ε) log σ(z) + ε log σ(−z)) / (1 − 2ε), unbiased if ε of the labels are wrong (Chowdhury et al. 2024)."""
    z_B, smoothing = _z(scores, strength), strength.label_smoothing
    # 1 / (1 − 2ε) corrects the expected loss for flipped labels; needs ε < ½.
    return (-(1 - smoothing) * logsigmoid(z_B) + smoothing * logsigmoid(-z_B)) / (1 - 2 * smoothing)


def hinge(scores: Scores, strength: Strength) -> Tensor:
    """max(0, 1 − z). SLiC-HF (Zhao et al. 2023) on DPO's implicit rewards, as in RSO (Liu et al. 2023)."""
    return torch.relu(1 - _z(scores, strength))


def ipo(scores: Scores, strength: Strength) -> Tensor:
    """(s_chosen − s_rejected − 1/(2β))², averaged scores. IPO (Azar et al. 2023, eq. 17, where β is τ)."""
    # The target is finite: beyond 1/(2β) the loss grows again, which limits the gap of the scores.
    return (scores.chosen_B - scores.rejected_B - 1 / (2 * strength.beta)).square()


def apo_zero(scores: Scores, strength: Strength) -> Tensor:
    """σ(−β s_chosen) + σ(β s_rejected): chosen up, rejected down. APO (D'Oosterlinck et al. 2024, eq. 7)."""
    return torch.sigmoid(-strength.beta * scores.chosen_B) + torch.sigmoid(strength.beta * scores.rejected_B)


def apo_down(scores: Scores, strength: Strength) -> Tensor:
    """σ(β s_chosen) + σ(−β (s_chosen − s_rejected)): both down, rejected more. APO (eq. 8)."""
    apart_B = strength.beta * (scores.chosen_B - scores.rejected_B)
    return torch.sigmoid(strength.beta * scores.chosen_B) + torch.sigmoid(-apart_B)


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
    """Return log(p / (1 − p)) = log p − log(1 − p). p = 1 is treated as the largest number below 1."""
    # expm1 keeps 1 − p exact for p close to 1.
    logp_B = logp_B.clamp(max=-torch.finfo(logp_B.dtype).eps)
    return logp_B - torch.log(-torch.expm1(logp_B))
