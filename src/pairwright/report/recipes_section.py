"""The recipes section: results of `pairwright compare`, as a table and as differences to the baseline."""

from typing import Any

from pairwright.report.charts import Span, interval_chart
from pairwright.report.markup import Markup, format_count, format_number, join, table, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.run_folder import RunFolder, read_json

Json = dict[str, Any]


def recipes_section(run: RunFolder) -> Section | None:
    if run.comparison is None:
        return None
    compared = read_json(run.comparison)
    rows = [row for row in compared["recipes"] if row["results"]]
    plots = [plot for place in range(len(rows[0]["results"]) if rows else 0) if (plot := _plot(compared, rows, place))]
    budget = compared["budget"] and "{updates:,} updates of {sequences:,} sequences each".format(**compared["budget"])
    note = (
        f"Same experience, {budget or 'each recipe with its own number of updates'}, "
        f"{format_count(len(compared['seeds']), 'seed')}. Differences are to {compared['baseline']}, paired by task "
        f"and seed, with {compared['confidence']:.0%} intervals "
        f"{'over seeds (Student)' if len(compared['seeds']) > 1 else 'over tasks (bootstrap)'}, not corrected for the "
        "number of recipes."
    )
    body = [
        tag("p", note),
        tag("div", _table(compared), class_="card scroll"),
        tag("div", *(plot.card() for plot in plots), class_="cards"),
    ]
    return Section("recipes", "Recipes", join(body), plots)


def _table(compared: Json) -> Markup:
    columns = [f"{metric}, {exam}" for exam in compared["exams"] for metric in compared["metrics"]]
    heads = ("recipe", "what", "seeds", *columns, f"against {compared['baseline']}", "CPU minutes", "memory")
    lines = []
    for row in compared["recipes"]:
        errors = "; ".join(f"seed {seed}: {error}" for seed, error in row["errors"].items())
        values = [format_number(result["mean"], 3) for result in row["results"]] or [""] * len(columns)
        difference = row["results"][0]["difference"] if row["results"] else None
        memory = row["peak_memory_bytes"]
        what = join([row["what"], tag("p", errors, class_="note") if errors else ""])
        size = "" if memory is None else f"{memory / 2**30:.1f} GB"
        costs = (format_number(row["cpu_minutes"], 3), size)
        lines.append((row["recipe"], what, len(row["seeds"]), *values, describe_difference(difference), *costs))
    return table(heads, lines)


def describe_difference(difference: Json | None) -> str:
    """Format a difference with its interval.

    >>> describe_difference({"mean": 0.25, "low": 0.125, "high": 0.375})
    '+0.25 (+0.125 to +0.375)'
    """
    if difference is None:
        return ""
    if difference["low"] is None:
        return f"{difference['mean']:+.3g}"
    return f"{difference['mean']:+.3g} ({difference['low']:+.3g} to {difference['high']:+.3g})"


def _plot(compared: Json, rows: list[Json], place: int) -> Plot | None:
    """Plot the differences of one metric in one exam; None if no recipe has one."""
    results = [(row["recipe"], row["results"][place]) for row in rows]
    spans = [
        Span(name, result["difference"]["mean"], result["difference"]["low"], result["difference"]["high"])
        for name, result in results
        if result["difference"] is not None
    ]
    if not spans:
        return None
    title = f"{results[0][1]['metric']}, {results[0][1]['exam']}: difference to {compared['baseline']}"
    data: list[tuple[object, ...]] = [("recipe", "mean", "low", "high")]
    data += [(span.name, span.mean, span.low, span.high) for span in spans]
    name = f"recipes-{results[0][1]['exam']}-{results[0][1]['metric']}"
    return Plot(name, title, interval_chart(spans, label=title, zero=True), data)
