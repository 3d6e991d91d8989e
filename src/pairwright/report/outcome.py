"""The outcome section, the first one: before and after with intervals, verdict, regressions."""

import csv
import itertools
from pathlib import Path
from typing import Any

import polars as pl

from pairwright.evaluation.evaluation import TASKS_NAME, read_evaluation
from pairwright.records.experience import Experience
from pairwright.records.grouping import conversation_of
from pairwright.report.charts import Line, Span, interval_chart, line_chart
from pairwright.report.markup import Markup, format_count, format_number, format_range, join, table, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.pairs_section import render_sides, render_turn
from pairwright.report.run_folder import RunFolder, find_side
from pairwright.store.table import Table

MAX_REGRESSIONS = 20  # rows of a metric's table
MAX_TRANSCRIPTS = 6  # regressions of a metric with transcripts of both models
MAX_TASKS = 200  # rows of the table of all tasks
Transcripts = dict[tuple[str, str], Experience]


def outcome_section(run: RunFolder) -> Section | None:
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
    options = evaluation.get("options", {})
    method = (
        f"{evaluation.get('before')} against {evaluation.get('after')}. Intervals: {evaluation.get('method')}, "
        f"confidence {format_number(options.get('confidence'))}, {options.get('num_resamples', 0):,} resamples, "
        f"seed {options.get('seed')}."
    )
    parts.append(tag("p", method, class_="note"))
    return Section("outcome", "Outcome", join(parts), [*plots, *([rounds] if rounds else [])])


def _hero(evaluation: dict[str, Any], metric: dict[str, Any], plot: Plot) -> Markup:
    """Render the main card: first metric before and after, its difference, wins and losses, and the gate."""
    difference, better = metric["difference"], _gain(metric)
    figure = tag(
        "div",
        tag("span", format_number(metric["before"]["mean"], 3), class_="was"),
        tag("span", "→", class_="to"),
        format_number(metric["after"]["mean"], 3),
        class_="figure",
    )
    bounds = format_range(difference["low"], difference["high"], 3)
    bounds = f" ({bounds})" if bounds else ""
    word = "No change"
    if better:
        word = f"{'Better' if better > 0 else 'Worse'} by {format_number(abs(difference['mean']), 3)}"
    sentence = tag("p", tag("b", word), f"{bounds} on {format_count(metric['tasks'], 'task')}.")
    words = tag("div", tag("h3", plot.title), figure, sentence, _wins(metric), _verdict(evaluation.get("gate")))
    return tag("div", words, tag("div", plot.svg), class_="card hero")


def _verdict(gate: dict[str, Any] | None) -> Markup:
    if gate is None:
        return tag("p", tag("span", "no gate was set", class_="chip quiet"))
    state, tone = ("open", "good") if gate["passed"] else ("closed", "bad")
    chip = tag("span", f"gate {state}", class_=f"chip {tone}")
    least, confidence = format_number(gate["min_improvement"]), format_number(gate["confidence"])
    requirement = f"asked for at least {least} with confidence {confidence}"
    reason = "" if gate["passed"] else tag("p", gate["reason"][:1].upper() + gate["reason"][1:] + ".", class_="note")
    return join([tag("p", chip, " ", tag("span", requirement, class_="note")), reason])


def _wins(metric: dict[str, Any]) -> Markup:
    parts = (("wins", "good", "won"), ("draws", "before", "drawn"), ("losses", "bad", "lost"))
    # flex values: widths are proportional to the counts
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
    # two points are the simple comparison, which the page shows anyway
    if len(rows) < 3:
        return None
    places, means, lows, highs = (list(column) for column in zip(*rows, strict=True))
    line = Line(name, places, means, low=lows, high=highs, dots=True)
    svg = line_chart([line], label=f"{name} by round", x_label="rounds of training", height=150)
    return Plot("outcome-rounds", f"{name}, round by round", svg, [("rounds", "mean", "low", "high"), *rows])


def _table(metrics: list[dict[str, Any]]) -> Markup:
    heads = ("metric", "before", "after", "difference", "interval", "change", "won", "drawn", "lost", "sign test p")
    rows = []
    for metric in metrics:
        difference, p_value = metric["difference"], metric["sign_test_p"]
        means = (metric["before"]["mean"], metric["after"]["mean"], difference["mean"])
        rows.append(
            [
                metric["name"],
                *(format_number(mean) for mean in means),
                format_range(difference["low"], difference["high"], 3) or "–",
                _change(metric),
                *(f"{metric[name]:,}" for name in ("wins", "draws", "losses")),
                "< 1e-6" if p_value < 1e-6 else format_number(p_value, 2),
            ]
        )
    return table(heads, rows)


def _change(metric: dict[str, Any]) -> Markup:
    """Render a chip: whether a metric changed significantly, i.e. its interval excludes zero or the sign test is below
    0.05."""
    difference, gain = metric["difference"], _gain(metric)
    is_clear = difference["low"] is not None and (difference["low"] > 0 or difference["high"] < 0)
    if not gain or not (is_clear or metric["sign_test_p"] < 0.05):
        return tag("span", "within chance" if gain else "none", class_="chip quiet")
    return tag("span", "better" if gain > 0 else "worse", class_=f"chip {'good' if gain > 0 else 'bad'}")


def _gain(metric: dict[str, Any]) -> float:
    """The difference of a metric, positive if the new model is better."""
    mean: float = metric["difference"]["mean"]
    return mean if metric["better"] == "higher" else -mean


def _read_transcripts(folder: Path, evaluation: dict[str, Any], metrics: list[dict[str, Any]]) -> Transcripts:
    """Return transcripts of both models for the worst regressions: (task, side) -> last step of the first run."""
    tasks = {str(row["task"]) for metric in metrics for row in metric["regressions"][:MAX_TRANSCRIPTS]}
    transcripts: Transcripts = {}
    for side in ("before", "after"):
        experiences = find_side(folder, evaluation, side)
        if experiences is None or not tasks:
            continue
        for experience in Table(experiences, create=False).records(pl.col("task").is_in(sorted(tasks))):
            key = str(experience.eid.task), side
            place = (experience.eid.run, -experience.eid.step, experience.eid.uid)
            known = transcripts.get(key)
            if known is None or place < (known.eid.run, -known.eid.step, known.eid.uid):
                transcripts[key] = experience
    return transcripts


def _transcript(row: dict[str, Any], transcripts: Transcripts) -> Markup:
    """Render both models on one task side by side; empty if either is missing."""
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
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = list(itertools.islice((row for row in csv.reader(file) if len(row) >= 2), MAX_TASKS + 1))
    more = len(rows) > MAX_TASKS
    if len(rows) < 2:
        return Markup("")
    title = f"Every task: the first {MAX_TASKS} rows, all are in {path.name}" if more else "Every task"
    # the file has the metric first, the page the task
    cells = [[row[1], row[0], *row[2:]] for row in rows[1 : MAX_TASKS + 1]]
    heads = (rows[0][1], rows[0][0], *rows[0][2:])
    return tag("details", tag("summary", title), tag("div", table(heads, cells), class_="scroll"))
