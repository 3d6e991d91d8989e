"""Log-probabilities of target tokens from hidden states, without holding all logits.

    N  wanted positions, flat over the sequences      H  hidden size
    C  positions of one chunk, C <= chunk_size        V  vocabulary
    S  sequences                                      T  temperature

The input has only the hidden states of wanted positions. Forward and backward process them in chunks, so at most two
(C, V) blocks exist at a time; the backward pass recomputes the logits. If the head is frozen (LoRA), the forward pass
computes the gradient with respect to the hidden states, and nothing is computed twice.

Invariant: values and gradients are those of `log_softmax(f(hidden @ weight.T + bias), -1)` gathered at the targets.
Softmax and sums over chunks are float32 or wider, for any dtype of the model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_SIZE = 512  # positions of a chunk; with a vocabulary of 128k, a float32 block (C, V) is 256 MiB


@dataclass(frozen=True)
class _Head:
    """Transformation of raw logits before the softmax: z ← scale·z, z ← softcap·tanh(z / softcap), z ← z / T."""

    scale: float
    softcap: float | None
    temperature: float
    chunk_size: int

    @property
    def is_plain(self) -> bool:
        return self.scale == 1.0 and self.softcap is None and self.temperature == 1.0


def masked_logps(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    chunk_size: int = CHUNK_SIZE,
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return log p(target) at each position, (N,) in float32 (float64 if the hidden states are).

    `scale` and `softcap` are the model's (Cohere's logit_scale, one over Granite's logits_scaling, Gemma 2's
    final_logit_softcapping); `temperature` is the temperature of sampling.
    """
    head = _Head(scale, softcap, temperature, chunk_size)
    # Under autocast the product runs in its dtype; inside, autocast is off, since the chunks choose their dtypes.
    device = hidden_NH.device.type
    if torch.is_autocast_enabled(device):
        weight_VH = weight_VH.to(torch.get_autocast_dtype(device))
    hidden_NH = hidden_NH.to(weight_VH.dtype)
    bias_V = None if bias_V is None else bias_V.to(weight_VH.dtype)
    with torch.autocast(device, enabled=False):
        return _MaskedLogps.apply(hidden_NH, weight_VH, bias_V, targets_N, head, torch.is_grad_enabled())


def sum_by_sequence(
    logps_N: Tensor, sequence_N: Tensor, num_sequences: int, weights_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return sums (S,) and counts (S,) of the values of each sequence; `sequence_N` is the sequence of each value.

    With weights, both are weighted.

    >>> sum_by_sequence(torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 0, 2]), 3)
    (tensor([-3.,  0., -4.]), tensor([2., 0., 1.]))
    >>> sum_by_sequence(torch.tensor([-1.0, -2.0]), torch.tensor([0, 0]), 1, torch.tensor([1.0, 0.5]))
    (tensor([-2.]), tensor([1.5000]))
    """
    # In the dtype of the values: float64 stays float64.
    weights_N = torch.ones_like(logps_N) if weights_N is None else weights_N.to(logps_N.dtype)
    sums_S = logps_N.new_zeros(num_sequences).index_add(0, sequence_N, weights_N * logps_N)
    counts_S = logps_N.new_zeros(num_sequences).index_add(0, sequence_N, weights_N)
    return sums_S, counts_S.detach()


def _wide(dtype: Any) -> Any:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _chunks(num: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, num)) for start in range(0, num, size)]


def _logits_chunk(
    hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, head: _Head
) -> tuple[Tensor, Tensor | None]:
    """Return logits of a chunk (C, V), and the slope of the softcap (C, V), if any."""
    raw_CV = torch.nn.functional.linear(hidden_CH, weight_VH, bias_V)
    if head.is_plain:
        return raw_CV, None
    logits_CV = raw_CV.to(_wide(raw_CV.dtype)).mul_(head.scale)
    if head.softcap is None:
        return logits_CV.div_(head.temperature), None
    tanh_CV = logits_CV.div_(head.softcap).tanh_()  # in place: the block of raw logits is reused
    slope_CV = 1 - tanh_CV.square()
    return tanh_CV.mul_(head.softcap / head.temperature), slope_CV


def _log_softmax(logits_CV: Tensor) -> Tensor:
    return torch.log_softmax(logits_CV, -1, dtype=_wide(logits_CV.dtype))


def _logit_grads(logps_CV: Tensor, slope_CV: Tensor | None, targets_C: Tensor, head: _Head) -> Tensor:
    """d log p(target) / d raw logits = (1[v = target] − p(v)) · slope · scale / T. Overwrites `logps_CV`."""
    # −p everywhere, then + 1 at the target of each row; in place, so that no more (C, V) blocks are held.
    grads_CV = logps_CV.exp_().neg_()
    rows_C = torch.arange(len(targets_C), device=targets_C.device)
    grads_CV[rows_C, targets_C] += 1
    if slope_CV is not None:
        grads_CV.mul_(slope_CV)
    factor = head.scale / head.temperature
    return grads_CV if factor == 1.0 else grads_CV.mul_(factor)


class _MaskedLogps(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, head: _Head, grad: bool
    ) -> Tensor:
        wide = _wide(weight_VH.dtype)
        logps_N = hidden_NH.new_empty(len(hidden_NH), dtype=wide)
        # Frozen head: only the hidden states need a gradient, which is computed here, so nothing is computed twice.
        hidden_only = grad and ctx.needs_input_grad[0] and not any(ctx.needs_input_grad[1:3])
        grads_NH = torch.empty_like(hidden_NH) if hidden_only else None
        for chunk in _chunks(len(hidden_NH), head.chunk_size):
            logits_CV, slope_CV = _logits_chunk(hidden_NH[chunk], weight_VH, bias_V, head)
            logps_CV = _log_softmax(logits_CV)
            logps_N[chunk] = logps_CV.gather(1, targets_N[chunk, None])[:, 0]
            del logits_CV
            if grads_NH is not None:
                grads_CV = _logit_grads(logps_CV, slope_CV, targets_N[chunk], head)
                grads_NH[chunk] = grads_CV.to(weight_VH.dtype) @ weight_VH
            del logps_CV, slope_CV  # (C, V) blocks must not live into the next chunk
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, grads_NH)
        ctx.head = head
        return logps_N

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_N: Tensor) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
        hidden_NH, weight_VH, bias_V, targets_N, grads_NH = ctx.saved_tensors
        if grads_NH is not None:
            return (grad_N[:, None] * grads_NH).to(hidden_NH.dtype), None, None, None, None, None
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = _wide(weight_VH.dtype)
        hidden_grad = torch.empty_like(hidden_NH) if needs_hidden else None
        # Sum over chunks in the wider dtype: bfloat16 sums would lose digits.
        weight_grad = torch.zeros_like(weight_VH, dtype=wide) if needs_weight else None
        bias_grad = torch.zeros_like(bias_V, dtype=wide) if needs_bias else None
        for chunk in reversed(_chunks(len(hidden_NH), ctx.head.chunk_size)):
            logits_CV, slope_CV = _logits_chunk(hidden_NH[chunk], weight_VH, bias_V, ctx.head)
            logps_CV = _log_softmax(logits_CV)
            del logits_CV
            grads_CV = _logit_grads(logps_CV, slope_CV, targets_N[chunk], ctx.head).mul_(grad_N[chunk, None])
            if bias_grad is not None:
                bias_grad += grads_CV.sum(0)
            narrow_CV = grads_CV.to(weight_VH.dtype)
            if hidden_grad is not None:
                hidden_grad[chunk] = narrow_CV @ weight_VH
            # In place if the dtypes agree; else add the product in the wider dtype.
            if weight_grad is not None and weight_grad.dtype == narrow_CV.dtype:
                weight_grad.addmm_(narrow_CV.T, hidden_NH[chunk])
            elif weight_grad is not None:
                weight_grad += narrow_CV.T @ hidden_NH[chunk]
            del logps_CV, slope_CV, grads_CV, narrow_CV
        return (
            hidden_grad,
            None if weight_grad is None else weight_grad.to(weight_VH.dtype),
            None if bias_grad is None else bias_grad.to(weight_VH.dtype),
            None,
            None,
            None,
        )
