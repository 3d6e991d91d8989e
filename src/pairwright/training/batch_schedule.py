"""The items of each update, a pure function of the step: a resumed run needs no iterator state."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pairwright.pairs.curriculum import stage_of_epoch
from pairwright.records.arrays import Array


@dataclass(frozen=True)
class BatchOrder:
    """Items in a new order each epoch, `batch_size` at a time; the last batch of an epoch may be smaller.

    `stages` gives the stage of each item. An epoch has the items up to its stage, which grows by one every `interval`
    epochs: later epochs have more updates.

    `units` gives the unit of each item. Each epoch shuffles the units; items of a unit stay together, in order. A batch
    still has `batch_size` items, so its last unit may continue in the next batch.

    >>> order = BatchOrder(np.arange(5), batch_size=2, seed=0)
    >>> order.num_steps(1), [len(order.batch(step)) for step in range(3)]
    (3, [2, 2, 1])
    >>> sorted(np.concatenate([order.batch(step) for step in range(3, 6)]).tolist())
    [0, 1, 2, 3, 4]
    >>> order = BatchOrder(np.arange(5), batch_size=2, seed=0, stages=np.array([0, 0, 1, 1, 1]), interval=2)
    >>> [order.num_steps(epochs) for epochs in range(5)], [len(order.batch(step)) for step in range(5)]
    ([0, 1, 2, 5, 8], [2, 2, 2, 2, 1])
    >>> BatchOrder(np.arange(6), batch_size=6, seed=0, units=np.array([0, 1, 0, 2, 2, 1])).batch(0).tolist()
    [3, 4, 0, 2, 1, 5]
    """

    items: Array
    batch_size: int
    seed: int
    shuffle: bool = True
    stages: Array | None = None
    interval: int = 1
    units: Array | None = None
    # Epoch -> its items in order; only the last requested epoch is kept.
    _recent: dict[int, Array] = field(default_factory=dict, compare=False)

    def batch(self, step: int) -> Array:
        """Return the items of update `step` (0, 1, ...)."""
        if not len(self.items):
            return self.items
        epoch, place = self.locate(step)
        return self._epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def active(self, epoch: int) -> Array:
        """Return the items of an epoch, unshuffled."""
        return self._select(self.items, epoch)

    def num_steps(self, epochs: int) -> int:
        """Return the number of updates of the first `epochs` epochs."""
        # Each stage lasts `interval` epochs, the last one forever: count the epochs of each.
        *growing, last = self._steps_of_stages
        left = [max(0, epochs - stage * self.interval) for stage in range(len(growing) + 1)]
        return sum(steps * min(self.interval, num) for steps, num in zip(growing, left, strict=False)) + last * left[-1]

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of an update, and its position in the epoch; both count from 0."""
        stage, first, steps = self._stage_at(step)
        epochs, place = divmod(step - first, steps)
        return stage * self.interval + epochs, place

    def steps_in_epoch_of(self, step: int) -> int:
        """Return the number of updates of the epoch that contains update `step`."""
        return self._stage_at(step)[2]

    def num_epochs(self, num_done: int) -> float:
        """Convert a number of updates to epochs, with a fraction for an unfinished one."""
        if not num_done:
            return 0.0
        epoch, place = self.locate(num_done - 1)
        return epoch + (place + 1) / self.steps_in_epoch_of(num_done - 1)

    def ends_period(self, num_done: int, every: float | None) -> bool:
        """Return whether a period ends after `num_done` updates. `every` is a number of updates, below 1 a fraction of
        an epoch, None one epoch."""
        if every is not None and every >= 1:
            return num_done % round(every) == 0
        _, first, steps = self._stage_at(num_done - 1)
        period = steps if every is None else max(1, round(every * steps))
        return (num_done - first) % period == 0

    @cached_property
    def _steps_of_stages(self) -> list[int]:
        """Updates per epoch of each stage; the last stage lasts forever."""
        if self.stages is None or not len(self.items):
            # Ceiling division: the last batch of an epoch may be smaller.
            return [-(-len(self.items) // self.batch_size)]
        sizes = np.cumsum(np.bincount(self.stages))  # items up to each stage
        return [-(-size // self.batch_size) for size in sizes.tolist()]

    @cached_property
    def _first_steps(self) -> Array:
        """The first update of each stage."""
        return np.cumsum([0, *(steps * self.interval for steps in self._steps_of_stages[:-1])])

    def _stage_at(self, step: int) -> tuple[int, int, int]:
        """Return the stage of an update, the stage's first update, and the updates of each of its epochs."""
        # side="right" skips stages without items, which begin where the next one does
        stage = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return stage, int(self._first_steps[stage]), self._steps_of_stages[stage]

    def _epoch(self, epoch: int) -> Array:
        if epoch not in self._recent:
            self._recent.clear()
            # Seeded by the epoch: any step can be reached directly.
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            items = self.active(epoch)
            if self.shuffle and self.units is not None:
                # Number units by first occurrence, draw an order of units, and sort items by their unit's place in it.
                _, firsts, numbers = np.unique(self._select(self.units, epoch), return_index=True, return_inverse=True)
                drawn = np.argsort(firsts)[generator.permutation(len(firsts))]
                items = items[np.argsort(np.argsort(drawn)[numbers], kind="stable")]
            elif self.shuffle:
                items = generator.permutation(items)
            self._recent[epoch] = items
        return self._recent[epoch]

    def _select(self, values: Array, epoch: int) -> Array:
        """Select the values of an epoch's items."""
        if self.stages is None:
            return values
        return np.compress(self.stages <= stage_of_epoch(epoch, self.interval), values)
