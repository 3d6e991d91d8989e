"""Attention over packed tokens: no padding, no repeated heads, shared prefixes read once.

A step's tokens are concatenated into a single sequence of N tokens; `Plan` locates their keys and values. A token
attends to three kinds of parts, whose results are merged by their log-sum-exp:

- the nodes of its prompt that other rows share: one product for all tokens below a node,
- its row's own slot: one product for all rows of a size class (with one query token, the heads of a group are queries),
- for tokens of a prompt, the earlier tokens of the same prompt.

Shapes: N tokens, K key-value heads, G query heads of each, D head size, T keys.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairwright.generate.kv_slots import Block, Node, SlotClass

NAME = "pairwright_packed"  # in transformers' table of attention functions
_state = threading.local()


class Unsupported(Exception):
    """An attention layer has a feature that packed attention does not support; the message names it."""


class SlotPart(NamedTuple):
    """Rows start:stop of the packed tokens, in the order of their slots."""

    slots: SlotClass
    start: int
    stop: int
    length: NDArray[np.int64]  # with the new token


class SlotWrite(NamedTuple):
    """Write keys and values of these tokens to these places of a size class."""

    slots: SlotClass
    tokens: Any  # a slice, or a tensor of indices
    slot: Any  # a slice, or a tensor of indices
    place: Any  # one for all, or a tensor of indices


@dataclass(frozen=True)
class ShortPrompts:
    """`count` prompts of `size` tokens each, from token `start` on, that attend to themselves."""

    start: int
    count: int
    size: int


class BlockPart(NamedTuple):
    """Tokens start:stop continue a block that has `done` tokens."""

    block: Block
    start: int
    stop: int
    done: int


@dataclass
class NodeLevel:
    """Nodes at one depth of the chains: disjoint sets of tokens, each with its node."""

    nodes: list[Node] = field(default_factory=list)
    tokens: list[NDArray[np.int64]] = field(default_factory=list)


class Plan:
    """Where the tokens of one step read and write keys and values."""

    def __init__(self, positions: NDArray[np.int64]) -> None:
        self.positions = positions
        self.max_position = int(positions.max())
        self.rows: list[SlotPart] = []
        self.writes: list[SlotWrite] = []
        self.short: list[ShortPrompts] = []
        self.blocks: list[BlockPart] = []
        self.levels: list[NodeLevel] = []
        self._masks: dict[Any, Any] = {}

    def mask(self, name: Hashable, tokens: NDArray[np.int64], keys: range, window: int | None, dtype: Any) -> Any:
        """Return a mask (tokens, keys) with -inf for keys after a token or before its window; None if it has none.

        `tokens` and `keys` are positions. All layers use the mask of a `name`.
        """
        if (name, window) not in self._masks:
            import torch

            token, place = torch.from_numpy(tokens)[:, None], torch.arange(keys.start, keys.stop)[None, :]
            bad = place > token
            if window is not None:
                bad |= place <= token - window
            mask = torch.zeros(bad.shape, dtype=dtype).masked_fill_(bad, -torch.inf)
            self._masks[name, window] = mask if bool(bad.any()) else None
        return self._masks[name, window]


@contextmanager
def use_plan(plan: Plan) -> Iterator[None]:
    """Let attention in this thread follow a plan."""
    _state.plan = plan
    try:
        yield
    finally:
        _state.plan = None


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Any, None]:
    """Attend, as called by transformers: (1, heads, N, D) each to (1, N, heads, D)."""
    plan: Plan = _state.plan
    for name in ("softcap", "s_aux", "head_mask", "position_bias"):
        if more.get(name) is not None:
            raise Unsupported(f"its attention has {name}")
    if getattr(module, "is_causal", True) is False:
        raise Unsupported("its attention is not causal")
    num_heads, num_tokens, size = query.shape[1:]
    num_kv = key.shape[1]
    queries = query[0].unflatten(0, (num_kv, num_heads // num_kv))  # (K, G, N, D)
    window = sliding_window if sliding_window is not None and plan.max_position >= sliding_window else None
    layer = _Layer(plan, module.layer_idx, size**-0.5 if scaling is None else scaling, window)
    layer.write(key[0], value[0])
    output = layer.attend(queries, key[0], value[0])
    return output.reshape(1, num_tokens, num_heads, output.shape[-1]).to(query.dtype), None


class _Layer:
    """One layer's attention under a plan."""

    def __init__(self, plan: Plan, number: int, scale: float, window: int | None) -> None:
        self._plan, self._number, self._scale, self._window = plan, number, scale, window

    def write(self, keys: Any, values: Any) -> None:
        """Store the new keys and values, (K, N, D) each."""
        for item in self._plan.writes:
            for target, source in ((item.slots.keys, keys), (item.slots.values, values)):
                target[self._number][item.slot, :, item.place] = source[:, item.tokens].transpose(0, 1)
        for part in self._plan.blocks:
            end = part.done + part.stop - part.start
            part.block.keys[self._number][:, part.done : end] = keys[:, part.start : part.stop]
            part.block.values[self._number][:, part.done : end] = values[:, part.start : part.stop]

    def attend(self, queries: Any, keys: Any, values: Any) -> Any:
        """Attention of all tokens: (K, G, N, D) to (N, K, G, D)."""
        import torch

        plan = self._plan
        own = [self._attend_slots(queries, number) for number in range(len(plan.rows))]
        own += [self._attend_short(queries, keys, values, part) for part in plan.short]
        own += [self._attend_block(queries, part) for part in plan.blocks]
        output, total = own[0] if len(own) == 1 else (torch.cat([part[place] for part in own]) for place in (0, 1))
        if plan.levels:
            output = output.float()
        for level in range(len(plan.levels)):
            parts = [self._attend_node(queries, level, number) for number in range(len(plan.levels[level].nodes))]
            more, sums = parts[0] if len(parts) == 1 else (torch.cat([part[at] for part in parts]) for at in (0, 1))
            tokens = np.concatenate(plan.levels[level].tokens)
            if len(tokens) == len(plan.positions) and (tokens[:-1] < tokens[1:]).all():
                output, total = _merge(output, total, more, sums)
            else:
                index = torch.from_numpy(tokens)
                output[index], total[index] = _merge(output[index], total[index], more, sums)
        return output

    def _attend_slots(self, queries: Any, number: int) -> tuple[Any, Any]:
        part = self._plan.rows[number]
        longest, count = int(part.length.max()), part.stop - part.start
        mask = self._plan.mask(("slot", number), part.length - 1, range(longest), self._window, queries.dtype)
        mine = queries[:, :, part.start : part.stop].permute(2, 0, 1, 3)  # (S, K, G, D): the group as query positions
        output, sums = self._call(
            mine,
            part.slots.keys[self._number, :count, :, :longest],
            part.slots.values[self._number, :count, :, :longest],
            None if mask is None else mask[:, None, None, :],
        )
        return output, sums

    def _attend_short(self, queries: Any, keys: Any, values: Any, part: ShortPrompts) -> tuple[Any, Any]:
        num_kv, num_group = queries.shape[:2]
        stop = part.start + part.count * part.size
        prompts = (part.count, part.size)
        mine = queries[:, :, part.start : stop].unflatten(2, prompts).permute(2, 0, 1, 3, 4)  # (count, K, G, size, D)
        own_keys, own_values = (
            tensor[:, part.start : stop]
            .unflatten(1, prompts)
            .transpose(0, 1)[:, :, None]
            .expand(-1, -1, num_group, -1, -1)
            .flatten(1, 2)
            for tensor in (keys, values)
        )
        mask = None
        if self._window is not None:
            mask = self._plan.mask(part.size, np.arange(part.size), range(part.size), self._window, queries.dtype)
        output, sums = self._call(mine.flatten(1, 2), own_keys, own_values, mask, is_causal=mask is None)
        output = output.unflatten(1, (num_kv, num_group)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        return output, sums.unflatten(1, (num_kv, num_group)).permute(0, 3, 1, 2).flatten(0, 1)

    def _attend_block(self, queries: Any, part: BlockPart) -> tuple[Any, Any]:
        num_group = queries.shape[1]
        mine = queries[:, :, part.start : part.stop]  # (K, G, size, D): key-value heads as the batch
        size = part.stop - part.start
        # all query heads of a group read the same keys: a view with stride 0
        keys, values = (
            tensor[self._number][:, None, : part.done + size].expand(-1, num_group, -1, -1)
            for tensor in (part.block.keys, part.block.values)
        )
        if self._window is not None:
            tokens = np.arange(part.done, part.done + size)
            name = (part.done, size)
            mask = self._plan.mask(name, tokens, range(part.done + size), self._window, queries.dtype)
            output, sums = self._call(mine, keys, values, mask)
            return output.permute(2, 0, 1, 3), sums.permute(2, 0, 1)
        output, sums = self._call(mine, keys[:, :, part.done :], values[:, :, part.done :], None, is_causal=True)
        if part.done:
            earlier = self._call(mine, keys[:, :, : part.done], values[:, :, : part.done], None)
            output, sums = _merge(output.float(), sums, *earlier)
            output = output.to(queries.dtype)
        return output.permute(2, 0, 1, 3), sums.permute(2, 0, 1)

    def _attend_node(self, queries: Any, level: int, number: int) -> tuple[Any, Any]:
        import torch

        node, tokens = self._plan.levels[level].nodes[number], self._plan.levels[level].tokens[number]
        num_kv, num_group = queries.shape[:2]
        is_all = len(tokens) == queries.shape[2] and (tokens[:-1] < tokens[1:]).all()
        mine = queries if is_all else queries[:, :, torch.from_numpy(tokens)]
        mask = dead = None
        if self._window is not None:
            keys = range(node.start, node.end)
            positions = self._plan.positions[tokens]
            mask = self._plan.mask(("node", level, number), positions, keys, self._window, queries.dtype)
            dead = None if mask is None else mask.isinf().all(-1)
            mask = None if mask is None else mask.repeat(num_group, 1)
        output, sums = self._call(
            mine.reshape(1, num_kv, num_group * len(tokens), -1),
            node.keys[self._number][None],
            node.values[self._number][None],
            mask,
        )
        output = output[0].unflatten(1, (num_group, len(tokens))).permute(2, 0, 1, 3)
        sums = sums[0].unflatten(1, (num_group, len(tokens))).permute(2, 0, 1)
        if dead is not None:
            sums = sums.masked_fill(dead[:, None, None], -torch.inf)
        return output, sums

    def _call(self, queries: Any, keys: Any, values: Any, mask: Any, *, is_causal: bool = False) -> tuple[Any, Any]:
        """Attention of (B, H, Q, D) to (B, H, T, D), and its log-sum-exp (B, H, Q); a two-dimensional mask
        applies to all heads."""
        import torch

        mask = mask[None, None] if mask is not None and mask.ndim == 2 else mask
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, is_causal, attn_mask=mask, scale=self._scale
        )
        return result[0], result[1]


def _merge(output: Any, total: Any, more: Any, sums: Any) -> tuple[Any, Any]:
    """Join attention over two sets of keys by their log-sum-exp."""
    import torch

    weight = torch.sigmoid(sums - total)[..., None]
    return torch.lerp(output, more.float(), weight), torch.logaddexp(total, sums)
