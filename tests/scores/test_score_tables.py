"""Scores beside the experiences: programs over tables, views with a score, pairs by a score, crashes and bad input."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from typer.testing import CliRunner

import pairwright as pw
from pairwright.cli.main import app
from pairwright.engines import Pool
from pairwright.errors import ConfigError, PairwrightError, TableError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.scorers.programs import _run_command
from pairwright.scores.score_tables import split_name
from pairwright.store.score_log import ScoreLog, ScoreRow, list_scorers, read_one_score, read_score_log


def a_run(task, run, text, reward=None, **info):
    return pw.Experience(
        eid=pw.EID(task=task, run=run, suffix=f"{task}-{run}"),
        kind="single_turn",
        prompt=[{"role": "user", "content": f"question {task}"}],
        completion=[{"role": "assistant", "content": text}],
        reward=reward,
        info=info,
    )


@pytest.fixture
def table(tmp_path):
    with pw.Table(tmp_path / "experience") as table:
        table.append([a_run(f"t{task}", run, "x" * (run + 1), answer="xx") for task in range(3) for run in range(4)])
    return pw.Table(tmp_path / "experience")


def length(run):
    return len(run.completion[0].text)


def test_scores_are_stored_beside_and_rewards_stay(table):
    summary = table.score(length)
    assert (summary.scored, summary.kept, summary.means) == (12, 0, {"score": 2.5})
    assert list_scorers(table.path) == ["length"]
    assert [run.reward for run in table] == [None] * 12
    assert [run.reward for run in table.with_score("length")] == [1, 2, 3, 4] * 3
    assert len(table.with_score("length").filter("reward >= 3")) == 6
    assert table.with_score("length").with_score(None)[0].reward is None


def test_the_same_command_again_scores_only_what_is_missing(table):
    table.score(length)
    with pw.Table(table.path) as more:
        more.append([a_run("t9", 0, "xxxxx")])
    summary = pw.Table(table.path).score(length)
    assert (summary.scored, summary.kept, summary.means) == (1, 12, {"score": 35 / 13})


def test_a_changed_scorer_scores_everything_again_and_old_scores_no_longer_count(table, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def rate(run):\n    return 1.0\n")
    table.score(f"{file}:rate")
    for name in [name for name in sys.modules if name.startswith("pairwright_user_mine")]:
        sys.modules.pop(name)
    file.write_text("def rate(run):\n    return None if run.eid.run else 2.0\n")
    summary = table.score(f"{file}:rate")
    assert (summary.scored, summary.kept, summary.unscored) == (3, 0, 9)
    assert read_one_score(table.path, "rate")["score"].to_list() == [2.0] * 3


def test_several_criteria_have_a_mean_and_are_chosen_by_name(table):
    table.score(lambda run: {"short": 1 / length(run), "long": length(run)}, name="both")
    frame = read_score_log(table.path, "both")
    assert set(frame["criterion"]) == {"score", "short", "long"}
    assert [run.reward for run in table.with_score("both.long")][:4] == [1, 2, 3, 4]
    assert table.with_score("both")[1].reward == pytest.approx((0.5 + 2) / 2)
    with pytest.raises(TableError, match=r"no score named 'wide'; it has long, score, short"):
        table.with_score("both.wide")
    with pytest.raises(TableError, match=r"no scores of 'other'; there are: both"):
        table.with_score("other")


@pytest.mark.parametrize(
    ("value", "cause"),
    [("good", "expected a number"), (float("nan"), "expected a finite number"), ({"a": "b"}, "expected a number"),
     ([1.0], "expected a number")],
)  # fmt: skip
def test_a_non_numeric_score_is_a_failure(table, value, cause):
    summary = table.score(lambda run: value, name="odd")
    assert summary.scored == 0
    assert summary.failures.total() == 12
    assert cause in next(iter(summary.failures))
    assert not read_score_log(table.path, "odd").height


def test_failures_are_repeated_by_the_next_run(table):
    fails = {"now": True}

    def rate(run):
        if fails["now"] and run.eid.run == 1:
            raise ZeroDivisionError("oh")
        return 1.0

    assert table.score(rate).failures == {"rate: ZeroDivisionError: oh": 3}
    fails["now"] = False
    again = table.score(rate)
    assert (again.scored, again.kept, again.failures.total()) == (3, 9, 0)


def test_pairs_by_a_score(table, tmp_path):
    table.score(length)
    pairs = table.pairs(tmp_path / "pairs", score="length", strategy="best-worst")
    assert [(pair.chosen_reward, pair.rejected_reward) for pair in pairs] == [(4.0, 1.0)] * 3
    build_pairs([table], tmp_path / "workers", PairOptions(score="length", strategy="best-worst"), engine=Pool(1))
    assert list(pw.Pairs(tmp_path / "workers")) == list(pairs)
    assert list(table.with_score("length").pairs(tmp_path / "view", strategy="best-worst")) == list(pairs)
    funnel = json.loads((tmp_path / "pairs" / "funnel.json").read_text())
    assert funnel["options"]["score"] == "length"
    assert "pairwright score TABLE --with programs" in table.pairs(tmp_path / "none").funnel["hint"]
    with pytest.raises(ConfigError, match="score: leave it out beside"):
        table.pairs(tmp_path / "none", score="length", strategy="imported")


def test_tables_that_were_scored_by_different_versions_are_not_mixed(table, tmp_path):
    with pw.Table(tmp_path / "second") as second:
        second.append([a_run("s", 0, "x"), a_run("s", 1, "xx")])
    ScoreLog(table.path, "judge").append([ScoreRow(run.eid.uid, score=1.0, hash="one") for run in table])
    ScoreLog(second.path, "judge").append([ScoreRow(run.eid.uid, score=1.0, hash="two") for run in second])
    with pytest.raises(PairwrightError, match="in different versions"):
        pw.make_pairs([table, second], tmp_path / "pairs", score="judge")


def test_an_unfinished_line_is_dropped_and_the_rest_counts(table):
    table.score(length)
    path = ScoreLog(table.path, "length").path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert read_score_log(table.path, "length").height == 11
    assert pw.Table(table.path).score(length).scored == 1
    assert read_score_log(table.path, "length").height == 12


def test_a_command_reads_runs_and_writes_scores(table, tmp_path):
    script = tmp_path / "rate.py"
    script.write_text(
        textwrap.dedent("""
        import json, sys
        for line in sys.stdin if sys.argv[1] == "stream" else sys.stdin.readlines():
            run = json.loads(line)
            assert run["prompt"][0]["role"] == "user"
            text = run["completion"][0]["content"]
            answer = {"uid": run["uid"], "length": len(text), "right": text == run["info"]["answer"], "reason": "r"}
            print(json.dumps(answer), flush=sys.argv[1] == "stream")
        """)
    )
    for way in ("stream", "whole"):
        summary = table.score(f"command:{sys.executable} {script} {way}", name=way)
        assert summary.scored == 12, summary
        assert read_one_score(table.path, f"{way}.length")["score"].to_list() == [1, 2, 3, 4] * 3
        assert read_one_score(table.path, f"{way}.right")["score"].to_list() == [0, 1, 0, 0] * 3
        assert read_score_log(table.path, way)["reason"][0] == "r"


@pytest.mark.parametrize(
    ("code", "scored", "cause"),
    [
        ("import sys; [print(1.0) for _ in range(5)]; print('sorry', file=sys.stderr); sys.exit(3)", 5,
         "ended with exit code 3 before this run: sorry"),
        ("import sys\nfor line in sys.stdin: print('{\"uid\": \"other\", \"score\": 1}', flush=True)", 0,
         "answered for another run"),
        ("import sys\nfor line in sys.stdin: print('well', flush=True)", 0, "expected a line of JSON"),
        ("pass", 0, "ended with exit code 0 before this run"),
    ],
)  # fmt: skip
def test_a_command_that_breaks_leaves_counted_failures(table, tmp_path, code, scored, cause):
    script = tmp_path / "broken.py"
    script.write_text(code)
    summary = table.score(f"command:{sys.executable} {script}")
    assert (summary.scored, summary.failures.total()) == (scored, 12 - scored)
    assert any(cause in reason for reason in summary.failures), summary.failures


def test_a_command_may_answer_before_the_runs_are_sent(table, tmp_path):
    answered, script = tmp_path / "answered", tmp_path / "hasty.py"
    script.write_text(f"print('1\\n' * 12, end='', flush=True)\nopen({str(answered)!r}, 'w')\ninput()")

    def sent_late():
        deadline = time.monotonic() + 60
        while not answered.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from table.records()

    outcomes = [outcome for _, outcome in _run_command([sys.executable, str(script)], sent_late())]
    assert [outcome.failure for outcome in outcomes] == [None] * 12


def test_a_command_with_too_many_lines_is_refused(table, tmp_path):
    script = tmp_path / "chatty.py"
    script.write_text("import sys\nfor line in sys.stdin: print(1)\nprint(1)")
    with pytest.raises(PairwrightError, match="more lines than there are runs"):
        table.score(f"command:{sys.executable} {script}")


def test_unknown_scorers_are_refused(table):
    with pytest.raises(ConfigError, match=r"expected programs, calls_succeed"):
        table.score("no_such_thing")
    with pytest.raises(ConfigError, match="cannot be started"):
        table.score("command:no-such-program")
    with pytest.raises(ConfigError, match="expected letters, digits"):
        table.score(length, name="../x")


def test_a_name_can_precede_a_scorer():
    assert split_name("a=no_loop") == ("a", "no_loop")
    assert split_name("exact:answer") == (None, "exact:answer")
    with pytest.raises(ConfigError, match="NAME=SCORER"):
        split_name("a=")


def test_the_command_line(table):
    result = CliRunner().invoke(
        app, ["score", str(table.path), "--with", "programs", "--with", "hit=exact:answer", "--json"]
    )
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)
    assert (first["scorer"], first["scored"], second["scorer"], second["mean"]) == ("programs", 12, "hit", 0.25)
    nothing = CliRunner().invoke(app, ["score", str(table.path), "--with", "tests_passed"])
    assert isinstance(nothing.exception, PairwrightError)
    assert "does not apply to any of 12 runs" in str(nothing.exception)


@pytest.mark.stress
def test_kill_loses_at_most_what_was_not_written(tmp_path):
    with pw.Table(tmp_path / "experience") as table:
        table.append([a_run(f"t{task}", 0, "x") for task in range(1500)])
    (tmp_path / "slow.py").write_text(
        "import time\nseen = []\n"
        "def rate(run):\n    seen.append(1)\n    time.sleep(600 if len(seen) > 1100 else 0)\n    return 1.0\n"
    )
    code = f"import pairwright as pw; pw.Table({str(tmp_path / 'experience')!r}).score('slow.py:rate')"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    path = tmp_path / "experience" / "scores" / "rate.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 1001:  # a header and two appends
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert read_score_log(tmp_path / "experience", "rate").height == 1000


@pytest.mark.stress
def test_a_second_process_with_the_same_scorer_is_refused_and_another_scorer_is_not(table, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\ndef rate(run):\n    pathlib.Path('begun').touch()\n"
        "    while not pathlib.Path('end').exists():\n        time.sleep(0.01)\n    return 1.0\n"
    )
    code = f"import pairwright as pw; pw.Table({str(table.path)!r}).score('slow.py:rate')"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.02)
        with pytest.raises(PairwrightError, match=f"in use by process {process.pid}, so no scoring here"):
            table.score(length, name="rate")
        assert table.score(length, name="other").scored == 12
    finally:
        (tmp_path / "end").touch()
        assert process.wait(60) == 0
    assert read_score_log(table.path, "rate").height == 12
    assert set(read_score_log(table.path, "rate")["score"]) == {1.0}
    assert table.score(length, name="rate").scored == 12, "the lock is gone with the process"
