"""`pairwright score TABLE... --with SCORER`: scores for runs that have none."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.output import print_json, print_result, print_table, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.scores.score_tables import ScoreSummary

_MOST_CAUSES = 5
_SECONDS_PER_LINE = 10


def score_runs(
    ctx: typer.Context,
    experience: Annotated[
        list[str] | None, typer.Argument(metavar=PLACE, help="Experience tables.", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `score` section to use.")] = None,
    override: Overrides = None,
    calibrate: Annotated[
        str | None, typer.Option(help="Compare the scores of this scorer with human labels instead of scoring.")
    ] = None,
    labels: Annotated[
        str, typer.Option(help="Labels: reward (recorded rewards), a component of it, or a CSV of votes or ratings.")
    ] = "reward",
    threshold: Annotated[
        float | None, typer.Option(help="Lowest value of a good label [default: halfway].", show_default=False)
    ] = None,
    batch_out: Annotated[
        Path | None, typer.Option(help="Judges: write the requests to this OpenAI batch file instead of sending them.")
    ] = None,
    batch_in: Annotated[
        Path | None, typer.Option(help="Judges: read the results of a batch file, and send no requests.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score the runs of tables and store the scores with them; repeated, the command scores only what is missing."""
    from pairwright.config import base_folder
    from pairwright.scores.score_tables import score

    settings = load_settings(config, override, set_flags(ctx))
    if not experience and config is not None:
        experience = [str(Path("runs") / settings.name / "experience")]
    if experience and calibrate is not None:
        _calibrate(experience, calibrate, labels, threshold, as_json=as_json)
        return
    if not experience or not settings.score.scorers:
        raise ConfigError("expected tables and scorers, e.g. pairwright score runs/first/experience --with programs")
    if batch_out is not None and len(experience) * len(settings.score.scorers) > 1:
        raise ConfigError("--batch-out: one table and one judge at a time, since a file has the requests of one")
    base = None if config is None else base_folder(settings, config)
    summaries = []
    for table in experience:
        for scorer in settings.score.scorers:
            with Progress(f"scoring {scorer}:", "runs") as progress:
                summaries.append(
                    score(
                        table,
                        scorer,
                        judge=settings.score.judge,
                        max_requests=settings.score.max_requests,
                        max_concurrency=settings.score.max_concurrency,
                        batch_out=batch_out,
                        batch_in=batch_in,
                        base=base,
                        progress=progress.show,
                        watch=_say_cost(),
                    )
                )
    if batch_out is not None and summaries[0].written:
        if as_json:
            print_json([_figures(summaries[0])])
        say(
            f"{summaries[0].written:,} requests in {batch_out}; nothing was sent. Send it as a batch, then: "
            f"pairwright score {summaries[0].table} --with ... --batch-in RESULTS"
        )
        return
    _report(summaries, as_json=as_json)


def _say_cost() -> "Callable[[ScoreSummary], None]":
    """A function that reports requests to a judge and their cost every ten seconds."""
    next_line = time.monotonic() + _SECONDS_PER_LINE

    def watch(summary: "ScoreSummary") -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_PER_LINE
            failed = summary.failures.total()
            say(f"{summary.scorer}: {summary.requests:,} requests, {failed:,} failed, cost so far {summary.cost:.4g}")

    return watch


def _calibrate(tables: list[str], name: str, source: str, threshold: float | None, *, as_json: bool) -> None:
    from pairwright.scores.calibration import calibrate, format_estimate, read_labels
    from pairwright.store.table import Table

    reports = []
    for path in tables:
        table = Table(path, create=False)
        reports.append(calibrate(table, name, read_labels(table, source), threshold=threshold))
    if as_json:
        print_json(reports)
        return
    for path, report in zip(tables, reports, strict=True):
        columns = ("criterion", "labels", "base_rate", "agreement", "kappa", "length_bias", "slope")
        rows = []
        for criterion, found in report["criteria"].items():
            estimates = (format_estimate(found[key]) if found.get(key) else "-" for key in columns[3:6])
            rows.append((criterion, found["labels"], found["base_rate"], *estimates, found["slope"]))
        print_table(f"{name} against {source}", columns, rows)
        if "order_bias" in report:
            say(f"order bias {format_estimate(report['order_bias'])} in {report['comparisons']:,} comparisons")
        first = next(iter(report["criteria"].values()))
        for part in first["curve"]:
            counts = f"{part['labels']:,} of {part['runs']:,} labelled"
            say(f"score {part['from']:.3g} to {part['to']:.3g}: good {format_estimate(part['good'])}, {counts}")
        say(
            f"{len(report['next']):,} runs to label next are listed first in: pairwright view {path}. "
            f"Pairs by this score: pairwright pairs {path} -o DIR --score {name} --reliability weight"
        )


def _report(summaries: "list[ScoreSummary]", *, as_json: bool) -> None:
    figures = [_figures(summary) for summary in summaries]
    columns = ("table", "scorer", "runs", "scored", "kept", "unscored", "failed", "mean", "requests", "cost")
    rows = [tuple(row[name] for name in columns) for row in figures]
    print_result(figures, "scores", columns, rows, as_json=as_json)
    if not as_json:
        for summary in summaries:
            criteria = [f"{name} {mean:.3g}" for name, mean in summary.means.items() if name != "score"]
            if criteria:
                say(f"{summary.scorer}: {', '.join(criteria)}")
    for summary in summaries:
        for cause, count in summary.failures.most_common(_MOST_CAUSES):
            say(f"{summary.scorer}: {count:,} runs failed: {cause}")
        if summary.invalid or summary.cut:
            say(f"{summary.scorer}: {summary.invalid:,} answers did not fit, {summary.cut:,} tool results were cut")
    empty = [summary for summary in summaries if not summary.scored and not summary.kept]
    if empty:
        names = ", ".join(f"{summary.scorer} in {summary.table}" for summary in empty)
        first, num_failed = empty[0], empty[0].failures.total()
        reason = f"it does not apply to any of {first.runs:,} runs" if first.runs else "the table is empty"
        raise PairwrightError(
            f"no run was scored by {names}: {f'all {num_failed:,} tries failed' if num_failed else reason}"
        )
    first = summaries[0]
    say(
        f"{sum(summary.scored for summary in summaries):,} scores added. "
        f"Next: pairwright pairs {first.table} -o DIR --score {first.scorer}"
    )


def _figures(summary: "ScoreSummary") -> dict[str, Any]:
    return {**vars(summary), "failed": summary.failures.total(), "mean": summary.means.get("score")}
