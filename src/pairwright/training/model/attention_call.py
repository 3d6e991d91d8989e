"""A call: attention of some queries to some keys, with the log-sum of the scores; and its gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Call(NamedTuple):
    """Attention of `rows` to `keys`. `mask` (R, N) is added to the scores; None if unmasked or causal."""

    rows: Any  # a slice, or positions (R,)
    keys: slice
    mask: Tensor | None = None
    is_causal: bool = False


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    query: Tensor, key: Tensor, value: Tensor, call: Call, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Return outputs (G, K, R, D) and log-sums (G, K, R) of queries (G, K, R, D), keys and values (G, K, N, D).

    >>> query, key, value = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0, 0.0], [3.0, 2.0]]]])
    >>> output, log_sum = attend(query, key, value, Call(rows=slice(0, 1), keys=slice(0, 2)), 1.0, None)
    >>> output, log_sum.exp()  # equal scores: the mean of the values, and a sum of two exponentials of 0
    (tensor([[[[2., 1.]]]]), tensor([[[2.]]]))
    """
    if softcap is None and query.device.type == "cpu":
        mask = None if call.mask is None else call.mask.to(query.dtype)
        return _flash(query, key, value, 0.0, call.is_causal, attn_mask=mask, scale=scale)  # type: ignore[no-any-return]
    scores, _ = _score(query, key, call, scale, softcap)
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum[..., None]).exp_() @ value.float(), log_sum


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    call: Call,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of queries (G, K, R, D), keys and values (G, K, N, D); `grad` is that of the outputs."""
    if softcap is None and query.device.type == "cpu":
        mask = None if call.mask is None else call.mask.to(query.dtype)
        return _flash_backward(  # type: ignore[no-any-return]
            grad, query, key, value, output, log_sum, 0.0, call.is_causal, attn_mask=mask, scale=scale
        )
    scores, slope = _score(query, key, call, scale, softcap)
    grad, shares = grad.float(), (scores - log_sum[..., None]).exp_()
    grad_value = shares.transpose(-1, -2) @ grad
    grad_scores = grad @ value.float().transpose(-1, -2) - (grad * output.float()).sum(-1, keepdim=True)
    grad_scores = grad_scores.mul_(shares).mul_(scale if slope is None else slope * scale)
    return grad_scores @ key.float(), grad_scores.transpose(-1, -2) @ query.float(), grad_value


def _score(query: Tensor, key: Tensor, call: Call, scale: float, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return scores (G, K, R, N) in float32, and the slope of the softcap, if any."""
    scores = (query.float() @ key.float().transpose(-1, -2)).mul_(scale)
    slope = None
    if softcap is not None:
        scores = scores.div_(softcap).tanh_()
        slope = 1 - scores.square()
        scores = scores.mul_(softcap)
    return scores if call.mask is None else scores.add_(call.mask), slope
