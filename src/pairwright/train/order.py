"""Which items an update takes: a pure function of the step, so that a resumed run needs no iterator's state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pairwright.arrays import Array
from pairwright.train.ranks import Ranks


@dataclass(frozen=True)
class Order:
    """Items in a new order each epoch, `batch_size` at a time; the last batch of an epoch may be smaller.

    >>> order = Order(np.arange(5), batch_size=2, seed=0)
    >>> order.steps_per_epoch, [len(order.batch(step)) for step in range(3)]
    (3, [2, 2, 1])
    >>> sorted(np.concatenate([order.batch(step) for step in range(3, 6)]).tolist())
    [0, 1, 2, 3, 4]
    """

    items: Array
    batch_size: int
    seed: int
    shuffle: bool = True
    _kept: dict[int, Array] = field(default_factory=dict, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def batch(self, step: int) -> Array:
        if not len(self.items):
            return self.items
        epoch, place = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def _epoch(self, epoch: int) -> Array:
        if epoch not in self._kept:
            self._kept.clear()
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._kept[epoch] = generator.permutation(self.items) if self.shuffle else self.items
        return self._kept[epoch]


def micro_batches(items: Array, sizes: Sequence[int], *, max_items: int | None, max_tokens: int) -> list[Array]:
    """Cut a batch into parts of like size that fit into memory; an item larger than `max_tokens` goes alone.

    >>> [part.tolist() for part in micro_batches(np.array([7, 8, 9]), [10, 90, 20], max_items=None, max_tokens=100)]
    [[7, 9], [8]]
    """
    parts: list[list[int]] = []
    room = 0
    for place in sorted(range(len(items)), key=lambda number: (sizes[number], number)):
        full = not parts or sizes[place] > room or (max_items is not None and len(parts[-1]) >= max_items)
        if full:
            parts.append([])
            room = max_tokens
        parts[-1].append(int(items[place]))
        room -= sizes[place]
    return [np.array(part) for part in parts]


class Parted(Protocol):
    """What cuts items into parts that fit into memory, the smallest items first; `num_all` are in the whole batch."""

    def parts(self, items: Array, num_all: int) -> list[Array]: ...


def even_parts(channel: Parted, items: Array, ranks: Ranks) -> Iterator[tuple[Array, bool]]:
    """This process's parts of a batch, and whether each counts: the smallest item of all fills up where it has to."""
    mine = channel.parts(ranks.share(items), len(items))
    return ranks.in_step(mine, lambda: channel.parts(items, len(items))[0][:1])
