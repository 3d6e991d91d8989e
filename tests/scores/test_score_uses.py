"""What uses stored scores: corrections as pairs, evaluations, the flow's stage; plans and margins of evaluations."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import pairwright as pw
from pairwright.cli.main import app
from pairwright.errors import ConfigError, PairwrightError
from pairwright.evaluation.paired_statistics import plan_tasks
from pairwright.scores.corrections import add_corrections
from pairwright.store.score_log import ScoreLog, ScoreRow


def a_run(task, run, *completion, **fields):
    turns = [pw.Message("assistant", one) if isinstance(one, str) else one for one in completion]
    return pw.Experience(
        eid=pw.EID(task=task, run=run, suffix=f"{task}-{run}"),
        kind="multi_turn" if len(turns) > 1 else "single_turn",
        prompt=[pw.Message("user", f"question {task}")],
        completion=turns,
        **fields,
    )


def test_a_correction_is_a_pair(tmp_path):
    call = pw.Message("assistant", None, tool_calls=(pw.ToolCall("look", "{}", id="1"),))
    found = pw.Message("tool", "3", tool_call_id="1")
    runs = [
        a_run("a", 0, call, found, "It is 4.", reward_components={"output": "It is 3."}),
        a_run("b", 0, "fine", reward_components={"output": "fine"}),
        a_run("c", 0, "good"),
        a_run("d", 0, call, info={"output": "no"}),
        a_run("e", 0, "bad", info={"output": "better"}),
    ]
    with pw.Table(tmp_path / "t") as table:
        table.append(runs)
    with pw.Table(tmp_path / "corrected") as output:
        counts = add_corrections(pw.Table(table.path), "output", output)
    assert counts == {
        "corrected": 2, "equal to the original": 1, "no correction": 1, "the last turn is a call": 1,
    }  # fmt: skip
    pairs = pw.Table(output.path).pairs(tmp_path / "pairs", strategy="imported")
    texts = sorted((pair.chosen[0].text, pair.rejected[0].text, len(pair.prompt)) for pair in pairs)
    assert texts == [("It is 3.", "It is 4.", 3), ("better", "bad", 1)]
    with pw.Table(output.path) as again:
        assert add_corrections(pw.Table(table.path), "output", again)["there already"] == 2
    with pytest.raises(PairwrightError, match="no run has a correction under 'other'"):
        add_corrections(pw.Table(table.path), "other", pw.Table(output.path))


def test_a_stored_score_is_a_metric_of_an_evaluation(tmp_path):
    for name, shift in (("before", 0.0), ("after", 0.3)):
        with pw.Table(tmp_path / name) as table:
            table.append([a_run(f"t{task}", 0, f"{name} {task}") for task in range(12)])
        rows = [ScoreRow(run.eid.uid, score=shift + (number % 3) / 10, hash="v") for number, run in enumerate(table)]
        ScoreLog(table.path, "judge").append(rows)
    proof = pw.evaluate(tmp_path / "before", tmp_path / "after", metrics=["judge"])
    assert proof.comparisons[0].difference.mean == pytest.approx(0.3)


@pytest.mark.parametrize(("margin", "passed"), [(0.2, True), (0.01, False)])
def test_a_margin_is_a_gate_for_non_inferiority(tmp_path, margin, passed):
    for name, shift in (("before", 0.0), ("after", -0.02)):
        rows = [f"t{task},{0.5 + (task % 5) / 10 + shift * (task % 2)}" for task in range(40)]
        (tmp_path / f"{name}.csv").write_text("task,score\n" + "\n".join(rows))
    proof = pw.evaluate(tmp_path / "before.csv", tmp_path / "after.csv", gate={"margin": margin})
    assert proof.passed is passed
    assert ("is not worse by more than" if passed else "may be worse by more than") in proof.verdict.reason
    with pytest.raises(ConfigError, match="leave out min_improvement"):
        pw.evaluate(tmp_path / "before.csv", tmp_path / "after.csv", gate={"margin": 0.1, "min_improvement": 0.1})


def test_a_plan_has_the_power_that_it_promises(tmp_path):
    generator = np.random.default_rng(0)
    found = []
    for _ in range(200):
        size = plan_tasks(generator.normal(scale=0.4, size=30), difference=0.1)
        sample = generator.normal(0.1, 0.4, size=(50, size.num_tasks))
        low = sample.mean(1) - 1.96 * sample.std(1, ddof=1) / np.sqrt(size.num_tasks)
        found.append((low > 0).mean())
    assert np.mean(np.array(found) >= 0.75) > 0.75, "four of five pilots plan enough tasks"
    rows = "\n".join(f"t{task},{task % 2}" for task in range(20))
    (tmp_path / "a.csv").write_text("task,score\n" + rows)
    (tmp_path / "b.csv").write_text("task,score\n" + "\n".join(f"t{task},{task % 3 % 2}" for task in range(20)))
    result = CliRunner().invoke(
        app, ["evaluate", "compare", str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--plan", "0.2", "--json"]
    )
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["num_pilot"] == 20
    assert plan["num_tasks"] > 50


def test_the_flow_has_a_stage_that_scores(tmp_path):
    from pairwright.config import Config
    from pairwright.flow.stages import View, score_stage

    with pw.Table(tmp_path / "experience") as table:
        table.append([a_run("t", 0, "x"), a_run("t", 1, "")])
    config = Config(score={"scorers": ["done=final_answer"]})
    assert score_stage(config, tmp_path / "experience", None, View()) == {"done": 0.5}
    with pytest.raises(PairwrightError, match="scored none of 2 runs"):
        score_stage(Config(score={"scorers": ["tests_passed"]}), tmp_path / "experience", None, View())


def test_the_page_shows_scores_and_begins_with_the_runs_to_label_next(tmp_path):
    from pairwright.scores.calibration import calibrate, read_labels
    from pairwright.view.decision_queries import Decisions
    from pairwright.view.experience_queries import ExperienceQueries
    from pairwright.view.library import Library

    with pw.Table(tmp_path / "experience") as table:
        table.append([a_run(f"t{n}", 0, f"x{n}", reward=float(n % 2) if n < 30 else None) for n in range(90)])
    table = pw.Table(table.path)
    ScoreLog(table.path, "judge").append(
        [ScoreRow(run.eid.uid, score=float(number % 2), hash="v") for number, run in enumerate(table)]
    )
    report = calibrate(table, "judge", read_labels(table, "reward"))
    library = Library([table.path])
    (item,) = library.of_kind("experiences")
    queries = ExperienceQueries(item, library)
    shown = Decisions(library).next_record(queries, item.key, voter="ada", order="disagreement", is_blind=False)
    assert shown["record"]["uid"] == report["next"][0]
    assert queries.read_record(report["next"][0], None)["components"] == {"judge": pytest.approx(0.5, abs=0.5)}
