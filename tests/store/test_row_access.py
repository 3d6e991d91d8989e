"""Tables and pairs as sequences: length, indexing, filters, data frames, and what a notebook shows."""

import pytest

import pairwright as pw
from pairwright.store.table import Table
from training.made_runs import make_pairs


def run(number, reward, text="hi"):
    eid = pw.EID(task=number, run=0, suffix="x")
    return pw.Experience(eid=eid, kind="single_turn", prompt=[{"role": "user", "content": text}], reward=reward)


@pytest.fixture
def table(tmp_path):
    """Ten experiences in a part and a journal, which numbers run through."""
    with Table(tmp_path / "table") as first:
        first.append([run(number, number / 10) for number in range(6)])
    second = Table(tmp_path / "table")
    second.append([run(number, number / 10) for number in range(6, 10)])
    return second


def tasks(rows):
    return [row.eid.task for row in rows]


def test_a_table_is_a_sequence(table):
    assert len(table) == 10
    assert tasks(table) == list(range(10))
    assert table[3].eid.task == 3
    assert table[-1].eid.task == 9
    for key in (slice(2), slice(4, 8), slice(None, None, 3), slice(None, None, -1), slice(7, 2, -2), slice(5, 5)):
        assert tasks(table[key]) == list(range(10))[key]
    with pytest.raises(IndexError, match="10: there are 10 rows"):
        table[10]
    with pytest.raises(TypeError, match="filter"):
        table["reward > 1"]


def test_a_filter_is_a_view_that_can_be_filtered_again(table):
    view = table.filter("reward > 0.25").filter("reward < 0.75 OR reward > 0.85")
    assert tasks(view) == [3, 4, 5, 6, 7, 9]
    assert len(view) == 6
    assert view[-1].eid.task == 9
    assert view.lazy().collect().height == 6
    assert view.count() == len(view.to_polars()) == len(view.to_pandas()) == len(view.to_hf()) == len(view.head(10))
    assert repr(view).endswith(".filter('(reward > 0.25) AND (reward < 0.75 OR reward > 0.85)')")
    assert len(table) == 10
    with pytest.raises(pw.ConfigError, match="no column 'rewrd'"):
        table.filter("rewrd > 1")
    with pytest.raises(pw.ConfigError, match="no comments"):
        table.filter("reward > 0 -- or not")


def test_a_filtered_delete_removes_what_the_view_shows(table):
    import polars as pl

    assert table.filter("reward > 0.25").delete(pl.col("reward") < 0.55) == 3
    assert tasks(pw.Table(table.path)) == [0, 1, 2, 6, 7, 8, 9]


def test_pairs_of_a_filtered_table_are_of_its_rows(tmp_path):
    with pw.Table(tmp_path / "experience") as table:
        for task in range(3):
            for number in range(2):
                answer = [pw.Message("assistant", f"answer {number}")]
                prompt = [{"role": "user", "content": f"task {task}"}]
                eid = pw.EID(task=task, run=number)
                table.append([
                    pw.Experience(eid=eid, kind="single_turn", prompt=prompt, completion=answer, reward=number)
                ])  # fmt: skip
    pairs = table.filter("task = '1'").pairs(tmp_path / "pairs")
    assert [pair.chosen_eid.task for pair in pairs] == [1]
    assert len(table.pairs()) == 3
    assert pw.Pairs(str(tmp_path / "pairs")).funnel["pairs"] == 3  # the default folder is beside the table


def test_pairs_are_a_sequence_with_views_that_can_be_used_like_a_folder(tmp_path):
    pairs = pw.Pairs(make_pairs(tmp_path / "pairs", 6, held=2))
    assert len(pairs) == len(list(pairs)) == 8
    assert pairs[0] == next(iter(pairs))
    assert [pair.id for pair in pairs[1:3]] == [pair.id for pair in list(pairs)[1:3]]
    held = pairs.filter("split = 'validation'")
    assert len(held) == 2
    assert {pair.split for pair in held} == {"validation"}
    assert held.stats()["pairs"] == 2
    assert held.export("trl", tmp_path / "held.jsonl").written == 2
    assert len(held.save(str(tmp_path / "saved"))) == 2
    assert held.to_hf().column_names[:1] == ["prompt"]
    assert len(held.to_polars()) == len(held.to_pandas()) == 2
    with pytest.raises(pw.ConfigError, match="did you mean 'trl'"):
        pairs.export("trll", tmp_path / "x")
    with pytest.raises(pw.ConfigError, match="expected among split"):
        pairs.export("trl", tmp_path / "x", splits="all")


def test_an_empty_folder_says_how_to_build_pairs(tmp_path):
    with pytest.raises(pw.TableError, match=r"no pairs here; build some with pairwright.Table\(...\).pairs"):
        pw.Pairs(tmp_path)
    with pytest.raises(pw.TableError, match="no pairs here"):
        pw.Pairs(tmp_path / "missing")
    with pytest.raises(pw.ConfigError, match="no pairs, experience table or encoded sequences"):
        pw.train(tmp_path, model=tmp_path, output=tmp_path / "out")


def test_a_notebook_shows_a_few_rows_with_text_escaped(tmp_path):
    with pw.Table(tmp_path / "table") as table:
        table.append([run(number, 1.0, "<script>alert(1)</script>" * 9) for number in range(7)])
    shown = table._repr_html_()
    assert "7 rows" in shown
    assert shown.count("<tr>") == 6
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert len(shown) < 4000
