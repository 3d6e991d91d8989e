"""The policy loss: tokens of scored runs in, a sum and its normaliser out.

    N  trained tokens, flat over the sequences        S  sequences

The loop adds up sums and normalisers over every micro-batch and rank of an update and divides one by the other: the
update does not depend on how sequences are distributed to micro-batches. A sequence is never split between two.

Invariant: padding has no effect. Without tokens, the sum, its gradient and the normaliser are 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairwright.config.problems import CheckedSection
from pairwright.config.train_config import PolicyTerms
from pairwright.errors import ConfigError
from pairwright.losses.logps import sum_by_sequence

# Bound of log-ratios before `exp`: without a bound, 0 · inf gives NaN in the backward pass.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PolicyTokens:
    logps_N: Tensor
    """log π of each trained token, with gradient."""
    advantages_N: Tensor
    """Advantage of each token: `advantages_S[sequence_N]`, or per token with token rewards."""
    sequence_N: Tensor
    """Which sequence each token belongs to, below `num_sequences`."""
    num_sequences: int
    old_logps_N: Tensor | None = None
    """Recorded log-probabilities: NaN for tokens without one, None if no token has one. Without one the ratio is 1."""
    ref_logps_N: Tensor | None = None
    """log ref of each token; needed if `kl_weight` is not 0."""
    weights_S: Tensor | None = None
    """Weight of each sequence, in the sum and in the normaliser; None: equal weights."""
    weights_N: Tensor | None = None
    """Weight of each token, in its sequence's sum and normaliser; None: equal weights."""


class PolicyOptions(CheckedSection, PolicyTerms):
    """Options of the policy loss; `PolicyTerms` has their defaults and bounds."""


@dataclass(frozen=True)
class PolicyLoss:
    total: Tensor
    """Sum, with gradient."""
    normaliser: Tensor
    """Divisor of the sum, after both are added up over the update."""
    num_tokens: int
    num_sequences: int
    """Sequences that have at least one token."""
    num_unrecorded: int
    """Tokens without a recorded log-probability, whose ratio was taken as 1."""
    num_clipped_low: int
    num_clipped_high: int
    ratio_sum: Tensor
    kl_sum: Tensor
    """Sum over tokens of the divergence estimate, without its weight; 0 without a reference."""


def clipped_loss(ratio_N: Tensor, advantages_N: Tensor, options: PolicyTerms) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε_l, 1+ε_h) A). PPO (Schulman et al. 2017, eq. 7), GRPO (Shao et al. 2024, eq. 3).

    ε_h ≠ ε_l is DAPO's clip-higher (Yu et al. 2025, eq. 8).

    >>> clipped_loss(torch.tensor([1.5, 0.5]), torch.tensor([1.0, 1.0]), PolicyOptions(clip_low=0.2, clip_high=0.2))
    tensor([-1.2000, -0.5000])
    """
    clipped_N = ratio_N.clamp(1 - options.clip_low, 1 + options.clip_high)
    # The minimum is pessimistic: clipping never increases an update.
    return -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)


def divergence(logps_N: Tensor, ref_logps_N: Tensor) -> Tensor:
    """Estimate of KL(π‖ref) from tokens of π: k3 = e^−d − 1 + d with d = log π − log ref (Schulman 2020; GRPO, eq. 4).

    Unbiased, and never below 0.
    """
    # Bounded only from below: e^−d overflows for very negative d.
    apart_N = (logps_N - ref_logps_N).clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-apart_N) + apart_N


def policy_loss(tokens: PolicyTokens, options: PolicyTerms) -> PolicyLoss:
    """Compute the loss of tokens, as a sum and its normaliser."""
    logps_N, advantages_N = tokens.logps_N, tokens.advantages_N
    log_ratio_N, num_unrecorded = _log_ratio(tokens)
    if options.loss == "gspo":
        # All tokens of a sequence share the geometric mean of their ratios. GSPO (Zheng et al. 2025, eq. 7).
        sums_S, counts_S = sum_by_sequence(log_ratio_N, tokens.sequence_N, tokens.num_sequences)
        log_ratio_N = (sums_S / counts_S.clamp(min=1))[tokens.sequence_N]
    ratio_N = log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss_N = clipped_loss(ratio_N, advantages_N, options)
    kl_sum = logps_N.new_zeros(())
    if tokens.ref_logps_N is not None:
        kl_N = divergence(logps_N, tokens.ref_logps_N)
        kl_sum = kl_N.detach().sum()
        loss_N = loss_N + options.kl_weight * kl_N
    elif options.kl_weight:
        raise ConfigError("kl_weight: it needs the reference's log-probabilities and the batch has none")
    total, normaliser, num_sequences = aggregate(loss_N, tokens, options)
    # Tokens whose ratio is clipped: too low with A < 0, too high with A > 0.
    too_low_N = (ratio_N < 1 - options.clip_low) & (advantages_N < 0)
    too_high_N = (ratio_N > 1 + options.clip_high) & (advantages_N > 0)
    return PolicyLoss(
        total=total,
        normaliser=normaliser,
        num_tokens=len(logps_N),
        num_sequences=num_sequences,
        num_unrecorded=num_unrecorded,
        num_clipped_low=int(too_low_N.sum()),
        num_clipped_high=int(too_high_N.sum()),
        ratio_sum=ratio_N.detach().sum(),
        kl_sum=kl_sum,
    )


def aggregate(loss_N: Tensor, tokens: PolicyTokens, options: PolicyTerms) -> tuple[Tensor, Tensor, int]:
    """Return the sum, the normaliser, and the number of sequences with tokens.

    token: tokens have equal weight (DAPO, BNPO). sequence: sequences have equal weight, shared by their tokens (GRPO).
    constant: as if every sequence had `constant_length` tokens (Dr. GRPO, Liu et al. 2025).
    """
    sums_S, counts_S = sum_by_sequence(loss_N, tokens.sequence_N, tokens.num_sequences, tokens.weights_N)
    weights_S = torch.ones_like(sums_S) if tokens.weights_S is None else tokens.weights_S
    num_sequences = (counts_S > 0).sum()
    weight_sum = (weights_S * (counts_S > 0)).sum().to(loss_N.dtype)
    if options.aggregation == "token":
        total, normaliser = (weights_S * sums_S).sum(), (weights_S * counts_S).sum()
    elif options.aggregation == "sequence":
        total, normaliser = (weights_S * sums_S / torch.where(counts_S > 0, counts_S, 1)).sum(), weight_sum
    else:
        # A token's weight does not depend on the length of its sequence.
        total, normaliser = (weights_S * sums_S).sum(), weight_sum * options.constant_length
    return total, normaliser, int(num_sequences)


def _log_ratio(tokens: PolicyTokens) -> tuple[Tensor, int]:
    """Return log π − log π_old; without a recorded value 0, with the gradient of log π."""
    current_N = tokens.logps_N.detach()
    if tokens.old_logps_N is None:
        return tokens.logps_N - current_N, len(current_N)
    # log π − sg[log π] is 0 in value and has the gradient of log π.
    missing_N = tokens.old_logps_N.isnan()
    return tokens.logps_N - torch.where(missing_N, current_N, tokens.old_logps_N), int(missing_N.sum())
