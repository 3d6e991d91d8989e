"""Comparisons: counts, refusals, and the conditions of the gate."""

import pytest

from pairwright.errors import ConfigError, PairwrightError
from pairwright.evaluation import CompareOptions, Gate, Metric, compare, evaluate, judge, scores_of
from pairwright.evaluation.comparison import SEVERAL_RUNS


def scores(rows, name="model"):
    """Scores from {task: score}, {task: [score of run 0, of run 1, ...]} or {task: {metric: score}}."""
    flat = []
    for task, given in rows.items():
        for run, value in enumerate(given if isinstance(given, list) else [given]):
            numbers = value if isinstance(value, dict) else {"score": value}
            flat.append((task, {"task": task, "run": run, **numbers}))
    return scores_of(flat, source=name)


def compared(before, after, metric="score", better="higher", **options):
    return compare(scores(before), scores(after), Metric(metric, better), CompareOptions(**options))


def test_wins_draws_losses_and_means_are_counted_by_task():
    found = compared({"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.25}, {"a": 1.0, "b": 1.0, "c": 0.25, "d": 0.75})
    assert (found.wins, found.draws, found.losses, found.num_tasks) == (2, 1, 1, 4)
    assert (found.before.mean, found.after.mean, found.difference.mean) == (0.4375, 0.75, 0.3125)
    assert found.sign_test == 1.0  # 2 of 3: 2 · (1 + 3) / 8
    assert [(row.task, row.difference) for row in found.regressions] == [("c", -0.25)]


def test_the_score_of_a_task_is_the_mean_of_its_runs_and_tasks_weigh_alike():
    found = compared({"a": [0.0, 1.0, 0.5], "b": [0.0]}, {"a": [1.0, 1.0, 1.0], "b": [1.0]})
    assert (found.num_tasks, found.num_runs) == (2, 4)
    assert found.before.mean == 0.25
    assert [row.num_runs for row in found.tasks] == [3, 1]


def test_equal_decimals_are_a_draw_though_floats_differ():
    assert 0.1 + 0.2 != 0.3 + 0.0
    found = compared({"a": [0.1, 0.2]}, {"a": [0.3, 0.0]})
    assert (found.draws, found.tasks[0].difference) == (1, 0.0)


def test_a_tie_is_what_was_asked_for():
    before, after = {"a": 0.3, "b": 0.3, "c": 0.3}, {"a": 0.4, "b": 0.2, "c": 0.41}
    found = compared(before, after, tie=0.1)
    assert (found.wins, found.draws, found.losses) == (1, 2, 0)


def test_lower_is_better_turns_wins_and_the_improvement_round():
    found = compared({"a": 3, "b": 5}, {"a": 1, "b": 6}, better="lower")
    assert (found.wins, found.losses, found.difference.mean, found.improvement.mean) == (1, 1, -0.5, 0.5)
    assert found.improvement.low == -found.difference.high
    assert [row.task for row in found.regressions] == ["b"]


def test_regressions_are_listed_worst_first():
    found = compared({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.5, "b": 0.0, "c": 0.5})
    assert [row.task for row in found.regressions] == ["b", "a", "c"]


def test_a_run_that_one_model_did_not_score_is_refused_with_the_way_out():
    with pytest.raises(PairwrightError, match=r"task 'b' run 0 has none after.*--missing leave_out"):
        compared({"a": 1.0, "b": 0.0}, {"a": 1.0})
    with pytest.raises(PairwrightError, match=r"task 'b' run 0 has none before"):
        compared({"a": 1.0, "b": None}, {"a": 1.0, "b": 0.5})


def test_missing_scores_are_left_out_of_both_and_counted():
    found = compared(
        {"a": [0.0, 0.0], "b": 0.5, "c": None}, {"a": [1.0, None], "d": 1.0, "c": None}, missing="leave_out"
    )
    assert found.left_out == {"no_score_after": 2, "unscored_in_both": 1, "no_score_before": 1}
    assert (found.num_tasks, found.num_runs, found.before.mean) == (1, 1, 0.0)
    assert any("no score after" in note for note in found.notes)


def test_missing_scores_can_be_filled_in_and_a_note_says_so():
    found = compared({"a": 1.0, "b": 1.0}, {"a": 1.0}, missing=0.0)
    assert (found.after.mean, found.losses, found.left_out) == (0.5, 1, {})
    assert "1 runs: no score after, given 0" in found.notes


def test_mcnemar_counts_what_one_alone_solved():
    before = {"a": 1, "b": 1, "c": 0, "d": 0, "e": 0}
    found = compared(before, {"a": 1, "b": 0, "c": 1, "d": 1, "e": 0}).mcnemar
    assert (found.both, found.only_before, found.only_after, found.neither) == (1, 1, 2, 1)
    assert found.p_value == 1.0
    assert compared({"a": 0.5}, {"a": 1.0}).mcnemar is None
    solved = compared({"a": 0.5, "b": 0.9}, {"a": 0.8, "b": 0.9}, success=0.8).mcnemar
    assert (solved.both, solved.only_after) == (1, 1)


def test_mcnemar_of_a_metric_where_lower_is_better_counts_zeros_as_solved():
    found = compared({"a": 1, "b": 0}, {"a": 0, "b": 0}, better="lower").mcnemar
    assert (found.both, found.only_after) == (1, 1)


def test_mcnemar_gives_no_p_value_for_several_runs_of_a_task():
    found = compared({"a": [0, 1], "b": [0, 0]}, {"a": [1, 1], "b": [1, 1]})
    assert (found.mcnemar.p_value, found.mcnemar.reason, found.mcnemar.only_after) == (None, SEVERAL_RUNS, 3)


def test_only_tasks_that_have_a_metric_are_compared_by_it():
    before = scores({"p": {"optimal": 0}, "q": {"optimal": 1}, "g": {"lost": 1}})
    after = scores({"p": {"optimal": 1}, "q": {"optimal": 1}, "g": {"lost": 0}})
    found = evaluate(before, after, metrics=[Metric("optimal"), Metric("lost", "lower")])
    assert [one.num_tasks for one in found.comparisons] == [2, 1]


def test_without_a_metric_the_reward_counts_and_several_numbers_must_be_named():
    both = scores({"a": {"reward": 1.0, "steps": 3}})
    assert evaluate(both, both).comparisons[0].metric.name == "reward"
    several = scores({"a": {"x": 1.0, "y": 3}})
    with pytest.raises(ConfigError, match="x, y; name the one that counts"):
        evaluate(several, several)
    with pytest.raises(ConfigError, match="'x' is named more than once"):
        evaluate(several, several, metrics=[Metric("x"), Metric("x")])
    with pytest.raises(PairwrightError, match="no run of a task has a score in both"):
        evaluate(several, several, metrics=[Metric("z")])


def improving(gains):
    before = {f"t{number}": 0.25 for number in range(len(gains))}
    return scores(before), scores({task: 0.25 + gain for task, gain in zip(before, gains, strict=True)})


def test_the_gate_opens_for_an_interval_above_the_bound_only():
    before, after = improving([0.25, 0.5, 0.375, 0.25, 0.5, 0.375, 0.25, 0.5, 0.375, 0.25, 0.5, 0.375])
    opened = evaluate(before, after, gate=Gate(min_improvement=0.25)).verdict
    assert (opened.passed, "improved by +0.375" in opened.reason) == (True, True)
    closed = evaluate(before, after, gate=Gate(min_improvement=0.375)).verdict
    assert (closed.passed, "below 0.375" in closed.reason) == (False, True)
    assert not evaluate(after, before, gate=Gate()).passed


def test_the_gate_stays_closed_where_zero_is_not_excluded():
    before, after = improving([0.0] * 12)
    verdict = evaluate(before, after, gate=Gate()).verdict
    assert (verdict.passed, "does not exclude zero" in verdict.reason) == (False, True)
    assert evaluate(before, after, gate=Gate(min_improvement=-0.1)).passed  # not much worse was all that was asked


def test_the_gate_stays_closed_for_a_few_tasks_however_good():
    before, after = improving([0.5] * 9)
    assert "9 tasks are too few" in evaluate(before, after, gate=Gate()).verdict.reason
    assert evaluate(before, after, gate=Gate(min_tasks=9)).passed
    one = compare(*improving([0.5]), Metric("score"))
    assert "at least 2" in judge(one, Gate(min_tasks=2)).reason


def test_the_gate_judges_by_its_own_confidence():
    before, after = improving([0.5, -0.25, 0.25, 0.5, -0.25, 0.25, 0.25, 0.5, -0.25, 0.25, -0.25, 0.25])
    assert evaluate(before, after, gate=Gate(confidence=0.8)).passed
    strict = evaluate(before, after, gate=Gate(confidence=0.999))
    assert (strict.passed, strict.options.confidence) == (False, 0.95)


def test_the_gate_counts_an_improvement_of_a_metric_where_lower_is_better():
    before, after = improving([-0.25, -0.125] * 6)
    assert evaluate(before, after, metrics=[Metric("score", "lower")], gate=Gate(min_improvement=0.1)).passed
    assert not evaluate(before, after, metrics=[Metric("score")], gate=Gate()).passed
