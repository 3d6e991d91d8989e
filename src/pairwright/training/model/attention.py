"""Attention over a row that is a tree of tokens: each token attends to the tokens before it in its sequences.

Registered with transformers under `NAME`; the plan of the row is passed as the keyword argument `plan` of the model's
forward. The row is in depth-first order (tokens/batch/token_tree.py), so an unbranched run of tokens is directly
followed by its continuations. Each run needs two calls, both on slices without wasted work: the run attends to itself
(causal), and all its continuations attend to the whole run. Results of several calls are combined by their log-sums,
like blocks in flash attention. Small subtrees are grouped, a few hundred tokens under one mask, since separate calls
would cost more than the computation.

    G  query heads of a key head      K  key heads      T  tokens of the row      D  size of a head
    R  rows of queries of a call      N  keys of a call

On a GPU the same tree is a block mask of flex attention (`make_block_mask`). `tree_attention` raises CannotShare
without a plan.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pairwright.errors import PairwrightError
from pairwright.records.arrays import Array
from pairwright.tokens.batch.token_tree import Segment

# On a GPU: the tree of tokens as a block mask of torch's flex attention.
#
# Token `q` attends to `k` if `k <= q < ends[k]` and, with a window, if it is less than `window` tokens deeper. Whether
# a block of queries attends to none, some or all of a block of keys follows from the minimum and maximum `ends` and
# depths of the two; only blocks with "some" are masked token by token.
#
#     T  tokens of the row      B  blocks of BLOCK tokens, the last one not full


BLOCK = 128


def attend_by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: Any,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    is_compiled: bool = True,
) -> Tensor:
    """Attend from queries to keys and values, all (1, heads, T, D). If compiled, scores are never materialized."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    name = ("blocks", window)
    if name not in plan.cache:
        plan.cache[name] = make_block_mask(plan.positions, plan.ends, window, plan.device)
    flex = _compile() if is_compiled else flex_attention
    output, extra = flex(
        query,
        key,
        value,
        score_mod=None if softcap is None else _cap_scores(softcap),
        block_mask=plan.cache[name],
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    result: Tensor = output
    if sinks is not None:
        # A sink is one more score in the softmax without a value: it reduces all other shares.
        share = torch.sigmoid(extra.lse - sinks.float()[:, None])
        result = result * share[..., None].to(result.dtype)
    return result


def make_block_mask(positions: Array, ends: Array, window: int | None, device: Any) -> Any:
    """Return the block mask of a row: positions (T,), ends (T,)."""
    from torch.nn.attention.flex_attention import BlockMask

    some_BB, all_BB = compare_blocks(positions, ends, window)
    depth_T, end_T = torch.from_numpy(positions).to(device), torch.from_numpy(ends).to(device)

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mask = (key <= query) & (query < end_T[key])
        return mask if window is None else mask & (depth_T[query] - depth_T[key] < window)

    # For each block of queries: the number of key blocks, and their indices, attended ones first.
    tables = [torch.from_numpy(table).to(device) for blocks in (some_BB, all_BB) for table in _list_blocks(blocks)]
    length = len(positions)
    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=is_seen, seq_lengths=(length, length))


def compare_blocks(positions: Array, ends: Array, window: int | None) -> tuple[Array, Array]:
    """Return (B, B) queries by keys: blocks in which some tokens may attend, and blocks in which all do.

    >>> some, all_ = compare_blocks(np.arange(384), np.array([384] * 128 + [256] * 128 + [384] * 128), None)
    >>> some.astype(int).tolist(), all_.astype(int).tolist()  # the third block does not see the second
    ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 0], [1, 0, 0], [1, 0, 0]])
    """
    starts = np.arange(0, len(ends), BLOCK)
    stops = np.minimum(starts + BLOCK, len(ends))
    last_end, first_end = np.maximum.reduceat(ends, starts), np.minimum.reduceat(ends, starts)
    deepest, highest = np.maximum.reduceat(positions, starts), np.minimum.reduceat(positions, starts)
    is_earlier = starts < starts[:, None]
    is_any = (is_earlier & (last_end > starts[:, None])) | np.eye(len(starts), dtype=bool)
    is_all = is_earlier & (first_end >= stops[:, None])
    if window is not None:
        is_any &= highest[:, None] - deepest < window
        is_all &= deepest[:, None] - highest < window
    return is_any & ~is_all, is_all


def _list_blocks(is_seen_BB: Array) -> tuple[Array, Array]:
    """Return block counts (1, 1, B) and block indices (1, 1, B, B) for flex attention."""
    order = np.argsort(~is_seen_BB, axis=1, kind="stable").astype(np.int32)
    return is_seen_BB.sum(1, dtype=np.int32)[None, None], order[None, None]


def _cap_scores(softcap: float) -> Any:
    def cap(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return cap


@cache
def _compile() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


NAME = "pairwright_trees"
SMALL_TREE = 160  # subtrees of at most this many tokens are grouped
GROUP_TOKENS = 256  # maximum tokens of a group
DENSE_KEYS, DENSE_ROWS = 512, 1024  # limits of a call that holds all scores in memory: with a window, or capped


class CannotShare(PairwrightError):
    """This model's attention has a feature that rows of trees do not support."""


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


class Plan:
    """The attention calls of a row (see `TokenTree`); calls and masks are built once for all layers."""

    def __init__(self, segments: Sequence[Segment], positions: Array, ends: Array, device: Any) -> None:
        self.segments, self.positions, self.ends, self.device = segments, positions, ends, device
        self.cache: dict[Any, Any] = {}  # calls and block masks by window

    def calls(self, window: int | None, *, is_dense: bool) -> tuple[list[Call], list[Call]]:
        """Return (calls within runs or groups, one for each token; calls to earlier tokens).

        A window limits how many tokens a token attends to, itself included. `is_dense` bounds the memory of a call.
        """
        if window is not None and self.positions.max(initial=0) < window:
            window = None  # no sequence is longer
        is_dense = is_dense or window is not None
        if (window, is_dense) not in self.cache:
            own: list[Call] = []
            earlier: list[Call] = []
            for first, last, end in self._parts(is_dense):
                own.append(self._own_call(first, last, window, is_dense=is_dense))
                if end > last:
                    earlier += self._calls_below(slice(first, last), end, window, is_dense=is_dense)
            self.cache[window, is_dense] = own, earlier
        calls: tuple[list[Call], list[Call]] = self.cache[window, is_dense]
        return calls

    def _parts(self, is_dense: bool) -> Iterator[Segment]:
        """Yield large runs, and groups of whole small subtrees; nothing continues a group."""
        start = stop = 0  # of the current group
        for segment in self.segments:
            if segment.start < stop:
                continue  # below a run that is in the group
            if segment.end - segment.start <= SMALL_TREE:
                if segment.end - start > GROUP_TOKENS and stop > start:
                    yield Segment(start, stop, stop)
                    start = segment.start
                stop = segment.end
                continue
            if stop > start:
                yield Segment(start, stop, stop)
            # A split run becomes a chain of runs.
            size = DENSE_KEYS if is_dense else segment.stop - segment.start
            for first in range(segment.start, segment.stop, size):
                yield Segment(first, min(first + size, segment.stop), segment.end)
            start = stop = segment.stop
        if stop > start:
            yield Segment(start, stop, stop)

    def _own_call(self, first: int, last: int, window: int | None, *, is_dense: bool) -> Call:
        """Return the call of a run or group to itself."""
        rows = slice(first, last)
        if not is_dense and self.ends[first] >= last and (np.diff(self.ends[rows]) == 0).all():
            return Call(rows, rows, is_causal=True)
        places, depths = np.arange(first, last), self.positions[rows]
        is_seen_RN = (places <= places[:, None]) & (places[:, None] < self.ends[rows])
        if window is not None:
            is_seen_RN &= depths[:, None] - depths < window
        return Call(rows, rows, self._mask(is_seen_RN))

    def _calls_below(self, keys: slice, end: int, window: int | None, *, is_dense: bool) -> list[Call]:
        """Return the calls from all continuations of a run to the run; dense calls are limited in rows."""
        if not is_dense:
            return [Call(slice(keys.stop, end), keys)]
        places = np.arange(keys.stop, end)
        if window is not None:  # only tokens whose window reaches the run's last token
            places = places[self.positions[places] - self.positions[keys.stop - 1] < window]
        calls = []
        for start in range(0, len(places), DENSE_ROWS):
            rows = places[start : start + DENSE_ROWS]
            depth_RN = self.positions[rows][:, None] - self.positions[keys]
            mask = None if window is None or depth_RN.max() < window else self._mask(depth_RN < window)
            is_slice = len(rows) == rows[-1] - rows[0] + 1
            index = slice(rows[0], rows[-1] + 1) if is_slice else torch.from_numpy(rows).to(self.device)
            calls.append(Call(index, keys, mask))
        return calls

    def _mask(self, is_seen_RN: Array) -> Tensor:
        return torch.from_numpy(np.where(is_seen_RN, np.float32(0), np.float32(-np.inf))).to(self.device)


def register() -> None:
    """Register the attention with transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    plan: Plan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend in one layer: queries, keys and values (1, heads, T, D) to (1, T, heads, D). Called by transformers.

    `softcap` bounds scores (Gemma 2); `s_aux` has the score of an attention sink for each head (gpt-oss).
    """
    if dropout:
        raise CannotShare("attention with dropout: switch it off, or make the policy with prefix_sharing=False")
    if others.get("position_bias") is not None:
        raise CannotShare("attention with position_bias")
    if plan is None or attention_mask is not None or query.shape[0] != 1:
        raise CannotShare("attention with a mask of its own")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    device = query.device.type
    if torch.is_autocast_enabled(device):  # like scaled_dot_product_attention
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if device == "cuda":
        output = attend_by_blocks(
            query, key, value, plan, scale=scale, window=sliding_window, softcap=softcap, sinks=s_aux
        )
        return output.transpose(1, 2).contiguous(), None
    with torch.autocast(device, enabled=False):
        return _TreeAttention.apply(query, key, value, s_aux, plan, (scale, sliding_window, softcap)), None


class _TreeAttention(torch.autograd.Function):  # type: ignore[misc]
    """All calls of a layer as one function: autograd would allocate a whole row for every slice."""

    @staticmethod
    def forward(ctx, query, key, value, sinks, plan: Plan, options: Any) -> Tensor:  # type: ignore[no-untyped-def]
        scale, window, softcap = options
        is_dense = softcap is not None or query.device.type != "cpu"
        query_GKTD, key_GKTD, value_GKTD = _by_key_head(query, key, value)
        num_groups, num_heads, num_tokens, _ = query_GKTD.shape
        # (T, K, G, D) in memory, as transformers expects; viewed as (G, K, T, D).
        output = torch.empty(num_tokens, num_heads, num_groups, value.shape[-1], device=query.device)
        output_GKTD = output.permute(2, 1, 0, 3)
        log_sum_GKT = torch.empty(num_groups, num_heads, num_tokens, device=query.device)
        own, earlier = plan.calls(window, is_dense=is_dense)
        for call in own:
            inputs = query_GKTD[:, :, call.rows], key_GKTD[:, :, call.keys], value_GKTD[:, :, call.keys]
            output_GKTD[:, :, call.rows], log_sum_GKT[:, :, call.rows] = attend(*inputs, call, scale, softcap)
        for call in earlier:
            inputs = query_GKTD[:, :, call.rows], key_GKTD[:, :, call.keys], value_GKTD[:, :, call.keys]
            more_GKRD, more_GKR = attend(*inputs, call, scale, softcap)
            before_GKR = log_sum_GKT[:, :, call.rows]
            total_GKR = torch.logaddexp(before_GKR, more_GKR)
            # Weigh each part by its share of the sum of exponentials.
            share_GKR1, more_share_GKR1 = ((part - total_GKR).exp_()[..., None] for part in (before_GKR, more_GKR))
            before_GKRD = output_GKTD[:, :, call.rows] * share_GKR1
            output_GKTD[:, :, call.rows] = before_GKRD.addcmul_(more_GKRD.float(), more_share_GKR1)
            log_sum_GKT[:, :, call.rows] = total_GKR
        if sinks is not None:
            sink_GK1 = sinks.float().unflatten(0, (num_heads, num_groups)).T[..., None]
            total_GKT = torch.logaddexp(log_sum_GKT, sink_GK1)
            output_GKTD *= (log_sum_GKT - total_GKT).exp_()[..., None]
            log_sum_GKT = total_GKT
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks, output, log_sum_GKT)
        ctx.calls, ctx.scale, ctx.softcap = [*own, *earlier], scale, softcap
        return output.flatten(1, 2)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
        query, key, value, sinks, output, log_sum_GKT = ctx.saved_tensors
        query_GKTD, key_GKTD, value_GKTD = _by_key_head(query, key, value)
        output_GKTD = output.permute(2, 1, 0, 3)
        grad_GKTD = grad[0].view(output.shape).permute(2, 1, 0, 3)
        grad_query = torch.zeros(query_GKTD.shape, device=query.device)
        grad_key, grad_value = (torch.zeros(tensor.shape, device=query.device) for tensor in (key, value))
        for call in ctx.calls:
            rows, keys = call.rows, call.keys
            # Given the output and log-sum over all calls, each call yields the gradient of its part of the softmax.
            parts = attend_backward(
                grad_GKTD[:, :, rows],
                query_GKTD[:, :, rows],
                key_GKTD[:, :, keys],
                value_GKTD[:, :, keys],
                output_GKTD[:, :, rows],
                log_sum_GKT[:, :, rows],
                call,
                ctx.scale,
                ctx.softcap,
            )
            grad_query[:, :, rows] += parts[0]
            grad_key[0, :, keys] += parts[1].sum(0) if len(parts[1]) > 1 else parts[1][0]
            grad_value[0, :, keys] += parts[2].sum(0) if len(parts[2]) > 1 else parts[2][0]
        grad_sinks = None
        if sinks is not None and ctx.needs_input_grad[3]:
            num_groups, num_heads = query_GKTD.shape[:2]
            sink_GK1 = sinks.float().unflatten(0, (num_heads, num_groups)).T[..., None]
            delta_GKT = (grad_GKTD.float() * output_GKTD.float()).sum(-1)
            grad_sinks = -((sink_GK1 - log_sum_GKT).exp_() * delta_GKT).sum(-1).T.flatten().to(sinks.dtype)
        grad_query = grad_query.transpose(0, 1).flatten(0, 1)[None]
        return *(g.to(query.dtype) for g in (grad_query, grad_key, grad_value)), grad_sinks, None, None


def _by_key_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """View (1, heads, T, D) as (G, K, T, D), grouping query heads by key head; keys and values are not copied."""
    num_heads = key.shape[1]
    num_groups = query.shape[1] // num_heads
    query_GKTD = query[0].unflatten(0, (num_heads, num_groups)).transpose(0, 1)
    return query_GKTD, key.expand(num_groups, -1, -1, -1), value.expand(num_groups, -1, -1, -1)
