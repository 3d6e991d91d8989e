"""Choose a recipe for the data: `pairwright advise TABLE`, `pairwright compare CONFIG --recipes FILE`."""

from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.output import print_json, print_result, print_table, say
from pairwright.cli.overrides import Overrides, parse_overrides


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
        say("some rewards exceed 1: set the lowest reward of a solved run with --solved")
    say("The evidence is from small models on a CPU; pairwright compare CONFIG --recipes FILE measures your data")


def _shown(value: Any) -> Any:
    return ", ".join(f"{name} {num:,}" for name, num in value.items()) or None if isinstance(value, dict) else value


def compare_recipes(
    config: Annotated[Path, typer.Argument(help="A configuration.", show_default=False)],
    recipes: Annotated[Path, typer.Option(help="A recipe file: recipes, budget and exams.", show_default=False)],
    override: Overrides = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; each has its own tasks, runs and training.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only these recipes; repeat. The table shows all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; by default runs/<name>-recipes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train several recipes on the same runs with equal budgets, and compare the models on the same exams."""
    from pairwright.cli.commands.run import LiveView
    from pairwright.config import base_folder, load_config
    from pairwright.errors import ConfigError, PairwrightError
    from pairwright.flow.compare_recipes import Comparer
    from pairwright.flow.recipes import read_recipes
    from pairwright.report import write_report
    from pairwright.report.recipes_section import describe_difference

    overrides = parse_overrides(override)
    settings = load_config(config, overrides=overrides)
    chosen = read_recipes(recipes)
    unknown = [name for name in only or () if name not in chosen.recipes]
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: expected one of {', '.join(chosen.recipes)}")
    folder = output or Path("runs") / f"{settings.name}-recipes"
    with LiveView() as view:
        comparer = Comparer(config, chosen, folder, base=base_folder(settings, config), overrides=overrides, view=view)
        table = comparer.run(range(first_seed, first_seed + seeds), only or list(chosen.recipes))
    write_report(folder, folder / "report.html", title=f"{settings.name}: recipes")
    columns = [f"{exam}_{metric}" for exam in table["exams"] for metric in table["metrics"]]
    heads = ("recipe", "seeds", *columns, f"against_{table['baseline']}", "cpu_minutes", "memory_gb")
    rows = []
    for row in table["recipes"]:
        means = [result["mean"] for result in row["results"]] or [None] * len(columns)
        difference = describe_difference(row["results"][0]["difference"]) if row["results"] else None
        memory = row["peak_memory_bytes"]
        gigabytes = None if memory is None else round(memory / 2**30, 2)
        rows.append((row["recipe"], len(row["seeds"]), *means, difference or None, row["cpu_minutes"], gigabytes))
    print_result(table, "recipes", heads, rows, as_json=as_json, left=heads[-3:-2])
    say(f"open {folder / 'report.html'}; every figure by seed is in {folder / 'comparison.json'}")
    failed = [
        f"{row['recipe']} (seed {seed}): {error}" for row in table["recipes"] for seed, error in row["errors"].items()
    ]
    if failed:
        raise PairwrightError(f"{len(failed)} failed: {'; '.join(failed)}. Repeat the command to retry them")
