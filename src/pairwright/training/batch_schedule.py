"""Which items an update takes: a pure function of the step, so that a resumed run needs no iterator's state."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pairwright.pairs.curriculum import stage_of_epoch
from pairwright.records.arrays import Array


@dataclass(frozen=True)
class BatchOrder:
    """Items in a new order each epoch, `batch_size` at a time; the last batch of an epoch may be smaller.

    With `stages` (of each item) an epoch has the items whose stage is at most the epoch's, which grows by one every
    `interval` epochs: later epochs have more updates than earlier ones.

    With `units` (of each item) the units are in a new order each epoch, and the items of one stay together, in their
    own order; a batch still has `batch_size` items, so that the last unit of a batch may go on in the next one.

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
    # Epoch -> its items in order; only the last epoch that was asked for is kept.
    _recent: dict[int, Array] = field(default_factory=dict, compare=False)

    def batch(self, step: int) -> Array:
        """The items of update `step` (0, 1, ...)."""
        if not len(self.items):
            return self.items
        epoch, place = self.locate(step)
        return self._epoch(epoch)[place * self.batch_size : (place + 1) * self.batch_size]

    def active(self, epoch: int) -> Array:
        """The items that an epoch has, in their own order."""
        return self._select(self.items, epoch)

    def num_steps(self, epochs: int) -> int:
        """How many updates the first so many epochs have."""
        # Each stage lasts `interval` epochs, the last one for ever: count the epochs that fall into each.
        *growing, last = self._steps_of_stages
        left = [max(0, epochs - stage * self.interval) for stage in range(len(growing) + 1)]
        return sum(steps * min(self.interval, num) for steps, num in zip(growing, left, strict=False)) + last * left[-1]

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch of an update, and its place there; both count from 0."""
        stage, first, steps = self._stage_at(step)
        epochs, place = divmod(step - first, steps)
        return stage * self.interval + epochs, place

    def steps_in_epoch_of(self, step: int) -> int:
        """How many updates the epoch has that update `step` is in."""
        return self._stage_at(step)[2]

    def num_epochs(self, num_done: int) -> float:
        """How many epochs so many updates are; a fraction where one is not finished."""
        if not num_done:
            return 0.0
        epoch, place = self.locate(num_done - 1)
        return epoch + (place + 1) / self.steps_in_epoch_of(num_done - 1)

    def ends_period(self, num_done: int, every: float | None) -> bool:
        """Whether a period ends with the last of so many updates: `every` are updates, below 1 a share of an epoch, and
        None is an epoch."""
        if every is not None and every >= 1:
            return num_done % round(every) == 0
        _, first, steps = self._stage_at(num_done - 1)
        period = steps if every is None else max(1, round(every * steps))
        return (num_done - first) % period == 0

    @cached_property
    def _steps_of_stages(self) -> list[int]:
        """How many updates an epoch has, stage by stage; the last one lasts for ever."""
        if self.stages is None or not len(self.items):
            # Ceiling division: the last batch of an epoch may be smaller.
            return [-(-len(self.items) // self.batch_size)]
        sizes = np.cumsum(np.bincount(self.stages))  # items that each stage has, with those before it
        return [-(-size // self.batch_size) for size in sizes.tolist()]

    @cached_property
    def _first_steps(self) -> Array:
        """The first update of each stage."""
        return np.cumsum([0, *(steps * self.interval for steps in self._steps_of_stages[:-1])])

    def _stage_at(self, step: int) -> tuple[int, int, int]:
        """The stage of an update, the first update of that stage, and the updates of each of its epochs."""
        # a stage without items begins where the next one does, and is passed over
        stage = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return stage, int(self._first_steps[stage]), self._steps_of_stages[stage]

    def _epoch(self, epoch: int) -> Array:
        if epoch not in self._recent:
            self._recent.clear()
            # Seeded by the epoch: any step can be reached without drawing those before it.
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            items = self.active(epoch)
            if self.shuffle and self.units is not None:
                # Units are numbered as they come; (N,) the place of each item's unit in the order that is drawn.
                _, firsts, numbers = np.unique(self._select(self.units, epoch), return_index=True, return_inverse=True)
                drawn = np.argsort(firsts)[generator.permutation(len(firsts))]
                items = items[np.argsort(np.argsort(drawn)[numbers], kind="stable")]
            elif self.shuffle:
                items = generator.permutation(items)
            self._recent[epoch] = items
        return self._recent[epoch]

    def _select(self, values: Array, epoch: int) -> Array:
        """Of a value for each item, those of the items that an epoch has."""
        if self.stages is None:
            return values
        return np.compress(self.stages <= stage_of_epoch(epoch, self.interval), values)
