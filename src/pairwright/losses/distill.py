"""Distillation: divergence of the student's next-token distribution from the teacher's, at each position.

    K  gathered positions        V  vocabulary        k  support: the k likeliest tokens and one bucket for the rest

Inputs are gathered rows (K, V), never (B, T, V). Rows are independent: if they do not fit into memory, call
`distill_loss` on chunks of rows.

Invariant: the teacher has no gradient, and rows of equal logits have a loss of 0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pairwright.config.problems import CheckedSection
from pairwright.config.train_config import DistillTerms
from pairwright.errors import ConfigError

# A token that both forbid has log-probability −inf, and −inf − (−inf) is NaN. So log-probabilities are clamped here,
# without gradient below; e^-10000 is 0 in every dtype, so it adds nothing to a sum over p.
MIN_LOGP = -1e4
MAX_LOG_RATIO = 20.0


class DistillOptions(CheckedSection, DistillTerms):
    """Options of the distillation loss; `DistillTerms` has their defaults and bounds."""


@dataclass(frozen=True)
class DistillLosses:
    loss_K: Tensor
    """Weighted loss of each position, with gradient. The loop divides their sum by their number."""
    divergence_K: Tensor
    """The divergence alone, without gradient."""


def generalised_jsd(student_Kk: Tensor, teacher_Kk: Tensor, beta: float) -> Tensor:
    """Compute the divergence (K,) of rows of finite log-probabilities of p_S and p_T.

    With M = (1−β) p_S + β p_T:  β KL(p_T‖M) + (1−β) KL(p_S‖M)  for 0 < β < 1,  KL(p_T‖p_S) for β = 0 and KL(p_S‖p_T)
    for β = 1 (Agarwal et al. 2023, eq. 1; GKD).
    """
    if beta == 0:
        return _kl(teacher_Kk, student_Kk)
    if beta == 1:
        return _kl(student_Kk, teacher_Kk)
    # log M from logarithms: M itself would round to 0 if both are unlikely.
    middle_Kk = torch.logaddexp(student_Kk + math.log1p(-beta), teacher_Kk + math.log(beta))
    return beta * _kl(teacher_Kk, middle_Kk) + (1 - beta) * _kl(student_Kk, middle_Kk)


def distill_loss(
    student_KV: Tensor,
    teacher_KV: Tensor,
    options: DistillTerms,
    *,
    targets_K: Tensor | None = None,
    old_logps_K: Tensor | None = None,
    weights_K: Tensor | None = None,
) -> DistillLosses:
    """Compute the loss of each position from the logits of student and teacher.

    `targets_K` are the actual tokens, needed for the importance ratio; `old_logps_K` their recorded log-probabilities
    (NaN: unknown, ratio 1). `weights_K` are weights of positions: divide by their sum, not by their number.
    """
    # At least float32; the teacher is a constant.
    wide = torch.promote_types(student_KV.dtype, torch.float32)
    student_KV, teacher_KV = student_KV.to(wide), teacher_KV.detach().to(wide)
    student_logps_KV = torch.log_softmax(student_KV / options.temperature, -1).clamp(min=MIN_LOGP)
    teacher_logps_KV = torch.log_softmax(teacher_KV / options.temperature, -1).clamp(min=MIN_LOGP)
    if options.top_k is not None and options.top_k < student_KV.shape[-1]:
        index_Kk = student_logps_KV.detach().topk(options.top_k, -1).indices
        student_logps_KV, teacher_logps_KV = (_with_tail(one, index_Kk) for one in (student_logps_KV, teacher_logps_KV))
    divergence_K = generalised_jsd(student_logps_KV, teacher_logps_KV, options.beta)
    weight_K = _weight(student_KV, targets_K, old_logps_K, options)
    loss_K = divergence_K if weight_K is None else weight_K * divergence_K
    loss_K = loss_K if weights_K is None else weights_K.to(loss_K.dtype) * loss_K
    return DistillLosses(loss_K=loss_K, divergence_K=divergence_K.detach())


def _kl(first_Kk: Tensor, second_Kk: Tensor) -> Tensor:
    """KL(first‖second) = Σ p (log p − log q) of rows of log-probabilities."""
    return (first_Kk.exp() * (first_Kk - second_Kk)).sum(-1)


def _with_tail(logps_KV: Tensor, index_Kk: Tensor) -> Tensor:
    """Return log-probabilities of the k tokens, and log(1 − Σp) of the rest as last column.

    The rest is summed directly, in logarithms: 1 − Σp would be mostly rounding error if the k tokens cover almost all.
    """
    # Set the k tokens to −∞: the logsumexp is over all others.
    rest_KV = logps_KV.scatter(-1, index_Kk, -torch.inf)
    return torch.cat([logps_KV.gather(-1, index_Kk), rest_KV.logsumexp(-1, keepdim=True)], -1)


def _weight(
    student_KV: Tensor, targets_K: Tensor | None, old_logps_K: Tensor | None, options: DistillTerms
) -> Tensor | None:
    """Return min(π/π_old, ratio_clip) of the actual tokens at temperature 1, without gradient; None without π_old."""
    if options.ratio_clip is None or old_logps_K is None:
        return None
    if targets_K is None:
        raise ConfigError("targets_K: the importance ratio needs the tokens and the batch has none")
    logps_K = torch.log_softmax(student_KV.detach(), -1).gather(-1, targets_K[:, None])[:, 0]
    log_ratio_K = torch.where(old_logps_K.isnan(), 0.0, logps_K - old_logps_K)
    return log_ratio_K.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=options.ratio_clip)
