"""`pairwright evaluate BEFORE AFTER`: two models on the same tasks, and the gate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.cli.arguments import AsJson, RunOutput, condition_of
from pairwright.cli.commands.collect import say_failures
from pairwright.cli.help_style import GroupWithCompare
from pairwright.cli.key_options import with_options
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import CollectView
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.evaluation import Evaluation


app = typer.Typer(
    cls=GroupWithCompare, help="Prove that a new model is better on the same tasks.", no_args_is_help=True
)


# Keys that are options of `evaluate compare`
COMPARE_KEYS = (
    "evaluate.metrics", "evaluate.confidence", "evaluate.gate.min_improvement", "evaluate.gate.margin",
    "evaluate.gate.min_tasks",
    "evaluate.missing", "evaluate.reduce", "evaluate.tie", "evaluate.success", "seed",
)  # fmt: skip


@app.command(cls=with_options(*COMPARE_KEYS, after="override"))
def compare(
    ctx: typer.Context,
    before: Annotated[Path, typer.Argument(help="The old model's scores: a file or an experience table.")],
    after: Annotated[Path, typer.Argument(help="The new model's scores on the same tasks.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for evaluation.json.")] = None,
    config: Annotated[Path | None, typer.Option(help="Take the section `evaluate` of this file.")] = None,
    override: Overrides = None,
    where_before: Annotated[str | None, typer.Option(help="Condition of the rows of BEFORE to use.")] = None,
    where_after: Annotated[str | None, typer.Option(help="Condition of the rows of AFTER to use.")] = None,
    plan: Annotated[
        float | None,
        typer.Option(help="Only print how many tasks are needed to detect this difference.", min=0),
    ] = None,
    power: Annotated[float, typer.Option(help="With --plan: probability to detect it.", min=0.01, max=0.999)] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Compare two models on the same tasks and runs; exit code 2 if the gate stays closed."""
    from pairwright.evaluation import evaluate, read_scores
    from pairwright.evaluation.evaluation import evaluate_settings

    settings = load_settings(config, override, set_flags(ctx))
    section = settings.evaluate
    sides = [
        read_scores(path, where=condition_of(where), reduce=section.reduce)
        for path, where in ((before, where_before), (after, where_after))
    ]
    evaluation = evaluate(sides[0], sides[1], **evaluate_settings(section, seed=settings.seed))
    if plan is not None:
        _show_plan(evaluation, plan, power, as_json=as_json)
        return
    show_evaluation(evaluation, output, as_json=as_json)


@app.command(cls=with_options("evaluate.num_tasks", "policy.device", after="override"))
def run(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A configuration with `evaluate` and `policy`.", show_default=False)],
    before: Annotated[
        str, typer.Option(help="The old model: a folder, a GGUF file, URL#NAME, or a name at the endpoint.")
    ],
    after: Annotated[str, typer.Option(help="The new model.")],
    output: RunOutput = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted evaluation.")] = False,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Let two models play the held-out tasks with the same seeds; exit code 2 if the gate stays closed."""
    from pairwright.config import base_folder

    settings = load_settings(config, override, set_flags(ctx))
    folder = output or Path("runs") / settings.name
    say(f"examining {before} and {after} in {folder}")  # before the imports below, which take seconds
    from pairwright.evaluation.held_out_runs import evaluate_models

    with CollectView("examining") as view:
        evaluation, collections = evaluate_models(
            settings,
            before=before,
            after=after,
            output=folder,
            resume=resume,
            base=base_folder(settings, config),
            watch=view.show,
        )
    for side, collection in zip(("before", "after"), collections, strict=True):
        say_failures(collection, of=f"{side} ")
    show_evaluation(evaluation, folder, as_json=as_json)


def _show_plan(evaluation: "Evaluation", difference: float, power: float, *, as_json: bool) -> None:
    from dataclasses import asdict

    import numpy as np

    from pairwright.evaluation.paired_statistics import plan_tasks

    first = evaluation.comparisons[0]
    if first.num_tasks < 2 or difference <= 0:
        raise ConfigError("--plan: expected a difference above 0 and a pilot of at least two tasks")
    differences = np.array([row.difference for row in first.tasks])
    size = plan_tasks(differences, difference=difference, power=power, confidence=evaluation.options.confidence)
    figures = {"metric": first.metric.name, **asdict(size)}
    print_result(figures, "plan", ("what", "value"), list(figures.items()), as_json=as_json)
    say(
        f"{size.num_tasks:,} tasks detect a difference of {difference:g} in {first.metric.name} with {power:.0%} "
        "power; "
        f"{size.num_pilot:,} tasks as here detect {size.detectable:.3g}"
    )


def show_evaluation(evaluation: "Evaluation", output: Path | None, *, as_json: bool) -> None:
    """Print an evaluation, write it where asked, and end with exit code 2 if the gate stays closed."""
    from pairwright.evaluation import evaluation_json, write_evaluation

    path = None if output is None else write_evaluation(output, evaluation)
    columns = ("metric", "before", "after", "difference", "low", "high", "wins", "draws", "losses", "sign_test_p")
    rows = [
        (
            comparison.metric.name,
            comparison.before.mean,
            comparison.after.mean,
            *(comparison.difference.mean, comparison.difference.low, comparison.difference.high),
            *(comparison.wins, comparison.draws, comparison.losses),
            comparison.sign_test,
        )
        for comparison in evaluation.comparisons
    ]
    print_result(evaluation_json(evaluation), "evaluation", columns, rows, as_json=as_json)
    for comparison in evaluation.comparisons:
        for note in comparison.notes:
            say(f"{comparison.metric.name}: {note}")
        # losses in descending order
        worse = comparison.regressions
        if worse:
            names = ", ".join(f"{row.task!r} ({row.difference:+.3g})" for row in worse[:3])
            more = ", …" if len(worse) > 3 else ""
            say(f"{comparison.metric.name}: worse on {len(worse):,} of {comparison.num_tasks:,} tasks: {names}{more}")
    # the verdict comes last, since it decides the exit code
    place = "" if path is None else f" Written to {path}."
    if evaluation.verdict is not None and not evaluation.verdict.passed:
        say(f"the gate stays closed: {evaluation.verdict.reason}.{place}")
        raise typer.Exit(2)
    verdict = "" if evaluation.verdict is None else f"the gate opens: {evaluation.verdict.reason}."
    first = evaluation.comparisons[0]
    say(verdict + f" {first.num_tasks:,} tasks, {first.num_runs:,} runs compared.{place}")
