"""`pairwright demo`: the whole flow on an embedded example."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.overrides import Overrides, parse_overrides
from pairwright.cli.run import live_view


def run_demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")] = Path("runs/tic_tac_toe"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model, the games and the training.")] = 0,
    override: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on; the same command without it does so, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON.")] = False,
) -> None:
    """Teach a small model tic-tac-toe by preference pairs alone, on this machine, and prove that it got better."""
    from pairwright.errors import ConfigError
    from pairwright.flow.example import run_example

    if resume and not output.exists():
        raise ConfigError(f"--resume: {output} has no demo to go on with")
    with live_view() as view:
        _, evaluation = run_example(output, seed=seed, view=view, overrides=parse_overrides(override))
    if as_json:
        print_json(evaluation)
    else:
        columns = ("metric", "before", "after", "difference", "low", "high")
        rows = [
            (
                one["name"],
                one["before"]["mean"],
                one["after"]["mean"],
                *(one["difference"][key] for key in ("mean", "low", "high")),
            )
            for one in evaluation["metrics"]
        ]
        print_table("tic-tac-toe", columns, rows)
    say(f"the model that learned is in {output}; open {output / 'report.html'}")
