"""`--where`: a condition on one row's columns, and nothing else."""

import contextlib
import ctypes
import os
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import polars as pl
import pytest

from pairwright import EID, ConfigError, Experience, Message, PairwrightError, Table
from pairwright.store.conditions import parse_where
from pairwright.store.exporting import filter_table
from pairwright.store.file_labels import read_labels
from pairwright.store.importing import import_files


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
        ("(reward > 0.2) IS NOT TRUE", [0, 3]),
        ("CAST(task AS INT) IS NULL", [0, 1, 2, 3, 4]),
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
        ("reward", "at character 1: a value of type Float64, expected a condition"),
        ("task AND run > 1", "at character 1: a value of type String, expected a condition"),
        ("(run AND 3) > 1", "at character 2: a value of type Int64, expected a condition"),
        ("run IS TRUE", "expected a condition"),
        ("run > 1 task", "at character 9: expected AND, OR or the end, got 'task'"),
        ("task = 'x", "at character 8: a quote that is not closed"),
        ('task = "x"', "a text has single quotes: 'x'"),
        ("Reward > 1", "did you mean reward?"),
        ("run IN (1, 'a')", "either numbers or 'texts'"),
        ("run IN (1, NULL)", "IS NULL"),
        ("run IN ('a')", "is_in"),
        ("run IN ()", "at character 9: expected a column, a number or a 'text', got ')'"),
        ("task LIKE task", "at character 11: LIKE takes a 'text'"),
        ("ABS(run, 1) = 1", "ABS has 2 arguments, expected 1"),
        ("CAST(run AS date) = 1", "no type 'date'; there are INT"),
        ("run = 1e999", "too large"),
        ("CASE run END", "expected WHEN after CASE"),
        ("a.b = 1", "at character 2: cannot read '.b = 1'"),
        ("run BETWEEN 1", "expected AND, got the end"),
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


# Each was opened by an SQL parser while it parsed the text, or would take the process with it.
HOSTILE = (
    "task IN (SELECT a FROM read_csv('{place}'))",
    "task IN (SELECT * FROM read_parquet('{place}'))",
    "task IN (SELECT * FROM read_json('{place}'))",
    "task IN (SELECT * FROM read_ipc('{place}'))",
    "task = (SELECT * FROM scan_csv('{place}'))",
    "EXISTS (SELECT 1 FROM read_csv('{place}'))",
    "task = ANY(SELECT a FROM read_csv('{place}'))",
    "task IN (WITH t AS (SELECT * FROM read_csv('{place}')) SELECT a FROM t)",
    "read_csv('{place}') = task",
    "task = 'x' UNION SELECT * FROM read_csv('{place}')",
    "task IN (FROM '{place}')",
    "task IN (read_csv('{place}'))",
)


@pytest.fixture
def opened(tmp_path):
    """A file and an HTTP server, and a function that lists what has asked for them since."""
    file, requests = tmp_path / "secret.csv", []
    file.write_text("the_secret\n1\n")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(404)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, os.fsencode(file), 0x20)  # IN_OPEN

    def asked():
        try:
            return [*requests, os.read(watch, 4096)]
        except BlockingIOError:
            return list(requests)

    yield str(file), f"http://127.0.0.1:{server.server_port}/secret.csv", asked
    os.close(watch)
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_condition_opens_nothing(opened, text):
    file, address, asked = opened
    for place in (file, address):
        with pytest.raises(ConfigError) as caught:
            parse_where(text.format(place=place))
        assert "the_secret" not in str(caught.value)
    assert asked() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 50_000 + "run > 0", "nested more than 40 deep"),
        ("NOT " * 20_000 + "run > 0", "nested more than 40 deep"),
        ("- " * 20_000 + "1 < run", "nested more than 40 deep"),
        ("ABS(" * 20_000 + "run", "nested more than 40 deep"),
        ("CASE WHEN " * 5_000 + "run", "nested more than 40 deep"),
        ("run > 0" + " AND run > 0" * 5_000, "more than 500 values"),
        ("run > 0" + " + 1" * 5_000, "more than 500 values"),
        ("CASE" + " WHEN run = 0 THEN true" * 1_000 + " END", "more than 500 values"),
        ("x" * 100_001, "100,001 characters, at most 100,000"),
        ("task LIKE '" + "_%" * 40_000 + "'", "the pattern is too long"),
    ],
)
def test_a_condition_is_bounded(text, message):
    with pytest.raises(ConfigError) as caught:
        parse_where(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_long_conditions_within_the_bounds_hold(table):
    names = ", ".join(f"'u{number}'" for number in range(8_000))
    chain = " OR ".join(f"run = {number}" for number in range(100, 340))
    for text in (f"task IN ({names}, 't1')", f"{chain} OR run = 1", f"{'(' * 35}run = 1{')' * 35}"):
        assert [exp.eid.run for exp in table.records(parse_where(text))] == [1]


def test_any_text_is_a_condition_or_refused():
    words = (
        "run", "reward", "task", "'a'", "1", "0.5", "(", ")", ",", "AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "-",
        "+", "*", "/", "%", "||", "=", "<", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "AS", "INT", "TRUE",
        "run > 1", "task = 'a'", "reward IS NULL", "run IN (1, 2)", "AND", "OR", "ABS", "COALESCE", "LENGTH", "SUBSTR", "tokens", "arrays", ";", ".", "\"x\"", "SELECT", "\0", "é",
    )  # fmt: skip
    chance = random.Random(34)
    num_read = 0
    for _ in range(2_000):
        text = " ".join(chance.choices(words, k=chance.randint(1, 5)))
        with contextlib.suppress(ConfigError):
            parse_where(text)
            num_read += 1
    assert num_read


@pytest.mark.parametrize(
    "text",
    [
        "reward > 0.2 AND NOT task = 't4' OR run = 0",
        "NOT run = 1 AND run < 3",
        "reward IN (0, 0.25, 1)",
        "run IN (1, 2.0)",
        "run NOT IN (1, 2)",
        "run NOT BETWEEN 1 AND 2 AND task <> 't0'",
        "task NOT LIKE 't1'",
        "task LIKE '_3' OR task ILIKE 'T4'",
        "NOT task LIKE 't.' AND task NOT LIKE '%[%'",
        "reward IS NOT NULL AND reward <= .5e0",
        "-run < -2 AND - 1 + run > 1",
        "run - 1 - 1 = 0 OR run * 2 + 1 = 3 OR run / 2 = 1.5",
        "run % 2 = 1 AND 'x' || task = 'xt1'",
        "STRPOS(task, '3') > 0",
        "LENGTH(completion) > 10 AND UPPER(task) = 'T4'",
        "ABS(run - 3) <= 1 AND ROUND(reward) = 1",
        "COALESCE(reward, run) = 3",
        "NULLIF(run, 1) IS NULL",
        "GREATEST(run, 2) = 2 AND LEAST(run, 2) > 0",
        "SUBSTR(task, 2, 1) = '3' OR LEFT(task, 1) = RIGHT(task, 1)",
        "STARTS_WITH(task, 't') AND ENDS_WITH(task, '2')",
        "CASE WHEN run = 1 THEN 'a' WHEN run = 2 THEN 'b' ELSE 'c' END = 'b'",
        "CAST(run AS text) = '2' OR CAST(reward AS DOUBLE) = 1",
        "POWER(run, 2) = 4 OR SQRT(run) = 1 OR SIGN(run) = 0 OR MOD(run, 4) = 3",
        "\"run\" = 1 or TRIM(task) = 't2'",
        "task = 'it''s' OR task = 't1'",
    ],
)
def test_a_condition_means_what_it_means_in_sql(table, text):
    frame = table.to_polars()
    assert frame.filter(parse_where(text))["run"].to_list() == frame.filter(pl.sql_expr(text))["run"].to_list() != []


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
