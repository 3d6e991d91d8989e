"""Optimizers by name, the norm of the gradient, and the learning rate as a pure function of the step."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from pairwright.config.train_config import LEARNING_RATE, TrainConfig
from pairwright.training.model.load_model import ModelError


def default_rate(num_parameters: int) -> float:
    """Return the default peak learning rate for a number of trained parameters.

    >>> [float(f"{default_rate(number):.2g}") for number in (7_000_000_000, 135_000_000, 100_000)]
    [5e-06, 3.6e-05, 0.001]
    """
    return min(1e-3, LEARNING_RATE * math.sqrt(7e9 / num_parameters))


def make_optimizer(parameters: dict[str, Any], settings: TrainConfig, rate: float) -> Any:
    """Create an optimizer; weight decay applies to matrices, not to vectors."""
    decayed = [tensor for tensor in parameters.values() if tensor.ndim >= 2]
    others = [tensor for tensor in parameters.values() if tensor.ndim < 2]
    groups = [
        {"params": tensors, "weight_decay": decay}
        for tensors, decay in ((decayed, settings.weight_decay), (others, 0.0))
        if tensors
    ]
    betas = (settings.adam_beta1, settings.adam_beta2)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=settings.adam_epsilon)
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError:
        raise ModelError("optimizer adamw_8bit needs bitsandbytes: pip install bitsandbytes") from None
    return AdamW8bit(groups, lr=rate, betas=betas, eps=settings.adam_epsilon)


def clip_gradients(parameters: Iterable[Any], max_norm: float) -> float:
    """Clip gradients to a norm (0: no clipping); return the norm before clipping."""
    tensors = list(parameters)
    norm = torch.nn.utils.get_total_norm([tensor.grad for tensor in tensors if tensor.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(tensors, max_norm or float("inf"), norm)
    return float(norm)


def learning_rate(step: int, num_steps: int, settings: TrainConfig, rate: float) -> float:
    """Return the rate of update `step` (0, 1, ...): up to `rate` during warm-up, then down to the minimum.

    >>> settings = TrainConfig(warmup_steps=2, schedule="linear")
    >>> [learning_rate(step, 6, settings, 1.0) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < settings.warmup_steps:
        return rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return rate
    # `done` is the fraction of steps after the warm-up; `share` falls from 1 to 0.
    done = (step - settings.warmup_steps) / max(1, num_steps - settings.warmup_steps)
    share = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.min_learning_rate + (rate - settings.min_learning_rate) * share
