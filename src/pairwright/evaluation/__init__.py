"""Evaluation: a paired comparison of two models on the same tasks with the same seeds, and a gate before deployment."""

from pairwright.config.sections import GateConfig as Gate
from pairwright.evaluation.comparison import CompareOptions, Comparison, Metric, TaskRow, compare
from pairwright.evaluation.evaluating import evaluate
from pairwright.evaluation.evaluation import (
    Evaluation,
    Verdict,
    evaluation_json,
    judge,
    read_evaluation,
    write_evaluation,
)
from pairwright.evaluation.paired_statistics import Interval, bootstrap_intervals, mcnemar_test, sign_test
from pairwright.evaluation.scores import Scores, read_scores, scores_of

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
