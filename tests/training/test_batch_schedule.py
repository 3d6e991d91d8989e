"""Which items an update takes, and which of them are in memory together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.config.train_config import TrainConfig
from pairwright.tokens.batch.collate import Tree, collate_trees, count_distinct
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.micro_batches import Limits, micro_batches


def test_units_of_one_item_each_are_shuffled_as_items_are():
    items = np.array([4, 7, 1, 9, 3])
    alone, units = BatchOrder(items, 2, 5), BatchOrder(items, 2, 5, units=np.array([8, 2, 6, 0, 3]))
    assert [units.batch(step).tolist() for step in range(6)] == [alone.batch(step).tolist() for step in range(6)]


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_an_order_is_a_pure_function_of_the_step(num_items, batch_size, epochs, shuffle):
    items = np.arange(num_items) + 100
    order = BatchOrder(items, batch_size, 7, shuffle)
    num_steps = order.steps_per_epoch
    for epoch in range(epochs):
        trained = [order.batch(epoch * num_steps + place).tolist() for place in range(num_steps)]
        assert sorted(item for batch in trained for item in batch) == items.tolist()
        for place in range(num_steps):
            step = epoch * num_steps + place
            assert order.locate(step) == (epoch, place)
            assert order.num_epochs(step + 1) == pytest.approx(epoch + (place + 1) / num_steps)
            assert order.ends_period(step + 1, None) is (place == num_steps - 1)
    assert order.num_steps(epochs) == epochs * num_steps
    again = BatchOrder(items, batch_size, 7, shuffle)
    for place in reversed(range(epochs * num_steps)):
        assert again.batch(place).tolist() == order.batch(place).tolist()


def test_periods_are_counted_in_epochs_fractions_or_updates():
    order = BatchOrder(np.arange(10), batch_size=3, seed=0)
    assert [step for step in range(1, 13) if order.ends_period(step, None)] == [4, 8, 12]
    assert [step for step in range(1, 13) if order.ends_period(step, 0.5)] == [2, 4, 6, 8, 10, 12]
    assert [step for step in range(1, 13) if order.ends_period(step, 5.0)] == [5, 10]
    assert [order.num_epochs(step) for step in (0, 1, 4, 6)] == [0.0, 0.25, 1.0, 1.5]


def test_items_of_a_unit_stay_together_in_every_epoch_and_all_of_them_come():
    units = np.array([0, 1, 1, 2, 0, 2, 2, 3])
    order = BatchOrder(np.arange(8), 3, 0, units=units)
    orders = set()
    for epoch in range(4):
        items = np.concatenate([order.batch(step) for step in range(3 * epoch, 3 * epoch + 3)])
        assert sorted(items.tolist()) == list(range(8))
        assert 1 + np.count_nonzero(np.diff(units[items])) == 4  # no unit comes twice
        for unit in range(4):
            assert items[units[items] == unit].tolist() == np.flatnonzero(units == unit).tolist()
        orders.add(tuple(items.tolist()))
    assert len(orders) > 1


def test_micro_batches_count_what_is_shared_once_and_lose_no_item():
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 9, 50) for _ in range(3)]
    ends = [random.integers(0, 9, random.integers(1, 20)) for _ in range(30)]
    trees = [Tree(prompts[number % 3], (end,), (np.ones(len(end), bool),)) for number, end in enumerate(ends)]
    parts = micro_batches(np.arange(30), lambda item: [trees[item]], max_items=7, max_tokens=120)
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))
    sizes = [count_distinct([trees[item] for item in part]) for part in parts]
    assert sizes == sorted(sizes, reverse=True)  # later parts fit into the memory of earlier ones
    assert sizes[0] > sizes[-1]
    for part in parts:
        assert len(part) <= 7
        assert count_distinct([trees[item] for item in part]) <= 120
        assert collate_trees([trees[item] for item in part]).input_ids.size == count_distinct([trees[i] for i in part])
    # Most parts have one prompt: with runs in their own order every part would have three.
    assert np.mean([len({int(item) % 3 for item in part}) for part in parts]) < 2


def test_a_model_that_cannot_share_counts_every_row():
    ids = np.arange(40)
    trees = [Tree(ids, ([1, 2], [3]), ([True, True], [True])) for _ in range(4)]
    limits = Limits(TrainConfig(micro_batch_tokens=170), shares=False)
    assert [len(part) for part in limits.cut(np.arange(4), 4, lambda item: [trees[item]])] == [2, 2]  # 84 tokens each
    limits = Limits(TrainConfig(micro_batch_tokens=170))
    assert [len(part) for part in limits.cut(np.arange(4), 4, lambda item: [trees[item]])] == [4]
