"""Pairs within one run, as NAT has them: candidates of one run's step are compared, those of other runs are not."""

import pytest
from made_tables import built, candidate, dropped, made, rewards_of

from pairwright import Message
from pairwright.engines.process_pool import Pool
from pairwright.errors import ConfigError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import read_pairs
from pairwright.records.experience import Source


def three_runs(num_candidates=3, source=None):
    """Three runs of one task, each with several candidates at one step; no two rewards and no two texts are equal."""
    return [
        candidate((10 * number + run) / 100, run=run, suffix=f"{run}-{number}", source=source)
        for run in range(3)
        for number in range(num_candidates)
    ]


def runs_of(pairs):
    return [(pair.chosen_eid.run, pair.rejected_eid.run) for pair in pairs]


def test_three_runs_of_three_candidates_give_nats_nine_pairs_and_36_across_runs(tmp_path):
    pairs, summary = built(tmp_path / "within", three_runs(), within_run=True)
    assert (len(pairs), summary["stages"][1]["in"]) == (9, 3)
    assert all(chosen == rejected for chosen, rejected in runs_of(pairs))
    assert len(built(tmp_path / "across", three_runs())[0]) == 36


def test_caps_and_the_best_against_the_worst_count_by_run(tmp_path):
    capped, summary = built(tmp_path / "capped", three_runs(), within_run=True, max_pairs_per_group=2)
    assert sorted(runs_of(capped)) == [(run, run) for run in range(3) for _ in range(2)]
    assert dropped(summary) == {Reason.GROUP_CAP: 3}
    extremes, _ = built(tmp_path / "extremes", three_runs(), within_run=True, strategy="best-worst")
    assert sorted(rewards_of(extremes)) == [(0.2, 0.0), (0.21, 0.01), (0.22, 0.02)]


def test_a_run_with_one_candidate_is_single_and_the_hint_says_why(tmp_path):
    _, summary = built(tmp_path, three_runs(num_candidates=1), within_run=True)
    assert dropped(summary) == {Reason.SINGLE: 3}
    assert "--no-within-run" in summary["hint"]


def test_runs_of_several_files_are_several_runs_whatever_their_numbers(tmp_path):
    rows = [candidate(number / 10, run=0, suffix=f"{file}-{number}", source=Source(file))
            for file, number in (("a", 1), ("a", 2), ("b", 3), ("b", 4))]  # fmt: skip
    pairs, _ = built(tmp_path, rows, within_run=True)
    assert sorted(rewards_of(pairs)) == [(0.2, 0.1), (0.4, 0.3)]


def test_contradictions_are_looked_for_between_runs_that_were_compared(tmp_path):
    """A over B in one run and B over A in another: both are seen, although no pair is made across runs."""
    rows = [candidate(reward, text, run=run, suffix=f"{run}{text}")
            for run, text, reward in ((0, "A", 1.0), (0, "B", 0.0), (1, "A", 0.0), (1, "B", 1.0))]  # fmt: skip
    pairs, summary = built(tmp_path, rows, within_run=True)
    assert (pairs, dropped(summary)) == ([], {Reason.CONTRADICTION: 2})
    assert len(built(tmp_path / "kept", rows, within_run=True, contradictions="keep")[0]) == 2


def test_buckets_and_workers_give_the_same_bytes(tmp_path):
    rows = [
        candidate(task + (1 + run) * sign, task=f"t{task}", run=run, suffix=f"{sign}", prompt=(Message("user", f"q{task}"),))
        for task in range(40) for run in range(2) for sign in (-1, 1)
    ]  # fmt: skip
    table = made(tmp_path / "experience", rows)
    options = PairOptions(within_run=True, memory_megabytes=16)
    build_pairs([table], tmp_path / "one", options)
    build_pairs([table], tmp_path / "many", options, engine=Pool(1))
    assert (tmp_path / "one/pairs.parquet").read_bytes() == (tmp_path / "many/pairs.parquet").read_bytes()
    assert len(list(read_pairs(tmp_path / "one"))) == 80


@pytest.mark.parametrize(
    "options", [{"strategy": "divergence"}, {"strategy": "given"}, {"strategy": "stratified", "across_groups": True}]
)
def test_what_compares_runs_with_each_other_refuses_it(options):
    with pytest.raises(ConfigError, match="within_run"):
        PairOptions(within_run=True, **options)
