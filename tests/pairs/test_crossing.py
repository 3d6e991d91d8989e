"""Pairs across scorers, models and system prompts are counted, found by lint, and forbidden by `within`."""

import json

import pytest

from pairwright.errors import ConfigError
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pair_stats import lint_pairs
from pairwright.store.importing import import_files
from pairwright.store.table import Table


def table_of(tmp_path, files):
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = Table(tmp_path / "t")
    import_files([str(tmp_path / name) for name in files], table)
    return table


def row(number, answer, score, model, **more):
    return {"prompt": f"Question {number}?", "response": answer, "score": score, "model": model, **more}


@pytest.fixture
def table(tmp_path):
    """Two files: in one all answers have 1, in the other 0; within a third, answers of both scores."""
    return table_of(
        tmp_path,
        {
            "all_good.jsonl": [row(n, f"good {n}", 1.0, "m1", team="x") for n in range(3)],
            "all_bad.jsonl": [row(n, f"bad {n}", 0.0, "m2", team="x") for n in range(3)],
            "mixed.jsonl": [row(9, "right", 0.9, "m1"), row(9, "wrong", 0.1, "m1")],
        },
    )


def test_pairs_of_disjoint_files_and_of_different_models_are_counted(table, tmp_path):
    summary = build_pairs([table], tmp_path / "p")
    assert summary["pairs"] == 4
    assert summary["crossing"] == {"files with disjoint rewards": 3, "models": 3}
    assert {finding.name for finding in lint_pairs(tmp_path / "p")} >= {"crossing-files", "crossing-models"}


@pytest.mark.parametrize("within", ["model", "source"])
def test_within_forbids_them(table, tmp_path, within):
    summary = build_pairs([table], tmp_path / "p", PairOptions(within=within))
    assert (summary["pairs"], summary.get("crossing")) == (1, None)
    assert not [finding for finding in lint_pairs(tmp_path / "p") if finding.name.startswith("crossing")]


def test_within_takes_a_field_of_info(table, tmp_path):
    assert build_pairs([table], tmp_path / "p", PairOptions(within="team"))["pairs"] == 4
    with pytest.raises(ConfigError, match="no experience has 'color'"):
        build_pairs([table], tmp_path / "q", PairOptions(within="color"))


def test_within_is_for_strategies_that_compare_groups():
    with pytest.raises(ConfigError, match="within: smaller groups"):
        PairOptions(within="model", strategy="divergence")


def test_within_is_the_same_in_many_buckets(table, tmp_path, monkeypatch):
    whole = build_pairs([table], tmp_path / "p", PairOptions(within="model"))
    monkeypatch.setattr("pairwright.pairs.build.num_buckets", lambda tables, options: 4)
    assert build_pairs([table], tmp_path / "q", PairOptions(within="model")) == whole


def test_overlapping_files_of_one_model_are_not_a_crossing(tmp_path):
    files = {
        "a.jsonl": [row(0, "x", 1.0, "m"), row(1, "y", 0.2, "m")],
        "b.jsonl": [row(0, "z", 0.4, "m"), row(1, "w", 0.9, "m")],
    }
    summary = build_pairs([table_of(tmp_path, files)], tmp_path / "p")
    assert (summary["pairs"], summary.get("crossing")) == (2, None)


def test_pairs_across_system_prompts_are_counted(tmp_path):
    rows = [row(0, "x", 0.9, "m", system="Be kind."), row(0, "y", 0.1, "m", system="Be rude.")]
    table = table_of(tmp_path, {"a.jsonl": rows})
    options = PairOptions(strategy="stratified", across_groups=True)
    assert build_pairs([table], tmp_path / "p", options)["crossing"] == {"system prompts": 1}
