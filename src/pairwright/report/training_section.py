"""The training section: curves from metrics.jsonl (loss, margins, accuracy, both log-probabilities in one plot).

If the log-probabilities of chosen and rejected both fall (likelihood displacement), a sentence reports it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pairwright.ledger.run_status import Status, read_status
from pairwright.report.charts import Line, line_chart
from pairwright.report.markup import Markup, format_number, join, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.run_folder import RunFolder, read_json_lines

MAX_POINTS = 240  # points of a drawn curve
MAX_MORE = 24  # curves beyond the main plots
# title of a plot -> (metric, colour) of its lines
MAIN: dict[str, tuple[tuple[str, str], ...]] = {
    "Loss": (("loss", "accent"),),
    "Reward margin": (("rewards/margins", "accent"),),
    "Accuracy": (("rewards/accuracies", "accent"),),
    "Log-probability of both sides": (("logps/chosen", "chosen"), ("logps/rejected", "rejected")),
    "Implicit reward of both sides": (("rewards/chosen", "chosen"), ("rewards/rejected", "rejected")),
}
# Columns of metrics.jsonl that count or label, and are not drawn
_NO_CURVE = ("step", "epoch", "time", "num_tokens", "round")


@dataclass(frozen=True)
class Curve:
    """The finite values of a metric over the steps of all rounds, and the number of non-finite values."""

    steps: list[float]
    values: list[float]
    num_lost: int

    def windows(self) -> list[tuple[list[float], list[float]]]:
        """Return the steps and values of at most MAX_POINTS windows of neighbouring points."""
        every = -(-len(self.steps) // MAX_POINTS)  # rounded up
        return [(self.steps[at : at + every], self.values[at : at + every]) for at in range(0, len(self.steps), every)]


def curves_section(run: RunFolder) -> Section | None:
    """Return the curves of all rounds, or None if there are no metrics. Metrics beyond the main plots are collapsed."""
    rows, num_bad = metric_rows(run)
    if not rows:
        return None
    used = {name for lines in MAIN.values() for name, _ in lines}
    names = metric_names(rows)
    plots = [plot for title, lines in MAIN.items() if (plot := _plot(rows, title, lines))]
    others = [name for name in names if name not in used]
    more = [plot for name in others[:MAX_MORE] if (plot := _plot(rows, name, ((name, "accent"),)))]
    statuses = [status for stages in run.rounds if stages.train and (status := read_status(stages.train.parent))]
    parts: list[Markup] = [tag("p", _sentence(statuses, rows, num_bad), class_="lead")]
    # the notes name refused records, and content that the template does not render
    notes = dict.fromkeys(note for status in statuses for note in status.notes)
    parts += [tag("p", note, class_="note") for note in notes]
    displaced = _displacement(rows)
    if displaced:
        parts.append(tag("p", tag("span", displaced[0], class_=f"chip {displaced[1]}"), " ", displaced[2]))
    parts.append(tag("div", *(plot.card() for plot in plots), class_="cards"))
    if len(rows) > MAX_POINTS:
        words = "A line shows means of neighbouring values, its band the lowest and the highest of them."
        parts.append(tag("p", words, class_="note"))
    if more:
        left = f" ({len(others) - MAX_MORE} others are not drawn)" if len(others) > MAX_MORE else ""
        title = tag("summary", f"{len(more)} more curves{left}")
        parts.append(tag("details", title, tag("div", *(plot.card() for plot in more), class_="cards")))
    return Section("training", "Training", join(parts), [*plots, *more])


def metric_rows(run: RunFolder) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of all rounds, with steps that continue across rounds, and the number of invalid rows."""
    all_rows: list[dict[str, Any]] = []
    offset, num_bad = 0.0, 0
    for stages in run.rounds:
        if stages.metrics is None:
            continue
        rows, bad = read_json_lines(stages.metrics)
        num_bad += bad
        valid = [row for row in rows if _is_number(row.get("step")) and math.isfinite(row["step"])]
        num_bad += len(rows) - len(valid)
        all_rows += [{**row, "step": row["step"] + offset, "round": stages.name} for row in valid]
        # the next round starts where this one ended, so that all rounds share one x axis
        offset = max((row["step"] for row in all_rows), default=0.0)
    return all_rows, num_bad


def metric_names(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of all metrics in order of appearance; eval_ metrics share the plot of their training metric."""
    names = dict.fromkeys(name.removeprefix("eval_") for row in rows for name in row if _is_number(row[name]))
    return [name for name in names if name not in _NO_CURVE]


def _plot(rows: list[dict[str, Any]], title: str, names: Sequence[tuple[str, str]]) -> Plot | None:
    """Plot metrics with their validation counterparts; None if there are no values."""
    lines, table, lost = [], [("metric", "step", "value")], 0
    for name, tone in names:
        for key, suffix in ((name, ""), (f"eval_{name}", ", validation")):
            curve = metric_curve(rows, key)
            lost += curve.num_lost
            if not curve.steps:
                continue
            table += [(key, step, value) for step, value in zip(curve.steps, curve.values, strict=True)]  # type: ignore[misc]
            # in a plot of one metric, the validation curve has its own colour
            line_tone = "before" if suffix and len(names) == 1 else tone
            lines.append(_line(curve, name + suffix, line_tone, dots=bool(suffix)))
    if not lines:
        return None
    note = f"{lost:,} values are not finite and are not drawn." if lost else ""
    legend = [(line.name, line.tone) for line in lines] if len(lines) > 1 else []
    svg = line_chart(lines, label=title)
    return Plot(f"training-{title}", title, svg, table, legend=legend, note=note)


def _line(curve: Curve, name: str, tone: str, *, dots: bool) -> Line:
    if len(curve.steps) <= MAX_POINTS:
        return Line(name, curve.steps, curve.values, tone, dots=dots and len(curve.steps) <= 60)
    windows = curve.windows()
    xs, ys = [fmean(steps) for steps, _ in windows], [fmean(values) for _, values in windows]
    lows, highs = ([edge(values) for _, values in windows] for edge in (min, max))
    return Line(name, xs, ys, tone, low=lows, high=highs)


def metric_curve(rows: list[dict[str, Any]], name: str) -> Curve:
    points = [(row["step"], row[name]) for row in rows if _is_number(row.get(name))]
    # values near the limits of float would overflow in sums and scales
    finite = [(float(step), float(value)) for step, value in points if math.isfinite(value) and abs(value) < 1e300]
    return Curve([step for step, _ in finite], [value for _, value in finite], len(points) - len(finite))


def _displacement(rows: list[dict[str, Any]]) -> tuple[str, str, str] | None:
    """Compare the log-probabilities at both ends of the last trained round. Returns label, tone and sentence."""
    rounds = list(dict.fromkeys(row["round"] for row in rows))
    last = [row for row in rows if row["round"] == rounds[-1]]
    chosen, rejected = (_ends(metric_curve(last, f"logps/{side}").values) for side in ("chosen", "rejected"))
    if chosen is None or rejected is None:
        return None
    (start, end), (other_start, other_end) = chosen, rejected
    figures = (
        f"chosen {format_number(start)} → {format_number(end)}, "
        f"rejected {format_number(other_start)} → {format_number(other_end)} "
        "(log-probability, first and last tenth of the steps)."
    )
    # DPO can widen the margin while both sides become less likely
    if end < start and other_end < other_start:
        return "likelihood displacement", "bad", f"Both sides became less likely: {figures}"
    if end < start:
        return "chosen fell", "bad", f"The chosen side became less likely: {figures}"
    return "chosen rose", "good", f"The chosen side became more likely: {figures}"


def _ends(values: list[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    tenth = max(1, len(values) // 10)
    # means over a tenth of the steps, since single batches are noisy
    return fmean(values[:tenth]), fmean(values[-tenth:])


def _sentence(statuses: list[Status], rows: list[dict[str, Any]], num_bad: int) -> str:
    parts = [f"{format_number(max(row['step'] for row in rows))} steps"]
    num_rounds = len({row["round"] for row in rows})
    if num_rounds > 1:
        parts.append(f"{num_rounds} rounds, one after the other")
    if statuses:
        parts.append(statuses[-1].state)
    if num_bad:
        parts.append(f"{num_bad:,} lines of metrics could not be read")
    return ", ".join(parts) + "."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
