"""Strategies: exact top K, best against worst, high against low; at the cost of a sort, never of all pairs."""

import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import built, candidate, dropped, rewards_of, several

from pairwright import Message
from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs import PairOptions
from pairwright.pairs.candidates.candidates import Candidates, decimal_gap
from pairwright.pairs.funnel import Reason
from pairwright.pairs.options import Threshold
from pairwright.pairs.strategies.pairing import count_gaps, group_pairs


def group_of(rows):
    """Candidates of one group from (reward, completion hash) in any order."""
    rows = sorted(rows, key=lambda row: (-row[0], row[1]))
    frame = pl.DataFrame({"reward": [row[0] for row in rows], "completion_hash": [row[1].encode().hex().zfill(32) for row in rows]},
                         schema={"reward": pl.Float64, "completion_hash": pl.String})  # fmt: skip
    return Candidates(frame, np.array([0, len(rows)]))


rewards = st.integers(0, 12).map(lambda number: number / 10)


@given(
    st.lists(st.tuples(rewards, st.sampled_from("abcdefgh")), min_size=2, max_size=40, unique=True),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.sampled_from([None, 0.5, 0.7]),
)
@settings(deadline=None)
def test_the_largest_k_are_the_largest_k_of_all(rows, largest, min_gap, max_gap):
    group, size = group_of(rows), len(rows)
    options = PairOptions(min_gap=min_gap, max_gap=max_gap)
    everything = group_pairs(group, options, largest=None)
    some = group_pairs(group, options, largest=largest)
    brute = sorted(
        (decimal_gap(high[0], low[0]) for high in rows for low in rows
         if high[0] > low[0] and high[1] != low[1] and min_gap <= decimal_gap(high[0], low[0]) <= (max_gap or 9)),
        reverse=True,
    )  # fmt: skip
    assert sorted(everything.gaps.tolist(), reverse=True) == brute
    assert some.gaps.tolist() == brute[:largest]
    pairs = zip(-everything.gaps, everything.chosen, everything.rejected, strict=True)
    in_order = sorted(pairs, key=lambda pair: (pair[0], pair[1] + 1 + size - pair[2], pair[1]))
    assert list(zip(some.chosen, some.rejected, strict=True)) == [pair[1:] for pair in in_order[:largest]]


@given(
    st.lists(rewards, min_size=2, max_size=9) | st.lists(rewards, min_size=33, max_size=60),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([None, 0.3, 0.8]),
)
@settings(deadline=None)
def test_pairs_that_were_not_built_are_counted_correctly(values, min_gap, max_gap):
    values = np.array(sorted(values, reverse=True))
    gaps = [decimal_gap(high, low) for place, high in enumerate(values) for low in values[place + 1 :]]
    expected = (
        sum(gap == 0 for gap in gaps), sum(0 < gap < min_gap for gap in gaps),
        0 if max_gap is None else sum(gap > max_gap for gap in gaps),
    )  # fmt: skip
    options = PairOptions(min_gap=min_gap, max_gap=max_gap)
    assert count_gaps(np.array([0, len(values)]), values, options) == expected


def test_the_best_hundred_of_a_group_of_twenty_thousand_cost_about_a_sort(peak_memory):
    rng = random.Random(0)
    group = group_of([(rng.random(), f"{number:05}") for number in range(20_000)])
    with peak_memory(limit=20 * 2**20):
        pairs = group_pairs(group, PairOptions(), largest=100)
    assert len(pairs.chosen) == 100
    assert pairs.gaps[0] == pytest.approx(group.rewards[0] - group.rewards[-1])


def test_the_largest_gaps_under_a_bound_do_not_need_all_pairs_either(peak_memory):
    group = group_of([(number / 20_000, f"{number:05}") for number in range(20_000)])
    with peak_memory(limit=20 * 2**20):
        pairs = group_pairs(group, PairOptions(max_gap=0.5), largest=100)
    assert pairs.gaps.tolist() == [0.5] * 100


def test_more_pairs_than_can_be_planned_are_refused_with_the_way_out():
    group = group_of([(float(number), str(number)) for number in range(20_000)])
    with pytest.raises(PairwrightError, match="--max-pairs-per-group"):
        group_pairs(group, PairOptions(), largest=None)


def test_the_cap_of_a_group_keeps_the_largest_gaps_and_counts_the_rest(tmp_path):
    pairs, summary = built(tmp_path, several(0.9, 0.7, 0.5, 0.1), max_pairs_per_group=2)
    assert rewards_of(pairs) == [(0.9, 0.1), (0.7, 0.1)]
    assert dropped(summary) == {Reason.GROUP_CAP: 4}


def test_best_and_worst_of_the_same_text_give_way_to_the_next_largest_gap(tmp_path):
    rows = [candidate(1.0, "same"), candidate(0.0, "same", run=1), candidate(0.7, "other", run=2)]
    pairs, _ = built(tmp_path, rows, strategy="best-worst", contradictions="keep")
    assert rewards_of(pairs) == [(0.7, 0.0)]


def test_stratified_pairs_high_with_low_inside_a_group(tmp_path):
    pairs, summary = built(tmp_path, several(0.9, 0.7, 0.5, 0.4, 0.1), strategy="stratified")
    assert set(rewards_of(pairs)) == {(0.9, 0.4), (0.9, 0.1), (0.7, 0.4), (0.7, 0.1)}
    assert dropped(summary) == {Reason.NOT_PICKED: 6}


def test_thresholds_may_be_quantiles(tmp_path):
    rows = several(10.0, 20.0, 30.0, 40.0, 50.0)
    pairs, _ = built(tmp_path, rows, strategy="stratified", high=Threshold.parse("q0.8"), low="q0.2")
    assert set(rewards_of(pairs)) == {(40.0, 10.0), (50.0, 10.0)}


@pytest.mark.parametrize("text", ["q1.5", "high", "", "q", "nan", "0.5.5"])
def test_an_invalid_threshold_is_refused(text):
    with pytest.raises(ConfigError, match=r"high: .*expected a reward"):
        PairOptions(strategy="stratified", high=text)


def test_no_candidate_above_the_threshold_names_the_value_that_would_do(tmp_path):
    pairs, summary = built(tmp_path, several(0.6, 0.1), strategy="stratified")
    assert (pairs, dropped(summary)) == ([], {Reason.NOT_HIGH: 1})
    assert "--high 0.6 would let some through, now 0.7" in summary["hint"]


def prompts_apart(count):
    return [
        candidate(
            1.0 if number % 2 else 0.0, f"answer {number}", task=f"t{number}", prompt=(Message("user", f"q{number}"),)
        )
        for number in range(count)
    ]


def test_across_groups_only_on_request_capped_and_marked(tmp_path):
    rows = prompts_apart(40)
    assert built(tmp_path / "a", rows, strategy="stratified")[0] == []
    pairs, _ = built(tmp_path / "b", rows, strategy="stratified", across_groups=True, max_per_chosen=3)
    assert len(pairs) == 20 * 3
    assert all(pair.info["across_groups"] is True for pair in pairs)
    for uid in {pair.chosen_eid.uid for pair in pairs}:
        assert len({pair.rejected_eid.uid for pair in pairs if pair.chosen_eid.uid == uid}) == 3


def test_both_prompts_of_a_pair_across_groups_are_on_one_side_of_the_split(tmp_path):
    rows = [
        candidate(float(number % 4 > 0), f"answer {number}", task=number, prompt=(Message("user", f"q{number}"),))
        for number in range(80)
    ]
    pairs, _ = built(tmp_path, rows, strategy="stratified", across_groups=True, validation=0.3)
    assert len(pairs) == 60  # each of the 20 rejected ones is in three of them
    tasks = [
        {eid.task for pair in pairs if pair.split == split for eid in (pair.chosen_eid, pair.rejected_eid)}
        for split in ("train", "validation")
    ]
    assert all(tasks)
    assert not tasks[0] & tasks[1]
