"""Attention over a row of trees: each prompt to itself, each branch to its prompt and itself.

A row may begin with a trunk: tokens that all of its prompts begin with (a system message, worked examples), computed
once for all of them. Every token behind it attends to all of it.

Registered with transformers under `NAME`; the plan of the row comes as the keyword argument `plan` of the model's
forward. A large tree is one call of scaled dot-product attention for its prompt and one for each branch, so that
nothing is computed for tokens that may not see each other: a pair of P prompt tokens and twice C of completion costs
P²/2 + 2·C·P + C²; padded, (P + C)². Small trees are put together, a few hundred tokens under one mask: there the
calls would cost more than the numbers.

Without a plan it refuses: this attention never guesses.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pairwright.errors import PairwrightError
from pairwright.tokens.batch.collate import Segment

NAME = "pairwright_trees"
SMALL_TREE = 160  # tokens up to which a tree goes into a group
GROUP_TOKENS = 256  # tokens of a group at most


class CannotShare(PairwrightError):
    """This model's attention has something that a row of trees does not know."""


class Plan:
    """How a row is attended to: large trees by themselves, small ones in groups. Masks are made once for all layers.

    `trunk` is the number of tokens before the first tree, which all trees continue.
    """

    def __init__(self, segments: Sequence[Segment], device: Any, *, trunk: int = 0) -> None:
        self.device, self.trunk = device, trunk
        self.parts: list[Segment | tuple[int, list[Segment]]] = []
        self._masks: dict[tuple[int, int | None], Tensor] = {}
        group: list[Segment] = []
        for segment in segments:
            size = segment.end - segment.start
            if group and (size > SMALL_TREE or segment.end - group[0].start > GROUP_TOKENS):
                self.parts.append((len(self.parts), group))
                group = []
            if size > SMALL_TREE:
                self.parts.append(segment)
            else:
                group.append(segment)
        if group:
            self.parts.append((len(self.parts), group))

    def group_mask(self, number: int, group: list[Segment], window: int | None) -> Tensor:
        """Who sees whom: tokens of small trees (T) see the trunk and each other, (T, trunk + T)."""
        if (number, window) not in self._masks:
            start, size = group[0].start, group[-1].end - group[0].start
            # For each token its tree, its branch (0: the prompt), and its position in prompt + branch.
            tree_T, branch_T, place_T = (torch.zeros(size, dtype=torch.long) for _ in range(3))
            for tree, segment in enumerate(group):
                first, end = segment.prompt
                tree_T[segment.start - start : segment.end - start] = tree
                place_T[first - start : end - start] = torch.arange(end - first)
                for branch, (left, right) in enumerate(segment.branches, 1):
                    branch_T[left - start : right - start] = branch
                    place_T[left - start : right - start] = torch.arange(end - first, end - first + right - left)
            # Row sees column: same tree, not later, and in the prompt or in the same branch.
            mask_TT = (tree_T[:, None] == tree_T) & (place_T <= place_T[:, None])
            mask_TT &= (branch_T == 0) | (branch_T == branch_T[:, None])
            if window is not None:
                mask_TT &= place_T > place_T[:, None] - window
            trunk_TK = torch.ones(size, self.trunk, dtype=torch.bool)
            if window is not None:
                trunk_TK = torch.arange(self.trunk) > place_T[:, None] + self.trunk - window
            self._masks[number, window] = torch.cat([trunk_TK, mask_TT], dim=1).to(self.device)
        return self._masks[number, window]


# The attention function that transformers calls in each layer.


def register() -> None:
    """Make the attention known to transformers by its name."""
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
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: (1, heads, T, D) queries, keys and values to (1, T, heads, D)."""
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if plan is None or attention_mask is not None or unknown or query.shape[0] != 1:
        raise CannotShare(f"attention with {', '.join(unknown) or 'a mask of its own'}")
    # Grouped-query attention: repeat keys and values for every query head.
    num_groups = query.shape[1] // key.shape[1]
    if num_groups > 1:
        key, value = key.repeat_interleave(num_groups, dim=1), value.repeat_interleave(num_groups, dim=1)
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scaling}
    # Keys and values of the trunk, which everything behind it attends to.
    trunk = key[:, :, : plan.trunk], value[:, :, : plan.trunk]
    outputs: list[Tensor] = []
    if plan.trunk:
        outputs.append(_attend(query[:, :, : plan.trunk], *trunk, 0, sliding_window, options))
    for part in plan.parts:
        if isinstance(part, Segment):
            outputs += _attend_tree(part, query, key, value, trunk, sliding_window, options)
            continue
        number, group = part
        row = slice(group[0].start, group[-1].end)
        mask = plan.group_mask(number, group, sliding_window)
        keys, values = _after(trunk, key[:, :, row], value[:, :, row])
        outputs.append(scaled_dot_product_attention(query[:, :, row], keys, values, attn_mask=mask, **options))
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _attend_tree(
    segment: Segment,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    trunk: tuple[Tensor, Tensor],
    window: int | None,
    options: Any,
) -> list[Tensor]:
    """A tree by itself: its prompt, then each branch."""
    start, end = segment.prompt
    offset = trunk[0].shape[2]
    # Keys and values of the trunk and the prompt, which all branches attend to.
    prompt = _after(trunk, key[:, :, start:end], value[:, :, start:end])
    outputs = [_attend(query[:, :, start:end], *prompt, offset, window, options)]
    for first, last in segment.branches:
        if first == last:
            continue
        keys, values = _after(prompt, key[:, :, first:last], value[:, :, first:last])
        outputs.append(_attend(query[:, :, first:last], keys, values, offset + end - start, window, options))
    return outputs


def _after(earlier: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values behind earlier ones."""
    if not earlier[0].shape[2]:
        return key, value
    return torch.cat([earlier[0], key], dim=2), torch.cat([earlier[1], value], dim=2)


def _attend(query: Tensor, key: Tensor, value: Tensor, offset: int, window: int | None, options: Any) -> Tensor:
    """Queries that stand `offset` after the first key; a window lets each see only so many, itself included."""
    num_keys = key.shape[2]
    if not offset and (window is None or num_keys <= window):
        return scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1, **options)
    places_Q = torch.arange(offset, offset + query.shape[2], device=query.device)[:, None]
    places_K = torch.arange(num_keys, device=query.device)[None, :]
    mask_QK = places_K <= places_Q
    if window is not None:
        mask_QK &= places_K > places_Q - window
    return scaled_dot_product_attention(query, key, value, attn_mask=mask_QK, **options)
