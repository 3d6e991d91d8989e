"""`pairwright evaluate BEFORE AFTER`: two models on the same tasks, and the gate."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.cli.completion import complete_words
from pairwright.cli.groups import GroupWithCompare
from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.overrides import ConfigCommand, Overrides, parse_overrides

if TYPE_CHECKING:
    from pairwright.evaluate import Evaluation


app = typer.Typer(
    cls=GroupWithCompare, help="Prove that a new model is better on the same tasks.", no_args_is_help=True
)


class Reduce(StrEnum):
    refuse = "refuse"
    mean = "mean"
    last = "last"
    sum = "sum"
    max = "max"
    min = "min"


class Method(StrEnum):
    bca = "bca"
    percentile = "percentile"


@app.command(cls=ConfigCommand)
def compare(
    before: Annotated[Path, typer.Argument(help="The old model's scores: a file or an experience table.")],
    after: Annotated[Path, typer.Argument(help="The new model's scores on the same tasks.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for evaluation.json.")] = None,
    config: Annotated[Path | None, typer.Option(help="Take the section `evaluate` of this file.")] = None,
    override: Overrides = None,
    metric: Annotated[list[str] | None, typer.Option(help="NAME or NAME:lower; the first counts; repeat.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Confidence of the intervals (0.95).")] = None,
    min_improvement: Annotated[float | None, typer.Option(help="Close the gate below this.")] = None,
    min_tasks: Annotated[int | None, typer.Option(help="Close the gate with fewer tasks (10).")] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            help="refuse, leave_out, or the score to give.", autocompletion=complete_words("refuse", "leave_out")
        ),
    ] = None,
    reduce: Annotated[Reduce | None, typer.Option(help="What counts where a run has several scores.")] = None,
    tie: Annotated[float | None, typer.Option(help="Differences up to this are draws (0).")] = None,
    success: Annotated[float | None, typer.Option(help="A run is solved from this score on (McNemar).")] = None,
    method: Annotated[Method | None, typer.Option(help="How the bootstrap makes its interval (bca).")] = None,
    resamples: Annotated[int | None, typer.Option(help="Bootstrap resamples (10,000).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the resamples.")] = None,
    where_before: Annotated[str | None, typer.Option(help="Only rows of BEFORE for which this SQL holds.")] = None,
    where_after: Annotated[str | None, typer.Option(help="Only rows of AFTER for which this SQL holds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two models on the same tasks and runs; exit code 2 if the gate stays closed."""
    from pairwright.cli.experience import _condition
    from pairwright.config import load_config
    from pairwright.evaluate import evaluate, read_scores
    from pairwright.evaluate.from_config import evaluate_settings

    keys = {
        "evaluate.metrics": None if metric is None else _metrics(metric), "evaluate.confidence": confidence,
        "evaluate.gate.min_improvement": min_improvement, "evaluate.gate.min_tasks": min_tasks,
        "evaluate.missing": missing, "evaluate.reduce": reduce, "evaluate.tie": tie, "evaluate.success": success,
        "evaluate.method": method, "evaluate.num_resamples": resamples, "seed": seed,
    }  # fmt: skip
    overrides = parse_overrides(override) + [(key, str(value)) for key, value in keys.items() if value is not None]
    settings = load_config(config, overrides=overrides)
    section = settings.evaluate
    sides = [
        read_scores(path, where=_condition(where), reduce=section.reduce)
        for path, where in ((before, where_before), (after, where_after))
    ]
    found = evaluate(sides[0], sides[1], **evaluate_settings(section, seed=settings.seed))
    show_evaluation(found, output, as_json=as_json)


@app.command(cls=ConfigCommand)
def run(
    config: Annotated[Path, typer.Argument(help="A configuration with `evaluate` and `policy`.", show_default=False)],
    before: Annotated[str, typer.Option(help="The old model: a folder, or a name at the endpoint.")],
    after: Annotated[str, typer.Option(help="The new model.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the run; by default runs/<name>.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an evaluation that was cut short.")] = False,
    override: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let two models play the held-out tasks with the same seeds; exit code 2 if the gate stays closed."""
    from pairwright.cli.collect_view import CollectView
    from pairwright.config import load_config
    from pairwright.evaluate.holdout import evaluate_models

    loaded = load_config(config, overrides=parse_overrides(override))
    folder = output or Path("runs") / loaded.name
    with CollectView() as view:
        found, played = evaluate_models(
            loaded, before=before, after=after, output=folder, resume=resume, base=config.resolve().parent,
            watch=view.show,
        )  # fmt: skip
    for side, collected in zip(("before", "after"), played, strict=True):
        for entry in collected.errors[:3]:
            say(f"{side}: task {entry.task!r}, run {entry.run} failed ({entry.kind}): {entry.message}")
    show_evaluation(found, folder, as_json=as_json)


def show_evaluation(found: "Evaluation", output: Path | None, *, as_json: bool) -> None:
    """Print an evaluation, write it where asked, and end with exit code 2 if the gate stays closed."""
    from pairwright.evaluate import evaluation_json, write_evaluation

    written = None if output is None else write_evaluation(output, found)
    if as_json:
        print_json(evaluation_json(found))
    else:
        columns = ("metric", "before", "after", "difference", "low", "high", "wins", "draws", "losses", "sign_test_p")
        rows = [
            (one.metric.name, one.before.mean, one.after.mean, one.difference.mean, one.difference.low,
             one.difference.high, one.wins, one.draws, one.losses, one.sign_test)
            for one in found.comparisons
        ]  # fmt: skip
        print_table("evaluation", columns, rows)
    for one in found.comparisons:
        for note in one.notes:
            say(f"{one.metric.name}: {note}")
        worse = one.regressions
        if worse:
            named = ", ".join(f"{row.task!r} ({row.difference:+.3g})" for row in worse[:3])
            say(f"{one.metric.name}: worse on {len(worse):,} of {one.num_tasks:,} tasks: {named}"
                + (", …" if len(worse) > 3 else ""))  # fmt: skip
    place = "" if written is None else f" Written to {written}."
    if found.verdict is not None and not found.verdict.passed:
        say(f"the gate stays closed: {found.verdict.reason}.{place}")
        raise typer.Exit(2)
    verdict = "" if found.verdict is None else f"the gate opens: {found.verdict.reason}."
    first = found.comparisons[0]
    say(verdict + f" {first.num_tasks:,} tasks, {first.num_runs:,} runs compared.{place}")


def _metrics(words: list[str]) -> str:
    """Metrics from the command line as the YAML that the configuration takes."""
    import msgspec

    found = []
    for word in words:
        name, colon, direction = word.rpartition(":")
        known = bool(colon) and direction in ("higher", "lower")
        found.append({"name": name if known else word, "better": direction if known else "higher"})
    return msgspec.json.encode(found).decode()
