"""Advantages from the rewards of a group of runs.

    S  sequences (runs)        G  groups (the runs of one task)

Invariant: a group with equal rewards teaches nothing. Its advantages are exactly 0, without rounding errors of
r − mean, and it is counted. Unscored runs are also counted, and do not affect their group's mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairwright.errors import ConfigError


@dataclass(frozen=True)
class Advantages:
    values_S: Tensor
    is_active_S: Tensor
    """True for a scored run of a group with different rewards; the others have advantage 0 and can be skipped."""
    num_groups: int
    num_flat_groups: int
    """Groups without different rewards: at most one scored run, or all rewards equal."""
    num_unscored: int
    """Runs whose reward is NaN or infinite."""


def group_advantages(
    rewards_S: Tensor, group_S: Tensor, *, kind: str = "grpo", num_groups: int | None = None, epsilon: float = 1e-4
) -> Advantages:
    """Compute advantages of a kind; `group_S` is the group number of each run, from 0.

    grpo     (r − mean) / (std + ε), std with n − 1 (Shao et al. 2024)
    dr_grpo  r − mean (Liu et al. 2025)

    >>> group_advantages(torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1]), kind="dr_grpo").values_S
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    num = num_groups if num_groups is not None else int(group_S.max()) + 1 if len(group_S) else 0
    scored_S = rewards_S.isfinite()
    zeros_S = torch.zeros_like(rewards_S)
    rewards_S = torch.where(scored_S, rewards_S, zeros_S)
    # Sums by group: index_add puts each run's value into its group (G,); unscored runs add 0.
    counts_G = rewards_S.new_zeros(num).index_add(0, group_S, scored_S.to(rewards_S.dtype))
    means_G = rewards_S.new_zeros(num).index_add(0, group_S, rewards_S) / counts_G.clamp(min=1)
    infinity = rewards_S.new_full((num,), torch.inf)
    high_S, low_S = (torch.where(scored_S, rewards_S, sign * infinity.new_tensor(torch.inf)) for sign in (-1, 1))
    # Unscored runs are −∞ for the maximum and ∞ for the minimum, so they affect neither.
    highest_G = (-infinity).scatter_reduce(0, group_S, high_S, "amax")
    spread_G = highest_G > infinity.scatter_reduce(0, group_S, low_S, "amin")
    apart_S = rewards_S - means_G[group_S]  # each run against the mean of its own group
    if kind == "grpo":
        squares_S = torch.where(scored_S, apart_S.square(), zeros_S)
        variance_G = rewards_S.new_zeros(num).index_add(0, group_S, squares_S) / (counts_G - 1).clamp(min=1)
        values_S = apart_S / (variance_G.sqrt() + epsilon)[group_S]
    elif kind == "dr_grpo":
        values_S = apart_S
    else:
        raise ConfigError(f"advantage: got {kind!r}, expected grpo or dr_grpo")
    is_active_S = scored_S & spread_G[group_S]
    return Advantages(
        values_S=torch.where(is_active_S, values_S, zeros_S),
        is_active_S=is_active_S,
        num_groups=num,
        num_flat_groups=int((~spread_G).sum()),
        num_unscored=int((~scored_S).sum()),
    )


def token_advantages(rewards: Sequence[Tensor], group_S: Tensor, *, kind: str = "grpo") -> list[Tensor]:
    """Compute token advantages of runs with rewards of steps or tokens; a reward of 0 means no reward.

    Each reward becomes an advantage among all rewards of its group (`kind` as above). A token's advantage is the sum of
    those at and after it in its run (process supervision: Shao et al. 2024, section 4.1.3). Runs of a group with equal
    rewards get 0.

    >>> one, other = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 2.0])
    >>> token_advantages([one, other], torch.tensor([0, 0]), kind="dr_grpo")
    [tensor([0., 0., 1.]), tensor([0., 0.])]
    """
    # All tokens of all runs, concatenated (N,); the K tokens with a reward are treated like runs of their group.
    rewards_N = torch.cat([*rewards])
    group_N = group_S.repeat_interleave(torch.tensor([len(run) for run in rewards]))
    rewarded_K = rewards_N.nonzero().flatten()
    advantages = group_advantages(rewards_N[rewarded_K], group_N[rewarded_K], kind=kind)
    values_N = torch.zeros_like(rewards_N).index_put((rewarded_K,), advantages.values_S)
    return [run.flip(0).cumsum(0).flip(0) for run in values_N.split([len(run) for run in rewards])]
