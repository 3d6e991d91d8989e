"""The outcome section (first: before and after with intervals, verdict, regressions), and training curves."""

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pairwright.evaluate.evaluation import TASKS_NAME, read_evaluation
from pairwright.ledger.run_status import Status, read_status
from pairwright.records.experience import Experience
from pairwright.records.grouping import conversation_of
from pairwright.report.pairs_section import render_sides, render_turn
from pairwright.report.plots import (
    Line,
    Markup,
    Plot,
    Section,
    Span,
    format_count,
    format_number,
    interval_chart,
    join,
    line_chart,
    tag,
)
from pairwright.report.run_folder import RunFolder, find_side, read_rows
from pairwright.store.table import Table

MAX_REGRESSIONS = 20  # rows of a metric's table
MAX_TRANSCRIPTS = 6  # regressions of a metric with what either model said
MAX_TASKS = 200  # rows of the table of all tasks
Transcripts = dict[tuple[str, str], Experience]


def outcome_section(run: RunFolder) -> Section | None:
    """The results of the evaluation, or None if there is none."""
    if run.evaluation is None:
        return None
    evaluation = read_evaluation(run.evaluation)
    metrics = evaluation.get("metrics") or []
    if not metrics:
        return None
    plots = [_intervals(metric) for metric in metrics]
    parts = [_hero(evaluation, metrics[0], plots[0])]
    rounds = _round_plot(run, metrics[0]["name"])
    more = [plot.card() for plot in [*plots[1:], *([rounds] if rounds else [])]]
    if more:
        parts.append(tag("div", *more, class_="cards"))
    parts.append(tag("div", _table(metrics), class_="card scroll"))
    transcripts = _read_transcripts(run.evaluation.parent, evaluation, metrics)
    parts += [_regressions(metric, transcripts) for metric in metrics if metric["num_regressions"]]
    parts.append(_tasks(run.evaluation.parent / TASKS_NAME))
    parts.append(tag("p", _method(evaluation), class_="note"))
    return Section("outcome", "Outcome", join(parts), [*plots, *([rounds] if rounds else [])])


def _hero(evaluation: dict[str, Any], metric: dict[str, Any], plot: Plot) -> Markup:
    """The main card: first metric before and after, its difference, wins and losses, and the gate."""
    difference = metric["difference"]
    # positive if the new model is better, whatever the direction of the metric
    better = difference["mean"] if metric["better"] == "higher" else -difference["mean"]
    figure = tag(
        "div",
        tag("span", format_number(metric["before"]["mean"], 3), class_="was"),
        tag("span", "→", class_="to"),
        format_number(metric["after"]["mean"], 3),
        class_="figure",
    )
    bounds = (
        ""
        if difference["low"] is None
        else f" ({format_number(difference['low'], 3)} to {format_number(difference['high'], 3)})"
    )
    word = (
        f"{'better' if better > 0 else 'worse'} by {format_number(abs(difference['mean']), 3)}"
        if better
        else "no change"
    )
    sentence = tag("p", tag("b", word[:1].upper() + word[1:]), f"{bounds} on {format_count(metric['tasks'], 'task')}.")
    words = tag("div", tag("h3", plot.title), figure, sentence, _wins(metric), _verdict(evaluation.get("gate")))
    return tag("div", words, tag("div", plot.svg), class_="card hero")


def _verdict(gate: dict[str, Any] | None) -> Markup:
    if gate is None:
        return tag("p", tag("span", "no gate was set", class_="chip quiet"))
    chip = tag(
        "span", "gate open" if gate["passed"] else "gate closed", class_=f"chip {'good' if gate['passed'] else 'bad'}"
    )
    least, confidence = format_number(gate["min_improvement"]), format_number(gate["confidence"])
    requirement = f"asked for at least {least} with confidence {confidence}"
    reason = "" if gate["passed"] else tag("p", gate["reason"][:1].upper() + gate["reason"][1:] + ".", class_="note")
    return join([tag("p", chip, " ", tag("span", requirement, class_="note")), reason])


def _wins(metric: dict[str, Any]) -> Markup:
    parts = (("wins", "good", "won"), ("draws", "before", "drawn"), ("losses", "bad", "lost"))
    # flex values: the widths of the pieces are in proportion to the counts
    bar = [tag("i", class_=tone, style=f"flex:{int(metric[name])}") for name, tone, _ in parts if metric[name]]
    summary = ", ".join(f"{metric[name]:,} {word}" for name, _, word in parts)
    return join([tag("div", *bar, class_="wdl", role="img", aria_label=summary), tag("p", summary, class_="note")])


def _intervals(metric: dict[str, Any]) -> Plot:
    sides = [(name, metric[name], tone) for name, tone in (("before", "before"), ("after", "accent"))]
    spans = [Span(name, side["mean"], side["low"], side["high"], tone) for name, side, tone in sides]
    label = f"{metric['name']} before and after, with confidence intervals"
    rows = [("side", "mean", "low", "high")]
    rows += [(name, side["mean"], side["low"], side["high"]) for name, side, _ in sides]
    difference = metric["difference"]
    rows.append(("difference", difference["mean"], difference["low"], difference["high"]))
    direction = "" if metric["better"] == "higher" else " (lower is better)"
    return Plot(f"outcome-{metric['name']}", metric["name"] + direction, interval_chart(spans, label=label), rows)


def _round_plot(run: RunFolder, name: str) -> Plot | None:
    """Plot a metric by round; None if fewer than two rounds were evaluated."""
    rows: list[tuple[float, float, float, float]] = []
    for stages in run.rounds:
        if stages.evaluation is None or not stages.name:
            continue
        metric = next((item for item in read_evaluation(stages.evaluation)["metrics"] if item["name"] == name), None)
        if metric is None:
            continue
        number = float(stages.name.removeprefix("round "))
        # round n compares the model after n - 1 rounds with the one after n; earlier points are not repeated
        for place, side in ((number - 1, metric["before"]), (number, metric["after"])):
            if not rows or rows[-1][0] < place:
                low, high = (side["mean"] if side[end] is None else side[end] for end in ("low", "high"))
                rows.append((place, side["mean"], low, high))
    # two points are the plain comparison, which the page shows anyway
    if len(rows) < 3:
        return None
    places, means, lows, highs = (list(column) for column in zip(*rows, strict=True))
    line = Line(name, places, means, low=lows, high=highs, dots=True)
    svg = line_chart([line], label=f"{name} by round", x_label="rounds of training", height=150)
    return Plot("outcome-rounds", f"{name}, round by round", svg, [("rounds", "mean", "low", "high"), *rows])


def _table(metrics: list[dict[str, Any]]) -> Markup:
    """The table of all metrics, with differences, intervals and sign tests."""
    heads = ("metric", "before", "after", "difference", "interval", "won", "drawn", "lost", "sign test p")
    rows = []
    for metric in metrics:
        difference = metric["difference"]
        span = (
            "–"
            if difference["low"] is None
            else f"{format_number(difference['low'], 3)} to {format_number(difference['high'], 3)}"
        )
        cells = (metric["before"]["mean"], metric["after"]["mean"], difference["mean"])
        counts = (metric["wins"], metric["draws"], metric["losses"])
        p_value = metric["sign_test_p"]
        p_text = "< 1e-6" if p_value < 1e-6 else format_number(p_value, 2)
        numbers = [format_number(cell, 4) for cell in cells]
        rows.append([metric["name"], *numbers, span, *(f"{count:,}" for count in counts), p_text])
    return table(heads, rows)


def table(heads: tuple[str, ...], rows: list[list[Any]]) -> Markup:
    head = tag("tr", *(tag("th", head) for head in heads))
    return tag(
        "table", tag("thead", head), tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    )


def _read_transcripts(folder: Path, evaluation: dict[str, Any], metrics: list[dict[str, Any]]) -> Transcripts:
    """What either model did at the worst regressions: (task, side) to its first run, at its last step."""
    tasks = {str(row["task"]) for metric in metrics for row in metric["regressions"][:MAX_TRANSCRIPTS]}
    transcripts: Transcripts = {}
    for side in ("before", "after"):
        table = find_side(folder, evaluation, side)
        if table is None or not tasks:
            continue
        for experience in Table(table, create=False).records(pl.col("task").is_in(sorted(tasks))):
            key = str(experience.eid.task), side
            place = (experience.eid.run, -experience.eid.step, experience.eid.uid)
            known = transcripts.get(key)
            if known is None or place < (known.eid.run, -known.eid.step, known.eid.uid):
                transcripts[key] = experience
    return transcripts


def _transcript(row: dict[str, Any], transcripts: Transcripts) -> Markup:
    """Both models at one task, side by side from where they part; nothing if either is not there."""
    both = [transcripts.get((str(row["task"]), side)) for side in ("before", "after")]
    if both[0] is None or both[1] is None:
        return Markup("")
    (prompt, left), (_, right) = (conversation_of(experience) for experience in both if experience is not None)
    heads = [f"{side}, {format_number(row[side])}" for side in ("before", "after")]
    line = f"{row['task']}: {format_number(row['before'])} → {format_number(row['after'])}"
    asked = [render_turn(message) for message in prompt[-1:]]
    sides = tag("div", *render_sides(("before", "accent"), heads, left, right), class_="sides")
    return tag("details", tag("summary", line), tag("article", *asked, sides, class_="card pair"))


def _regressions(metric: dict[str, Any], transcripts: Transcripts) -> Markup:
    rows = metric["regressions"][:MAX_REGRESSIONS]
    title = f"{metric['name']}: worse on {metric['num_regressions']:,} of {metric['tasks']:,} tasks"
    if len(rows) < metric["num_regressions"]:
        title += f", the first {len(rows)} shown"
    cells = [[row["task"], *(format_number(row[name]) for name in ("before", "after", "difference"))] for row in rows]
    rows_table = table(("task", "before", "after", "difference"), cells)
    texts = [_transcript(row, transcripts) for row in rows[:MAX_TRANSCRIPTS]]
    if any(texts) and metric["num_regressions"] > MAX_TRANSCRIPTS:
        texts.append(tag("p", "What either model said at every task: pairwright view, with the folder.", class_="note"))
    return tag("details", tag("summary", title), tag("div", rows_table, class_="scroll"), *texts)


def _tasks(path: Path) -> Markup:
    if not path.is_file():
        return Markup("")
    rows = list(itertools.islice(_csv_rows(path), MAX_TASKS + 1))
    more = len(rows) > MAX_TASKS
    if len(rows) < 2:
        return Markup("")
    title = f"Every task: the first {MAX_TASKS} rows, all are in {path.name}" if more else "Every task"
    # the file has the metric first, the page the task
    cells = [[row[1], row[0], *row[2:]] for row in rows[1 : MAX_TASKS + 1]]
    heads = (rows[0][1], rows[0][0], *rows[0][2:])
    return tag("details", tag("summary", title), tag("div", table(heads, cells), class_="scroll"))


def _csv_rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        yield from (row for row in csv.reader(file) if len(row) >= 2)


def _method(evaluation: dict[str, Any]) -> str:
    options = evaluation.get("options", {})
    return (
        f"{evaluation.get('before')} against {evaluation.get('after')}. Intervals: {evaluation.get('method')}, "
        f"confidence {format_number(options.get('confidence'))}, {options.get('num_resamples', 0):,} resamples, "
        f"seed {options.get('seed')}."
    )


# The training section: curves from metrics.jsonl (loss, margins, accuracy, both log-probabilities in one plot).
#
# If the log-probabilities of chosen and rejected both fall (likelihood displacement), a sentence reports it. Long
# curves are downsampled to the mean of a few hundred windows with a band from minimum to maximum, so that spikes stay
# visible; the CSV has every row.


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
    """The finite values of a metric over the steps of all rounds, and the number of values that were not finite."""

    steps: list[float]
    values: list[float]
    num_lost: int


def curves_section(run: RunFolder) -> Section | None:
    """The curves of all rounds, or None if there are no metrics. Metrics beyond the main plots are collapsed."""
    rows, num_bad = metric_rows(run)
    if not rows:
        return None
    used = {name for lines in MAIN.values() for name, _ in lines}
    names = metric_names(rows)
    plots = [plot for title, lines in MAIN.items() if (plot := _plot(rows, title, lines))]
    others = [name for name in names if name not in used]
    more = [plot for name in others[:MAX_MORE] if (plot := _plot(rows, name, ((name, "accent"),)))]
    parts: list[Markup] = [tag("p", _sentence(run, rows, num_bad), class_="lead")]
    parts += [tag("p", note, class_="note") for note in _notes(run)]
    displaced = _displacement(rows)
    if displaced:
        parts.append(tag("p", tag("span", displaced[0], class_=f"chip {displaced[1]}"), " ", displaced[2]))
    parts.append(tag("div", *(plot.card() for plot in plots), class_="cards"))
    if len(rows) > MAX_POINTS:
        explanation = (
            "A line is the mean of neighbouring values, its band reaches from the least of them to the largest."
        )
        parts.append(tag("p", explanation, class_="note"))
    if more:
        left = f" ({len(others) - MAX_MORE} others are not drawn)" if len(others) > MAX_MORE else ""
        title = tag("summary", f"{len(more)} more curves{left}")
        parts.append(tag("details", title, tag("div", *(plot.card() for plot in more), class_="cards")))
    return Section("training", "Training", join(parts), [*plots, *more])


def metric_rows(run: RunFolder) -> tuple[list[dict[str, Any]], int]:
    """Read the rows of all rounds, with consecutive steps across rounds, and the number of invalid rows."""
    all_rows: list[dict[str, Any]] = []
    offset, num_bad = 0.0, 0
    for stages in run.rounds:
        if stages.metrics is None:
            continue
        rows, bad = read_rows(stages.metrics)
        num_bad += bad
        valid = [row for row in rows if _is_number(row.get("step")) and math.isfinite(row["step"])]
        num_bad += len(rows) - len(valid)
        all_rows += [{**row, "step": row["step"] + offset, "round": stages.name} for row in valid]
        # the next round starts where this one ended, so that all rounds share one x axis
        offset = max((row["step"] for row in all_rows), default=0.0)
    return all_rows, num_bad


def metric_names(rows: list[dict[str, Any]]) -> list[str]:
    """Names of all metrics in order of appearance; the eval_ one is drawn in the plot of its training metric."""
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
            is_eval = bool(suffix)
            lines.append(_line(curve, name + suffix, _eval_tone(tone, len(names)) if is_eval else tone, dots=is_eval))
    if not lines:
        return None
    note = f"{lost:,} values are not finite and are not drawn." if lost else ""
    legend = [(line.name, line.tone) for line in lines] if len(lines) > 1 else []
    svg = line_chart(lines, label=title)
    return Plot(f"training-{title}", title, svg, table, legend=legend, note=note)


def _eval_tone(tone: str, num_names: int) -> str:
    return "before" if num_names == 1 else tone


def _line(curve: Curve, name: str, tone: str, *, dots: bool) -> Line:
    every = -(-len(curve.steps) // MAX_POINTS)  # window size, rounded up
    if every == 1:
        return Line(name, curve.steps, curve.values, tone, dots=dots and len(curve.steps) <= 60)
    # (steps, values) of each window
    parts = [(curve.steps[at : at + every], curve.values[at : at + every]) for at in range(0, len(curve.steps), every)]
    xs = [math.fsum(steps) / len(steps) for steps, _ in parts]
    ys = [math.fsum(values) / len(values) for _, values in parts]
    lows, highs = ([edge(values) for _, values in parts] for edge in (min, max))
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
    return math.fsum(values[:tenth]) / tenth, math.fsum(values[-tenth:]) / tenth


def _sentence(run: RunFolder, rows: list[dict[str, Any]], num_bad: int) -> str:
    statuses = _statuses(run)
    parts = [f"{format_number(max(row['step'] for row in rows))} steps"]
    num_rounds = len({row["round"] for row in rows})
    if num_rounds > 1:
        parts.append(f"{num_rounds} rounds, one after the other")
    if statuses:
        parts.append(statuses[-1].state)
    if num_bad:
        parts.append(f"{num_bad:,} lines of metrics could not be read")
    return ", ".join(parts) + "."


def _notes(run: RunFolder) -> list[str]:
    """Notes of the training runs: refused records, content that the template does not render."""
    return list(dict.fromkeys(note for status in _statuses(run) for note in status.notes))


def _statuses(run: RunFolder) -> list[Status]:
    statuses = (read_status(stages.train.parent) for stages in run.rounds if stages.train)
    return [status for status in statuses if status is not None]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
