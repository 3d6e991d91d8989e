"""An evaluation: comparisons of two models by several metrics, the gate before deployment, and its files.

evaluation.json        each metric: before, after, difference with intervals; tests; regressions; the verdict
evaluation.tasks.csv   every task of every metric
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from pairwright.config import EvaluateConfig
from pairwright.config.sections import CompareTerms, GateConfig
from pairwright.errors import ConfigError, PairwrightError
from pairwright.evaluation.comparison import NUM_RESAMPLES, CompareOptions, Comparison, Metric, compare
from pairwright.evaluation.scores import Scores
from pairwright.paths import write_bytes, write_json

FILE_NAME = "evaluation.json"
TASKS_NAME = "evaluation.tasks.csv"
NUM_REGRESSIONS = 50  # in evaluation.json; the CSV file has all of them
_DEFAULT_NAMES = ("reward", "score")


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate, and its reason."""

    passed: bool
    reason: str
    metric: str
    gate: GateConfig


@dataclass(frozen=True)
class Evaluation:
    """The comparisons of two models, one per metric, and the verdict; the first metric is the primary one."""

    before: str
    after: str
    comparisons: list[Comparison]
    options: CompareOptions
    verdict: Verdict | None

    @property
    def passed(self) -> bool:
        return self.verdict is None or self.verdict.passed


def evaluate(
    before: Scores,
    after: Scores,
    *,
    metrics: Sequence[Metric] = (),
    options: CompareOptions | None = None,
    gate: GateConfig | None = None,
    names: tuple[str, str] | None = None,
) -> Evaluation:
    """Compare two models by each metric; the gate judges the first. Default: the reward, or the only metric."""
    options = options or CompareOptions()
    metrics = tuple(metrics) or (Metric(_only_metric(before, after)),)
    # two metrics of the same name could not be distinguished in the files
    twice = {metric.name for metric in metrics if sum(metric.name == other.name for other in metrics) > 1}
    if twice:
        raise ConfigError(f"metrics: {sorted(twice)[0]!r} is named more than once")
    comparisons = [compare(before, after, metric, options) for metric in metrics]
    verdict = None
    if gate is not None:
        judged = comparisons[0]
        if gate.confidence != options.confidence:  # the gate's interval may differ from the reported one
            judged = compare(before, after, metrics[0], options.model_copy(update={"confidence": gate.confidence}))
        verdict = judge(judged, gate)
    return Evaluation(*(names or (before.source, after.source)), comparisons, options, verdict)


def judge(comparison: Comparison, gate: GateConfig) -> Verdict:
    """Judge a comparison whose intervals have the gate's confidence."""
    improvement = comparison.improvement
    name = comparison.metric.name
    # with fewer than two tasks, there is no interval
    if comparison.num_tasks < gate.min_tasks or improvement.low is None:
        least = max(gate.min_tasks, 2)
        reason = f"{comparison.num_tasks} tasks are too few for a verdict: at least {least} are required"
        return Verdict(False, reason, name, gate)
    bounds = (
        f"{improvement.mean:+.4g} ({gate.confidence:.4g} interval {improvement.low:+.4g} to {improvement.high:+.4g})"
    )
    if gate.margin is not None:
        passed = improvement.low > -gate.margin
        verb = "is not worse by more than" if passed else "may be worse by more than"
        return Verdict(passed, f"{name} {verb} {gate.margin:.4g}: it changed by {bounds}", name, gate)
    # the lower bound decides, not the mean: the gate requires evidence of the improvement
    if improvement.low < gate.min_improvement:
        reason = f"{name} improved by {bounds}; the lower bound is below {gate.min_improvement:.4g}"
        return Verdict(False, reason, name, gate)
    if gate.min_improvement >= 0 and improvement.low <= 0:
        return Verdict(False, f"{name} improved by {bounds}; the interval does not exclude zero", name, gate)
    return Verdict(True, f"{name} improved by {bounds}", name, gate)


def evaluate_settings(section: EvaluateConfig, *, seed: int) -> dict[str, Any]:
    """The `evaluate` section of a configuration as keyword arguments of `evaluate`."""
    terms = {name: getattr(section, name) for name in CompareTerms.model_fields}
    return {
        "metrics": tuple(Metric(metric.name, metric.better) for metric in section.metrics),
        "options": CompareOptions(**terms, seed=seed),
        "gate": section.gate,
    }


def write_evaluation(folder: Path, evaluation: Evaluation) -> Path:
    """Write both files atomically into a folder. Returns the path of evaluation.json."""
    try:
        # the JSON file is written last, so if it exists, the CSV file exists
        write_bytes(folder / TASKS_NAME, _tasks_csv(evaluation))
        write_json(folder / FILE_NAME, evaluation_json(evaluation))
    except OSError as error:
        raise PairwrightError(f"{folder}: {error.strerror or error}; no evaluation was written") from error
    return folder / FILE_NAME


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read evaluation.json; `path` is the file or its folder."""
    path = path / FILE_NAME if path.is_dir() else path
    try:
        content: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise PairwrightError(f"{path}: no such file; make one with: pairwright evaluate BEFORE AFTER -o DIR") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise PairwrightError(f"{path}: cannot be read: {error}") from error
    return content


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON, with the worst regressions only; the CSV file has every task."""
    options, verdict = evaluation.options.model_dump(), evaluation.verdict
    gate = None
    if verdict is not None:
        gate = {
            "passed": verdict.passed,
            "reason": verdict.reason,
            "metric": verdict.metric,
            **verdict.gate.model_dump(),
        }
    return {
        "before": evaluation.before,
        "after": evaluation.after,
        "passed": evaluation.passed,
        "gate": gate,
        "method": "paired bootstrap over tasks, bca",
        "options": {**options, "num_resamples": NUM_RESAMPLES},
        "metrics": [_comparison_json(comparison) for comparison in evaluation.comparisons],
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    regressions = comparison.regressions
    return {
        "name": comparison.metric.name,
        "better": comparison.metric.better,
        "tasks": comparison.num_tasks,
        "runs": comparison.num_runs,
        "before": asdict(comparison.before),
        "after": asdict(comparison.after),
        "difference": asdict(comparison.difference),
        "wins": comparison.wins,
        "draws": comparison.draws,
        "losses": comparison.losses,
        "sign_test_p": comparison.sign_test,
        "mcnemar": None if comparison.mcnemar is None else asdict(comparison.mcnemar),
        "left_out": comparison.left_out,
        "notes": comparison.notes,
        "num_regressions": len(regressions),
        "regressions": [asdict(row) for row in regressions[:NUM_REGRESSIONS]],
    }


def _tasks_csv(evaluation: Evaluation) -> bytes:
    text = io.StringIO()
    # "\n" on every system: the same evaluation gives the same bytes
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("metric", "task", "runs", "before", "after", "difference", "outcome"))
    for comparison in evaluation.comparisons:
        for row in comparison.tasks:
            cells = (row.num_runs, row.before, row.after, row.difference, row.outcome)
            writer.writerow((comparison.metric.name, row.task, *cells))
    return text.getvalue().encode()


def _only_metric(before: Scores, after: Scores) -> str:
    # metrics that both models have, in the order of the first
    shared = [name for name in before.metrics if name in after.metrics]
    for name in _DEFAULT_NAMES:
        if name in shared:
            return name
    if len(shared) == 1:
        return shared[0]
    raise ConfigError(
        f"metric: both have {', '.join(shared) or 'no number in common'}; name the one that counts with --metric NAME"
    )
