"""`--where`: a condition on one row's columns, and nothing else."""

import polars as pl
import pytest

from pairwright import EID, ConfigError, Experience, Message, PairwrightError, Table
from pairwright.store.columns import parse_where
from pairwright.store.exporting import filter_table
from pairwright.store.importing import import_files
from pairwright.store.segments import read_labels


@pytest.fixture
def table(tmp_path):
    with Table(tmp_path / "t") as table:
        table.append([
            Experience(
                eid=EID("b", f"t{number}", number, 0, "s"), kind="single_turn", prompt=[Message("user", "hi")],
                completion=[Message("assistant", "x" * number)], reward=None if number == 3 else number / 4,
            )
            for number in range(5)
        ])  # fmt: skip
    return table


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("reward > 0.2", [1, 2, 4]),
        ("reward > 0.2 AND task != 't4'", [1, 2]),
        ("NOT (reward > 0.2)", [0]),
        ("reward IS NULL OR run IN (0, 1)", [0, 1, 3]),
        ("run BETWEEN 1 AND 2", [1, 2]),
        ("completion LIKE '%xxx%'", [3, 4]),
        ("coalesce(reward, 0) = 0", [0, 3]),
        ("num_completion_characters % 2 = 0", [0, 2, 4]),
        ("task IN ('Agg', 'Over', 't1')", [1]),
        ("CASE WHEN run = 1 THEN true ELSE false END", [1]),
    ],
)
def test_a_condition_holds_for_these_rows(table, text, runs):
    condition = parse_where(text)
    assert [exp.eid.run for exp in table.records(condition)] == runs
    assert table.count(condition) == len(runs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope > 1", "no column 'nope'; the table has uid, tid"),
        ("reward", "Boolean"),
        ("reward > 'a'", "cannot compare"),
        ("reward > (", "--where"),
        ("", "--where"),
        ("reward > 0.5; drop", "--where"),
        ("1 = 1", "one row's columns"),
        ("reward > avg(reward)", "one row's columns"),
        ("sum(reward) > 1", "one row's columns"),
        ("count(*) > 1", "one row's columns"),
        ("row_number() over () > 1 and reward > 0", "one row's columns"),
        ("rank() over (order by reward) = 1", "one row's columns"),
        ("lag(reward) over (order by task) > 1", "one row's columns"),
        ("reward > (select 1)", "one row's columns"),
        ("read_csv('/etc/passwd') = task", "unsupported function"),
    ],
)
def test_anything_else_is_refused(text, message):
    with pytest.raises(ConfigError, match=r".*") as caught:
        parse_where(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_filtered_table_has_the_rows_the_labels_and_is_never_empty(tmp_path):
    rows = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "reward": %s}\n'
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.jsonl").write_text(rows % 1 + rows % 0)
    table = Table(tmp_path / "t")
    import_files([str(tmp_path / "in")], table)
    assert filter_table(table, tmp_path / "good", parse_where("reward > 0.5")) == (4, 2)
    good = Table(tmp_path / "good", create=False)
    assert list(good.records()) == list(table.records(pl.col("reward") > 0.5))
    assert read_labels(good.path) == read_labels(table.path)
    summary = import_files([str(tmp_path / "in" / "b" / "x.jsonl")], good)
    assert (summary.total("already_there"), good.count()) == (1, 3)
    with pytest.raises(PairwrightError, match="none of 4 rows"):
        filter_table(table, tmp_path / "none", parse_where("reward > 7"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(PairwrightError, match="a table already"):
        filter_table(table, tmp_path / "good", parse_where("reward > 0.5"))
