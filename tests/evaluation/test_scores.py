"""Scores as they are found: CSV, JSON, JSON lines, experience tables; and the command that compares them."""

import json
import subprocess
import sys

import polars as pl
import pytest

from pairwright import EID, Experience, Message, Table
from pairwright.errors import ConfigError, SourceError
from pairwright.evaluation import read_evaluation, read_scores


def file(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def experiences(rewards, **fields):
    for task, values in rewards.items():
        for run, reward in enumerate(values):
            yield Experience(
                eid=EID("eval", task, run, 0, "s"), kind="single_turn", prompt=[Message("user", str(task))],
                completion=[Message("assistant", "x")], reward=reward, **fields,
            )  # fmt: skip


def table(folder, rows):
    with Table(folder) as opened:
        opened.append(list(rows))
    return folder


def test_the_same_scores_come_from_every_kind_of_file(tmp_path):
    rows = [
        {"task": "a", "run": 0, "score": 0.5},
        {"task": "a", "run": 1, "score": 1},
        {"task": "b", "run": 0, "score": None},
    ]
    found = [
        read_scores(file(tmp_path, "x.csv", "\ufefftask,run,score\na,0,0.5\na,1,1\nb,0,\n")),
        read_scores(file(tmp_path, "x.json", json.dumps(rows))),
        read_scores(file(tmp_path, "x.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")),
    ]
    for scores in found:
        assert scores.runs == {("a", 0): {"score": 0.5}, ("a", 1): {"score": 1.0}, ("b", 0): {"score": None}}


def test_a_non_numeric_value_is_not_a_score(tmp_path):
    rows = [{"id": 7, "score": {"$float": "nan"}, "note": "fine", "ok": True, "huge": 10**400, "list": [1]}]
    scores = read_scores(file(tmp_path, "x.json", json.dumps(rows)))
    assert scores.runs == {("7", 0): {"score": None, "note": None, "ok": 1.0, "huge": None, "list": None}}
    assert scores.metrics == ["ok"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "score\n1\n", "row 1: no task"),
        ("x.csv", "task,score\na,1,2\n", "more cells"),
        ("x.csv", "task,score\n", "no scores"),
        ("x.json", '{"task": "a"}', "expected a list of rows"),
        ("x.json", "[3]", "expected a task with its scores, got 3"),
        ("x.jsonl", '{"task": "a", "score": 1}\n{"task": ', "x.jsonl:2: not valid JSON"),
        ("x.jsonl", '{"task": "a", "run": "x", "score": 1}', "run is 'x'"),
        ("x.jsonl", '{"task": true, "score": 1}', "no task"),
        ("x.jsonl", '{"task": "a", "score": 1}\n{"task": "a", "score": 2}', "has 2 scores: say which counts"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_with_the_place(tmp_path, name, text, message):
    with pytest.raises(SourceError, match=message):
        read_scores(file(tmp_path, name, text))


def test_files_of_another_kind_or_none_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown ending '.txt'"):
        read_scores(file(tmp_path, "x.txt", ""))
    with pytest.raises(SourceError, match="no such file"):
        read_scores(tmp_path / "none.csv")
    with pytest.raises(SourceError, match="no experience table in this folder"):
        read_scores(tmp_path)


def test_a_table_gives_rewards_components_and_metrics(tmp_path):
    rows = experiences(
        {"a": [0.5], "b": [float("nan")]}, reward_components={"win": 1, "why": "text"}, metrics={"steps": 4, "win": 9}
    )
    scores = read_scores(table(tmp_path / "t", rows))
    assert scores.runs[("a", 0)] == {"steps": 4.0, "win": 1.0, "reward": 0.5}
    assert scores.runs[("b", 0)]["reward"] is None


def steps(rewards):
    for step, reward in reversed(list(enumerate(rewards))):  # appended out of order
        yield Experience(
            eid=EID("b", "a", 0, step, f"s{step}"), kind="single_turn", prompt=[Message("user", "q")], reward=reward
        )


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", 0.2), ("last", 0.2), ("sum", 0.6), ("max", 0.3), ("min", 0.1)]
)
def test_several_scores_of_a_run_are_reduced_by_an_option(tmp_path, reduce, expected):
    folder = table(tmp_path / "t", steps([0.1, 0.3, 0.2]))
    assert read_scores(folder, reduce=reduce).runs == {("a", 0): {"reward": expected}}
    with pytest.raises(SourceError, match="has 3 scores"):
        read_scores(folder)


def test_a_step_without_a_score_leaves_the_run_without_one_unless_the_last_counts(tmp_path):
    folder = table(tmp_path / "t", steps([0.1, None, 0.2]))
    assert read_scores(folder, reduce="mean").runs == {("a", 0): {"reward": None}}
    assert read_scores(folder, reduce="last").runs == {("a", 0): {"reward": 0.2}}


def test_a_condition_picks_rows_of_a_table_only(tmp_path):
    folder = table(tmp_path / "t", experiences({"a": [0.5], "b": [1.0]}))
    assert list(read_scores(folder, where=pl.col("task") == "b").runs) == [("b", 0)]
    with pytest.raises(ConfigError, match="needs an experience table"):
        read_scores(file(tmp_path, "x.csv", "task,score\na,1\n"), where=pl.col("task") == "b")


def command(folder, *words):
    return subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", "evaluate", *map(str, words)],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path):
    lines = {"before": "task,score,lost\n", "after": "task,score,lost\n"}
    for number in range(12):
        lines["before"] += f"t{number},0.25,1\n"
        lines["after"] += f"t{number},{0.0 if number == 3 else 0.75 + number % 2 / 4},{int(number == 3)}\n"
    for name, text in lines.items():
        file(tmp_path, f"{name}.csv", text)
    return tmp_path


def test_the_command_writes_an_evaluation_and_says_what_became_worse(files):
    done = command(
        files,
        "before.csv",
        "after.csv",
        "-o",
        "out",
        "--metric",
        "score",
        "--metric",
        "lost:lower",
        "--min-improvement",
        "0.1",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("score\t0.25\t0.791667\t0.541667\t")
    assert "score: worse on 1 of 12 tasks: 't3' (-0.25)" in done.stderr
    assert "the gate opens: score improved by +0.5417" in done.stderr
    written = read_evaluation(files / "out")
    assert [metric["wins"] for metric in written["metrics"]] == [11, 11]
    assert written["metrics"][1]["mcnemar"]["only_after"] == 11
    tasks = (files / "out" / "evaluation.tasks.csv").read_text().splitlines()
    assert (len(tasks), tasks[4]) == (25, "score,t3,1,0.25,0.0,-0.25,loss")


def test_the_command_ends_with_two_when_the_gate_stays_closed(files):
    done = command(files, "after.csv", "before.csv", "--metric", "score", "--min-improvement", "0", "--json")
    assert (done.returncode, "the gate stays closed" in done.stderr) == (2, True)
    assert json.loads(done.stdout)["passed"] is False


def test_the_command_takes_a_configuration_and_writes_the_same_bytes_again(files):
    file(
        files,
        "c.yaml",
        "seed: 3\nevaluate:\n  metrics: [score, {name: lost, better: lower}]\n  gate: {min_improvement: 0.2, confidence: 0.9}\n",
    )
    for name in ("one", "two"):
        assert command(files, "before.csv", "after.csv", "--config", "c.yaml", "-o", name).returncode == 0
    assert (files / "one/evaluation.json").read_bytes() == (files / "two/evaluation.json").read_bytes()
    written = read_evaluation(files / "one")
    assert (written["options"]["seed"], written["gate"]["confidence"], len(written["metrics"])) == (3, 0.9, 2)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("before.csv", "none.csv"), 1, "none.csv: no such file"),
        (("before.csv", "after.csv"), 0, "12 tasks, 12 runs compared"),
        (("before.csv", "after.csv", "--metric", "loss"), 1, "no run of a task has a score in both"),
        (("before.csv", "after.csv", "--confidence", "1"), 3, "--confidence: got 1.0, expected below 1"),
        (
            ("before.csv", "after.csv", "--missing", "maybe"),
            3,
            "--missing: got 'maybe', expected 'refuse' or 'leave_out'",
        ),
        (("before.csv",), 3, "'after'"),
    ],
)
def test_exit_codes_and_the_way_out(files, words, code, message):
    done = command(files, *words)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
