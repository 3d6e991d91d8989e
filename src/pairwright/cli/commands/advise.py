"""`pairwright advise TABLE`: what to train on these runs, and why."""

from textwrap import indent
from typing import Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.output import print_json, print_table, say


def advise_recipe(
    experience: Annotated[
        str, typer.Argument(metavar=PLACE, help="An experience table; also s3://...", show_default=False)
    ],
    solved: Annotated[
        float | None, typer.Option(help="Lowest reward of a solved run; by default 1, if no reward is above it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a training recipe for the runs and rewards of a table, with the evidence for it."""
    from pairwright.config.key_comments import to_yaml
    from pairwright.flow.advice import advise, figures_json, measure, recommended
    from pairwright.paths import place
    from pairwright.store.table import Table

    figures = measure(Table(place(experience), create=False), solved=solved)
    advice = advise(figures)
    chosen = recommended(advice)
    if as_json:
        rule = None if chosen is None else chosen.rule
        print_json({"figures": figures_json(figures), "advice": [vars(item) for item in advice], "recommended": rule})
    else:
        rows = [(name, _shown(value)) for name, value in figures_json(figures).items()]
        print_table(experience, ("what", "value"), rows)
        for item in advice:
            mark = " (recommended)" if item is chosen else ""
            print(f"\n{item.rule}{mark}: {item.advice}.\nEvidence: {item.evidence}.")
            if item.snippet is not None:
                print(indent(to_yaml(item.snippet), "    ").rstrip())
    if figures.solved_runs is None and figures.scored:
        say("rewards above 1: say from which reward on a run is solved with --solved")
    say("Small models on a CPU are the evidence; pairwright compare CONFIG --recipes FILE measures your own data")


def _shown(value: Any) -> Any:
    return ", ".join(f"{name} {num:,}" for name, num in value.items()) or None if isinstance(value, dict) else value
