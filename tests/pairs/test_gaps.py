"""Gaps are differences of decimals, not of floats."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.pairs.candidates.candidates import decimal_gap, reward_gaps

decimals = st.integers(-10_000, 10_000).map(lambda number: number / 1000)
floats = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(("high", "low", "gap"), [(0.3, 0.1, 0.2), (0.8, 0.7, 0.1), (1.1, 1.0, 0.1), (0.9, -0.1, 1.0)])
def test_the_gap_is_what_a_person_would_say(high, low, gap):
    assert reward_gaps(np.array([high]), np.array([low])).tolist() == [gap]
    assert decimal_gap(high, low) == gap


@given(decimals, decimals)
def test_gaps_of_decimals_are_exact(high, low):
    exact = float(Decimal(repr(high)) - Decimal(repr(low)))
    assert reward_gaps(np.array([high]), np.array([low]))[0] == exact


@given(floats, floats)
def test_a_gap_meets_itself_as_a_threshold(high, low):
    gap = decimal_gap(high, low)
    assert reward_gaps(np.array([high]), np.array([low]), near=[gap])[0] == gap


def test_a_threshold_is_met_exactly_also_off_the_grid_of_nine_decimals():
    high, low = 0.30000000001, 0.10000000001
    assert not high - low >= 0.2
    assert reward_gaps(np.array([high]), np.array([low]), near=[0.2])[0] >= 0.2


def test_huge_rewards_give_a_finite_gap_without_a_warning():
    assert np.isfinite(reward_gaps(np.array([1.7e308]), np.array([-1.7e308])))[0]
