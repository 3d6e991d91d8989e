"""Float noise is not a preference: rewards within a relative tolerance tie, in every strategy and in lint."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import built, candidate, dropped, made, rewards_of, several
from test_strategies import group_of

from pairwright import EID, Experience, Message
from pairwright.errors import ConfigError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.candidates.candidates import TIE_FLOOR, decimal_gap, is_tied, is_tied_expression
from pairwright.pairs.funnel import Reason
from pairwright.pairs.options import Threshold
from pairwright.pairs.pair_stats import lint_pairs
from pairwright.pairs.pair_table import pairs_to_batch, read_pairs, write_pairs
from pairwright.pairs.strategies.pairing import count_gaps, group_pairs
from pairwright.records.experience import Side

NOISE = 0.9999999999999998
ANY = st.floats(-1e9, 1e9) | st.sampled_from([1.0, NOISE, 1.0 - 1e-9, 0.0, 5e-17, -1.0, 1e300, -1e300])


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({"strategy": "all"}, "groups"),
        ({"strategy": "best-worst"}, "groups"),
        ({"strategy": "stratified", "high": Threshold(NOISE), "low": Threshold(NOISE)}, "groups"),
        ({"strategy": "divergence"}, "groups"),
    ],
    ids=str,
)
def test_rewards_that_differ_by_float_noise_are_tied(tmp_path, options, stage):
    pairs, summary = built(tmp_path, several(1.0, NOISE), **options)
    assert pairs == []
    assert dropped(summary) == {Reason.TIED: 1}
    assert stage == next(row["unit"] for row in summary["stages"] if row["drops"])


def test_only_what_is_apart_is_paired_and_the_rest_is_counted_as_tied(tmp_path):
    pairs, summary = built(tmp_path, several(1.0, NOISE, 0.3, 0.1 + 0.2))
    assert sorted(rewards_of(pairs)) == [(NOISE, 0.3), (NOISE, 0.1 + 0.2), (1.0, 0.3), (1.0, 0.1 + 0.2)]
    assert dropped(summary) == {Reason.TIED: 2}


def test_noise_around_zero_ties_with_zero(tmp_path):
    pairs, summary = built(tmp_path, several(0.1 + 0.2 - 0.3, 0.0))
    assert (pairs, dropped(summary)) == ([], {Reason.TIED: 1})


def test_ties_across_groups_are_not_pairs(tmp_path):
    rows = [*several(1.0, task="one"), *several(NOISE, task="two", prompt=(Message("user", "else?"),))]
    options = {"strategy": "stratified", "across_groups": True, "high": Threshold(NOISE), "low": Threshold(NOISE)}
    pairs, summary = built(tmp_path, rows, **options)
    assert pairs == []
    assert Reason.TIED in dropped(summary)


def preference(rewards):
    sides = [
        Side(messages=(Message("assistant", text),), reward=reward) for text, reward in zip("ab", rewards, strict=True)
    ]
    return Experience(
        eid=EID("b", "t"), kind="preference", prompt=(Message("user", "go"),), chosen=sides[0], rejected=sides[1]
    )


@pytest.mark.parametrize("rewards", [(1.0, NOISE), (NOISE, 1.0)])
def test_imported_preferences_whose_rewards_differ_by_noise_are_tied(tmp_path, rewards):
    pairs, summary = built(tmp_path, [preference(rewards)], strategy="imported")
    assert (pairs, dropped(summary)) == ([], {Reason.TIED: 1})


def test_noise_contradicts_nothing(tmp_path):
    """A over B by 0.5 in one task; in another B is better by noise alone, and says nothing."""
    rows = [candidate(1.0, "A", run=0), candidate(0.5, "B", run=1)]
    rows += [candidate(NOISE, "A", task="u", run=0), candidate(1.0, "B", task="u", run=1)]
    pairs, summary = built(tmp_path, rows)
    assert rewards_of(pairs) == [(1.0, 0.5)]
    assert dropped(summary) == {Reason.TIED: 1}


def test_the_tolerance_can_be_set_and_zero_means_exact(tmp_path):
    assert rewards_of(built(tmp_path / "exact", several(1.0, NOISE), tie_tolerance=0.0)[0]) == [(1.0, NOISE)]
    assert built(tmp_path / "wide", several(1.0, 0.95), tie_tolerance=0.1)[0] == []
    assert rewards_of(built(tmp_path / "near", several(1.0, 0.95), tie_tolerance=0.01)[0]) == [(1.0, 0.95)]
    for bad in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match="tie_tolerance"):
            PairOptions(tie_tolerance=bad)


def test_lint_finds_pairs_that_are_ties(tmp_path):
    pairs, _ = built(tmp_path / "built", several(1.0, NOISE), tie_tolerance=0.0)
    write_pairs(tmp_path / "theirs", [pairs_to_batch(pairs)])
    assert [finding.name for finding in lint_pairs(tmp_path / "theirs")] == ["tied"]
    assert lint_pairs(tmp_path / "built" / "pairs") == []  # built so on request, and funnel.json says it
    assert list(read_pairs(tmp_path / "theirs")) == pairs


def test_a_hint_never_suggests_a_gap_of_float_noise(tmp_path):
    table = made(tmp_path / "experience", several(1.0, NOISE, 0.5))
    hint = build_pairs([table], tmp_path / "pairs", PairOptions(max_gap=0.1))["hint"]
    assert "--max-gap 0.4999999999999998" in hint


@given(ANY, ANY, st.sampled_from([0.0, 1e-9, 0.01, 0.5]))
def test_both_ways_to_decide_a_tie_agree_with_the_definition(one, other, tolerance):
    expected = abs(one - other) <= tolerance * max(abs(one), abs(other), TIE_FLOOR)
    frame = pl.DataFrame({"chosen_reward": [one], "rejected_reward": [other]})
    assert bool(is_tied(np.array([one]), np.array([other]), tolerance)[0]) is expected
    assert frame.select(is_tied_expression(tolerance)).item() is expected


noisy = st.tuples(st.integers(-6, 6), st.sampled_from([0.0, 2e-16, 1e-12, 0.003, 0.02])).map(
    lambda parts: parts[0] / 5 * (1 + parts[1])
)
large = st.sampled_from([1e12, 1e12 + 1, 1e12 + 2000, 3.0, 3.5, 3.5000000001])


def apart(high, low, options):
    return high > low and not abs(high - low) <= options.tie_tolerance * max(abs(high), abs(low), TIE_FLOOR)


@given(
    st.lists(st.tuples(noisy | large, st.sampled_from("abcdef")), min_size=2, max_size=12, unique=True),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([None, 0.5]),
    st.sampled_from([1e-9, 0.01]),
)
@settings(deadline=None)
def test_the_largest_k_are_right_among_noisy_rewards(rows, largest, min_gap, max_gap, tolerance):
    group = group_of(rows)
    options = PairOptions(min_gap=min_gap, max_gap=max_gap, tie_tolerance=tolerance)
    some = group_pairs(group, options, largest=largest)
    gaps = [decimal_gap(high[0], low[0]) for high in rows for low in rows
            if apart(high[0], low[0], options) and high[1] != low[1]]  # fmt: skip
    most = math.inf if max_gap is None else max_gap
    brute = sorted((gap for gap in gaps if min_gap <= gap <= most), reverse=True)
    assert some.gaps.tolist() == pytest.approx(brute[:largest], rel=1e-12)


@given(
    st.lists(noisy | large, min_size=2, max_size=9) | st.lists(noisy | large, min_size=33, max_size=60),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([0.0, 1e-9, 0.01]),
)
@settings(deadline=None)
def test_ties_without_pairs_are_counted_correctly(values, min_gap, max_gap, tolerance):
    values = np.array(sorted(values, reverse=True))
    options = PairOptions(min_gap=min_gap, max_gap=max_gap, tie_tolerance=tolerance)
    pairs = [(high, low) for place, high in enumerate(values) for low in values[place + 1 :]]
    gaps = [decimal_gap(*pair) for pair in pairs if apart(*pair, options)]
    most = math.inf if max_gap is None else max_gap
    expected = (len(pairs) - len(gaps), sum(gap < min_gap for gap in gaps), sum(gap > most for gap in gaps))
    assert count_gaps(np.array([0, len(values)]), values, options) == expected
    assert (
        count_gaps(np.array([0, len(values)]), values, options.model_copy(update={"min_gap": 0.0, "max_gap": None}))[0]
        == expected[0]
    )
