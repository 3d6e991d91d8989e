"""`pairwright explain`: one command for files, tables, runs and ids; old spellings print the new one."""

import json

import pytest
from test_cli_overrides import run

from pairs.made_tables import candidate, made
from pairwright.cli.renamed import RENAMED
from pairwright.pairs import PairOptions, build_pairs

__all__ = ["run"]


@pytest.fixture
def tables(tmp_path):
    rows = [candidate(0.9, "yes"), candidate(0.1, "no", run=1), candidate(None, "maybe", run=2)]
    table = made(tmp_path / "runs" / "first" / "experience", rows)
    build_pairs([table], tmp_path / "runs" / "first" / "pairs", PairOptions())
    (tmp_path / "rows.csv").write_text("question,answer,score\na,b,1\n")
    return [row.eid.uid for row in table.records()]


def test_a_file_is_explained_by_its_fields(run, tables):
    code, out, _ = run("explain", "rows.csv")
    assert (code, "answer    ->  completion (assistant)" in out) == (0, True)
    code, out, _ = run("explain", "rows.csv", "--map", "prompt=answer,completion=question", "--json")
    assert [field["becomes"] for field in json.loads(out)[0]["records"][0]["fields"]][:2] == [
        "completion (assistant)", "prompt (user)",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["runs/first", "runs/first/pairs", "runs/first/experience"])
def test_a_table_is_explained_by_its_funnel_and_an_id_in_it_by_its_pairs(run, tables, path):
    code, out, err = run("explain", path)
    assert (code, "experiences\tin\t3" in out, "runs/first/pairs ID" in err) == (0, True, True)
    code, out, err = run("explain", path, tables[0])
    assert (code, out.count("\npair "), "in 1 pairs of" in err) == (0, 1, True)
    pair = out.partition("\npair ")[2].partition(":")[0]
    assert json.loads(run("explain", path, pair, "--json")[1])["chosen_uid"] == tables[0]
    code, _, err = run("explain", path, "nosuch")
    assert (code, "no experience and no pair with that id" in err) == (1, True)


def test_an_id_alone_is_found_below_runs(run, tables):
    code, out, _ = run("explain", tables[2], "--json")
    assert (code, json.loads(out)["reason"].startswith("unscored")) == (0, True)
    code, _, err = run("explain", "nosuch.csv")
    assert (code, "nosuch.csv: no such file or folder; as an id:" in err) == (1, True)


def test_a_table_without_pairs_says_how_to_make_some(run, tmp_path):
    made(tmp_path / "experience", [candidate(0.9, "yes")])
    code, _, err = run("explain", "experience")
    assert (code, "Next: pairwright pairs experience -o DIR" in err) == (1, True)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_spelling_prints_the_new_command_with_its_arguments(run, tables, old, new):
    code, out, err = run(*old, "runs/first/pairs", "a b")
    assert (code, out) == (3, "")
    assert err.endswith(f"is now: pairwright {' '.join(new)} runs/first/pairs 'a b'\n")
