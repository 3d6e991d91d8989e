"""`pairwright pairs [build]|stats|lint|votes`."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.help_style import GroupWithDefault
from pairwright.cli.key_options import with_options
from pairwright.cli.output import flat_rows, print_json, print_result, print_table, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError, PairwrightError

app = typer.Typer(
    cls=GroupWithDefault, help="Build preference pairs from experience tables, and look at them.", no_args_is_help=True
)

Folder = Annotated[str, typer.Argument(help="The folder of a pairs table; also s3://...", show_default=False)]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar=PLACE, help="Folder for the pairs.", show_default=False)
]


class NoPairs(PairwrightError):
    """The tables gave no pair; the funnel is written, and the exit code is 2."""

    exit_code = 2


@app.command(cls=with_options("pairs", "seed", "engine.name", "engine.address"))
def build(
    ctx: typer.Context,
    experience: Annotated[
        list[str] | None,
        typer.Argument(help="Experience tables; also s3://...", show_default=False),
    ] = None,
    output: Output = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `pairs` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pair the candidates of each group by their rewards, and account for every experience."""
    from pairwright.engines import open_engine
    from pairwright.pairs.build import build_pairs
    from pairwright.pairs.funnel import funnel_rows
    from pairwright.pairs.options import pair_options
    from pairwright.paths import place
    from pairwright.store.table import Table

    settings = load_settings(config, override, set_flags(ctx))
    if config is not None:  # the folders of a configuration's run
        experience = experience or [str(Path("runs") / settings.name / "experience")]
        output = output or str(Path("runs") / settings.name / "pairs")
    if experience and output is None and place(experience[0]).is_file():
        file = experience[0]
        raise ConfigError(f"{file}: a file, not an experience table; import it first: pairwright import {file} -o DIR")
    if not experience or output is None:
        raise ConfigError("expected experience tables and -o DIR, e.g. pairwright pairs runs/first/experience -o pairs")
    folder, options = place(output), pair_options(settings)
    with Progress("building pairs:", "pieces") as progress, open_engine(settings.engine) as engine:
        tables = [Table(path, create=False) for path in experience]
        summary = build_pairs(tables, folder, options, engine=engine, progress=progress.show)
    for line in settings.pairs.list_unused():
        say(f"note: {line}")
    print_result(summary, "funnel", ("stage", "what", "count"), funnel_rows(summary), as_json=as_json)
    if not summary["pairs"]:
        raise NoPairs(f"{summary['hint'] or 'no pairs'}; {folder} says why in funnel.json")
    for name, count in summary.get("crossing", {}).items():
        say(f"{count:,} of {summary['pairs']:,} pairs compare different {name}; --within can forbid them")
    validation = f", {summary['validation']:,} of them for validation" if summary["validation"] else ""
    say(f"{summary['pairs']:,} pairs written to {folder}{validation}. Next: pairwright pairs lint {folder}")


@app.command()
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Measure a pairs table: gaps, lengths, duplicates, splits, reward scales."""
    from pairwright.pairs.pair_stats import pair_statistics
    from pairwright.paths import place

    path = place(folder)
    statistics = pair_statistics(path)
    print_result(statistics, str(path), ("what", "value"), flat_rows(statistics), as_json=as_json)
    say(f"{statistics['pairs']:,} pairs in {path}. Next: pairwright pairs lint {path}")


@app.command()
def lint(
    folder: Folder,
    max_length_effect: Annotated[float, typer.Option(help="Bound on the length effect size.")] = 0.5,
    max_near_duplicates: Annotated[float, typer.Option(help="Bound on the share of near-duplicates.")] = 0.2,
    as_json: AsJson = False,
) -> None:
    """Check a pairs table before training; exit code 2, with the reasons, if a check fails."""
    from pairwright.pairs.pair_stats import lint_pairs
    from pairwright.paths import place

    path = place(folder)
    findings = lint_pairs(path, max_length_effect=max_length_effect, max_near=max_near_duplicates)
    if as_json:
        print_json([{"name": finding.name, "message": finding.message} for finding in findings])
    elif findings:
        print_table(str(path), ("finding", "what"), [(finding.name, finding.message) for finding in findings])
    if findings:
        say(f"{path}: {len(findings)} findings: {'; '.join(finding.message for finding in findings)}")
        raise typer.Exit(2)
    say(f"{path}: nothing found. Next: pairwright export {path} --to trl -o FILE")


@app.command()
def votes(
    file: Annotated[Path, typer.Argument(help="A file of votes or ratings.", show_default=False)],
    experience: Annotated[
        list[str], typer.Argument(help="The experience tables that were judged; also s3://...", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Measure how many people voted, and how far they agree with each other and with the reward."""
    from pairwright.pairs.candidates.candidates import read_candidate_rows
    from pairwright.pairs.strategies.votes import read_votes
    from pairwright.store.table import Table

    rows = read_candidate_rows([Table(path, create=False) for path in experience])
    summary = read_votes(file, rows).summary
    if as_json:
        print_json(summary)
        return
    agreement = summary.pop("agreement", {})
    lines = list(summary.items())
    lines += [(name, agreement.get(name)) for name in ("items", "agreement", "alpha") if agreement]
    lines += [(f"decisions of {voter}", count) for voter, count in agreement.get("voters", {}).items()]
    for both in agreement.get("people", []):
        lines += [(f"{' and '.join(both['voters'])}: {name}", both[name]) for name in both if name != "voters"]
    for voter, counts in agreement.get("reward", {}).items():
        lines += [(f"reward and {voter}: {name}", value) for name, value in counts.items()]
    print_table(str(file), ("what", "value"), [(name, "-" if value is None else value) for name, value in lines])
    say(
        f"{summary['decisions']:,} {summary['kind']} in {file}. Next: pairwright pairs EXPERIENCE -o DIR --votes {file}"
    )
