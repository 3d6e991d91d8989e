"""Micro-batches: the parts of a batch that are in memory together."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from pairwright.config.train_config import TrainConfig
from pairwright.records.arrays import Array
from pairwright.tokens.batch.bins import buckets
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.batch.token_tree import DistinctTokens, sequence_key

Trees = Callable[[int], Sequence[Tree]]
WINDOW = 256  # items that are compared with each other


class Limits:
    """How much of a batch is in memory at once. `shares`: shared tokens of sequences are computed once."""

    def __init__(self, settings: TrainConfig, *, shares: bool = True) -> None:
        self.tokens, self.shares = settings.micro_batch_tokens, shares
        self._items, self._parts = settings.micro_batch_size, settings.gradient_accumulation_steps

    def cut(self, items: Array, num_all: int, trees: Trees) -> list[Array]:
        """Split items of a batch of `num_all` into parts; `trees` returns the trees of an item, which stay together."""
        # Items per part: the batch divided by the number of parts, rounded up, or a fixed number.
        most = -(-num_all // self._parts) if self._parts else self._items
        if self.shares:
            return micro_batches(items, trees, max_items=most, max_tokens=self.tokens)
        sizes = [sum(_count_padded(tree) for tree in trees(item)) for item in items]
        parts = buckets(sizes, max_tokens=self.tokens, max_rows=most, is_padded=False, allow_longer=True)
        return [items[part] for part in reversed(parts)]


def micro_batches(items: Array, trees: Trees, *, max_items: int | None, max_tokens: int) -> list[Array]:
    """Split a batch into parts that fit into memory, with items that share prefixes together; the largest part first.

    A part has at most `max_tokens` distinct tokens, those of its prefix tree; a larger item is a separate part. Largest
    first, because freed memory is reused: blocks of a large part fit the tensors of a smaller one, not vice versa.

    >>> runs = [[1, 2, 3, 4], [9, 8, 7], [1, 2, 3, 5], [1, 2, 6]]
    >>> trees = [Tree(ids[:1], (ids[1:],), ([True] * (len(ids) - 1),)) for ids in runs]
    >>> parts = micro_batches(np.arange(4), lambda item: [trees[item]], max_items=None, max_tokens=6)
    >>> [part.tolist() for part in parts]  # 3 tokens, and 6 where 11 would be without sharing
    [[0, 2, 3], [1]]
    """
    parts: list[tuple[int, list[int]]] = []  # distinct tokens, items
    # In windows: the keys of a whole large batch would be as large as its tokens.
    for start in range(0, len(items), WINDOW):
        window = items[start : start + WINDOW]
        keys = [[sequence_key(ids) for tree in trees(item) for ids in tree.sequences] for item in window]
        tokens, part = DistinctTokens(), list[int]()
        for place in sorted(range(len(window)), key=lambda place: (keys[place], place)):
            before = tokens.count
            for key in keys[place]:
                tokens.add(key)
            if part and (tokens.count > max_tokens or len(part) == max_items):
                parts.append((before, part))
                tokens, part = DistinctTokens(), []
                for key in keys[place]:
                    tokens.add(key)
            part.append(int(window[place]))
        parts.append((tokens.count, part))
    return [np.array(part) for _, part in sorted(parts, key=lambda part: -part[0])]


def tree_batches(makers: Iterable[Callable[[], Tree]], limits: Limits) -> Iterator[list[Tree]]:
    """Yield trees in batches that fit the limits, built lazily; neighbours that share prefixes stay together."""
    window: list[Tree] = []
    size = 0
    for make in makers:
        window.append(make())
        size += window[-1].num_tokens
        if size > 8 * limits.tokens or len(window) == WINDOW:
            yield from _cut_window(window, limits)
            window, size = [], 0
    yield from _cut_window(window, limits)


def _cut_window(trees: list[Tree], limits: Limits) -> Iterator[list[Tree]]:
    for part in limits.cut(np.arange(len(trees)), len(trees), lambda place: [trees[place]]):
        yield [trees[place] for place in part]


def _count_padded(tree: Tree) -> int:
    """Count the tokens of a tree with one padded row per branch."""
    return max(1, len(tree.branches)) * (len(tree.prompt) + max((len(branch) for branch in tree.branches), default=0))
