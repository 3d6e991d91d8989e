"""Intervals and tests against values derived by hand, by counting all resamples, and by exact integers."""

import itertools
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest

from pairwright.evaluation import bootstrap_intervals, mcnemar_test, paired_statistics, sign_test
from pairwright.evaluation.paired_statistics import _bca_levels


def interval(values, **options):
    settings = {"confidence": 0.95, "num_resamples": 10_000, "seed": 0} | options
    return bootstrap_intervals(np.array([values], float), **settings)[0]


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),
        (0, 5, 2 / 32),
        (9, 1, 2 * 11 / 1024),
        (3, 3, 1.0),
        (7, 5, 2 * 1586 / 4096),
    ],
)
def test_the_sign_test_counts_outcomes(wins, losses, expected):
    # 7 of 12: sum of C(12, k) for k = 0..5 is 1 + 12 + 66 + 220 + 495 + 792 = 1586
    assert sign_test(wins, losses) == expected


def test_the_sign_test_of_many_tasks_is_the_sum_of_whole_numbers(monkeypatch):
    exact = float(Fraction(2 * sum(math.comb(5000, k) for k in range(2400 + 1)), 2**5000))
    assert sign_test(2600, 2400) == exact
    monkeypatch.setattr(paired_statistics, "MAX_INTEGER_TRIALS", 100)
    assert sign_test(2600, 2400) == pytest.approx(exact, rel=1e-10)
    assert sign_test(100_000, 0) == 0.0


def test_mcnemar_is_the_sign_test_on_what_one_alone_solved():
    assert mcnemar_test(1, 7) == mcnemar_test(7, 1) == 2 * 9 / 256


def test_resampled_means_of_yes_and_no_have_the_quantiles_of_the_binomial():
    """Drawing 100 tasks of which 30 are 1 gives Binomial(100, 0.3): its 2.5% quantile is 21, its 97.5% quantile 39."""
    cumulative = np.cumsum([math.comb(100, k) * 0.3**k * 0.7 ** (100 - k) for k in range(101)])
    expected = [int(np.argmax(cumulative >= level)) / 100 for level in (0.025, 0.975)]
    assert expected == [0.21, 0.39]
    draws = paired_statistics._resample_means(np.array([[1.0] * 30 + [0.0] * 70]), 10_000, 0)
    assert np.quantile(draws, [0.025, 0.975]) == pytest.approx(expected)


def test_bca_levels_follow_efrons_formula_on_all_resamples():
    """Of (0, 0, 0, 1) there are 256 resamples: 81 have mean 0, 108 have the mean 1/4 itself.

    z0 = Φ⁻¹(81/256 + 54/256); deviations are -1/4 three times and 3/4, so Σu³ = 3/8, Σu² = 3/4,
    a = (3/8) / (6 · (3/4)^1.5) = 0.0962250.
    """
    values = np.array([0.0, 0.0, 0.0, 1.0])
    draws = np.array([np.mean(chosen) for chosen in itertools.product(values, repeat=4)])
    normal = NormalDist()
    z0, a = normal.inv_cdf(135 / 256), 0.375 / (6 * 0.75**1.5)
    assert a == pytest.approx(0.0962250, abs=1e-7)
    expected = []
    for level in (0.05, 0.95):
        z = z0 + normal.inv_cdf(level)
        expected.append(normal.cdf(z0 + z / (1 - a * z)))
    assert _bca_levels(values, 0.25, draws, (0.05, 0.95)) == pytest.approx(expected, abs=1e-12)
    assert expected[0] > 0.05
    assert expected[1] > 0.95  # both move towards the long tail


def test_a_shift_moves_the_interval_and_a_sign_mirrors_it():
    values = np.random.default_rng(1).gamma(1.0, 1.0, size=40)
    found, moved, mirrored = interval(values), interval(values + 5), interval(-values)
    assert moved.low == pytest.approx(found.low + 5, abs=1e-9)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_rows_are_drawn_with_the_same_tasks():
    """A constant difference has no spread, although both rows have, because their resamples are paired."""
    row = np.random.default_rng(2).normal(size=30)
    before, after, difference = bootstrap_intervals(
        np.array([row, row + 0.25, (row + 0.25) - row]), confidence=0.9, num_resamples=500, seed=3
    )
    assert after.low == pytest.approx(before.low + 0.25)
    assert (difference.low, difference.high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_a_seed_gives_the_same_interval_in_whatever_pieces_it_is_drawn(monkeypatch):
    values = np.random.default_rng(3).normal(size=50)
    whole = interval(values, seed=7)
    monkeypatch.setattr(paired_statistics, "MAX_DRAWS_AT_ONCE", 1000)
    assert interval(values, seed=7) == whole
    assert interval(values, seed=8) != whole


def test_one_task_has_a_mean_and_no_interval():
    found = interval([0.5])
    assert (found.mean, found.low, found.high) == (0.5, None, None)


def test_equal_values_have_an_interval_without_width():
    found = interval([0.1] * 7)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.1))
