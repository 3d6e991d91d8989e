"""Evaluation: a paired comparison of two models on the same tasks with the same seeds, and a gate before deployment."""

import pairwright
from pairwright.evaluate.comparison import CompareOptions, Comparison, Metric, TaskRow, compare
from pairwright.evaluate.evaluating import evaluate
from pairwright.evaluate.evaluation import Evaluation, evaluation_json, read_evaluation, write_evaluation
from pairwright.evaluate.gate import Gate, Verdict, judge
from pairwright.evaluate.paired_statistics import Interval, bootstrap_intervals, mcnemar_test, sign_test
from pairwright.evaluate.scores import Scores, read_scores, scores_of

__all__ = [
    "CompareOptions",
    "Comparison",
    "Evaluation",
    "Gate",
    "Interval",
    "Metric",
    "Scores",
    "TaskRow",
    "Verdict",
    "bootstrap_intervals",
    "compare",
    "evaluate",
    "evaluation_json",
    "judge",
    "mcnemar_test",
    "read_evaluation",
    "read_scores",
    "scores_of",
    "sign_test",
    "write_evaluation",
]

pairwright.make_callable(__name__, evaluate)  # pairwright.evaluate(...) is evaluate(...)
