"""The items of each update, a pure function of the step: a resumed run needs no iterator state."""

from dataclasses import dataclass, field

import numpy as np

from pairwright.records.arrays import Array


@dataclass(frozen=True)
class BatchOrder:
    """Items in a new order each epoch, `batch_size` at a time; the last batch of an epoch may be smaller.

    `units` gives the unit of each item. Each epoch shuffles the units; items of a unit stay together, in order. A batch
    still has `batch_size` items, so its last unit may continue in the next batch.

    >>> order = BatchOrder(np.arange(5), batch_size=2, seed=0)
    >>> order.num_steps(1), [len(order.batch(step)) for step in range(3)]
    (3, [2, 2, 1])
    >>> sorted(np.concatenate([order.batch(step) for step in range(3, 6)]).tolist())
    [0, 1, 2, 3, 4]
    >>> BatchOrder(np.arange(6), batch_size=6, seed=0, units=np.array([0, 1, 0, 2, 2, 1])).batch(0).tolist()
    [3, 4, 0, 2, 1, 5]
    """

    items: Array
    batch_size: int
    seed: int
    shuffle: bool = True
    units: Array | None = None
    # Epoch -> its items in order; only the last requested epoch is kept.
    _recent: dict[int, Array] = field(default_factory=dict, compare=False)

    def batch(self, step: int) -> Array:
        if not len(self.items):
            return self.items
        epoch, place = self.locate(step)
        return self._epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def num_steps(self, epochs: int) -> int:
        return epochs * self.steps_per_epoch

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of an update, and its position in the epoch; both count from 0."""
        return divmod(step, self.steps_per_epoch)

    def num_epochs(self, num_done: int) -> float:
        """Convert a number of updates to epochs, with a fraction for an unfinished one."""
        if not num_done:
            return 0.0
        epoch, place = self.locate(num_done - 1)
        return epoch + (place + 1) / self.steps_per_epoch

    def ends_period(self, num_done: int, every: float | None) -> bool:
        """Return whether a period ends after `num_done` updates. `every` is a number of updates, below 1 a fraction of
        an epoch, None one epoch."""
        if every is not None and every >= 1:
            return num_done % round(every) == 0
        period = self.steps_per_epoch if every is None else max(1, round(every * self.steps_per_epoch))
        return num_done % period == 0

    def _epoch(self, epoch: int) -> Array:
        if epoch not in self._recent:
            self._recent.clear()
            # Seeded by the epoch: any step can be reached directly.
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            items = self.items
            if self.shuffle and self.units is not None:
                # Number units by first occurrence, draw an order of units, and sort items by their unit's place in it.
                _, firsts, numbers = np.unique(self.units, return_index=True, return_inverse=True)
                drawn = np.argsort(firsts)[generator.permutation(len(firsts))]
                items = items[np.argsort(np.argsort(drawn)[numbers], kind="stable")]
            elif self.shuffle:
                items = generator.permutation(items)
            self._recent[epoch] = items
        return self._recent[epoch]
