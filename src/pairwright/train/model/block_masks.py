"""A row that is a tree of tokens, as a block mask of torch's flex attention: the way that a GPU takes.

A token `q` sees `k` where `k <= q < ends[k]`, and with a window where it is less than so many tokens deeper. Whether a
block of queries sees none, some or all of a block of keys follows from the least and the largest `ends` and depths of
the two; only those that see some are masked token by token.

    T  tokens of the row      B  blocks of BLOCK tokens, the last one not full
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.records.arrays import Array

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
    """(1, heads, T, D) queries, keys and values to (1, heads, T, D). Compiled, scores are never in memory."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    name = ("blocks", window)
    if name not in plan.cache:
        plan.cache[name] = make_block_mask(plan.positions, plan.ends, window, plan.device)
    attend = _compile() if is_compiled else flex_attention
    output, extra = attend(
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
        # A sink is one more score in the sum, with nothing to give: it takes its share of all.
        share = torch.sigmoid(extra.lse - sinks.float()[:, None])
        result = result * share[..., None].to(result.dtype)
    return result


def make_block_mask(positions: Array, ends: Array, window: int | None, device: Any) -> Any:
    """The block mask of a row: positions (T,), ends (T,)."""
    from torch.nn.attention.flex_attention import BlockMask

    some_BB, all_BB = compare_blocks(positions, ends, window)
    depth_T, end_T = torch.from_numpy(positions).to(device), torch.from_numpy(ends).to(device)

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mask = (key <= query) & (query < end_T[key])
        return mask if window is None else mask & (depth_T[query] - depth_T[key] < window)

    # For each block of queries: how many blocks of keys, and which ones, those first.
    tables = [torch.from_numpy(table).to(device) for blocks in (some_BB, all_BB) for table in _list_blocks(blocks)]
    length = len(positions)
    return BlockMask.from_kv_blocks(*tables, BLOCK_SIZE=BLOCK, mask_mod=is_seen, seq_lengths=(length, length))


def compare_blocks(positions: Array, ends: Array, window: int | None) -> tuple[Array, Array]:
    """(B, B) queries by keys: of which some tokens may see each other, and of which all do.

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
    """(1, 1, B) numbers of blocks and (1, 1, B, B) which ones, as flex attention wants them."""
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
