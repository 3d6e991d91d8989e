"""Real traces all the way: imported, paired by divergence, exported to every target, and every step adds up."""

import json

import pytest

from pairwright import Table
from pairwright.export import EXPORTERS, ExportOptions
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.funnel import Reason, funnel_rows, read_funnel
from pairwright.pairs.pair_stats import pair_statistics
from pairwright.pairs.pair_table import read_pairs
from pairwright.store.importing import import_files

# How many pairs the runs of a folder give.
CASES = {"nat_intermediate_steps": 5, "nemo_gym": 2}


@pytest.fixture(scope="module", params=CASES)
def built(request, traces, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with Table(folder / "experience") as table:
        import_files([str(traces / request.param)], table, num_workers=1)
    summary = build_pairs([table], folder / "pairs", PairOptions(strategy="divergence"))
    return folder / "pairs", summary, CASES[request.param]


def test_the_funnel_of_real_traces_adds_up_and_is_written(built):
    folder, summary, num_pairs = built
    assert read_funnel(folder) == summary
    assert summary["pairs"] == num_pairs == len(list(read_pairs(folder)))
    for stage in summary["stages"]:
        assert stage["in"] == stage["out"] + sum(drop["count"] for drop in stage["drops"])
    assert [row for row in funnel_rows(summary) if row[:2] == ("pairs", "out")] == [("pairs", "out", num_pairs)]


def test_pairs_of_real_traces_start_where_the_runs_part(built):
    folder, _, _ = built
    for pair in read_pairs(folder):
        assert pair.chosen[0] != pair.rejected[0]
        assert pair.chosen_reward > pair.rejected_reward
        assert len(pair.prompt) == pair.info["divergence"]
    assert pair_statistics(folder)["empty_sides"] == 0


@pytest.mark.parametrize("target", EXPORTERS)
def test_pairs_of_real_traces_go_to_every_target_or_are_refused_with_a_reason(built, target, tmp_path):
    if target == "hf":
        pytest.importorskip("datasets")
    folder, _, num_pairs = built
    summary = EXPORTERS[target](folder, tmp_path / "out", ExportOptions(history=target == "customizer"))
    assert summary.pairs == num_pairs == summary.written + sum(summary.refused.values())
    assert all(summary.examples[reason] for reason in (*summary.refused, *summary.noted))
    if target not in ("parquet", "hf"):
        lines = (tmp_path / "out").read_text().splitlines()
        assert [type(json.loads(line)) for line in lines] == [dict] * summary.rows


def test_runs_that_part_at_the_environment_say_why_they_are_no_pairs(traces, tmp_path):
    with Table(tmp_path / "experience") as table:
        import_files([str(traces / "tau_bench")], table, num_workers=1)
    summary = build_pairs([table], tmp_path / "pairs", PairOptions(strategy="divergence"))
    assert summary["pairs"] == 0
    assert Reason.ENVIRONMENT.value in summary["hint"]
    assert "users and tools that answer alike" in summary["hint"]
