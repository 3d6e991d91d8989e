"""`pairwright pairs [build]|stats|lint|explain`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.engine import AddressOption, EngineName, EngineOption, engine_settings, opened_engine
from pairwright.cli.groups import GroupWithBuild
from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.overrides import ConfigCommand, Overrides, load_settings
from pairwright.cli.places import PLACE
from pairwright.cli.progress import Progress
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.config import Config
    from pairwright.pairs.options import PairOptions
    from pairwright.places import Place

app = typer.Typer(
    cls=GroupWithBuild, help="Build preference pairs from experience tables, and look at them.", no_args_is_help=True
)

Folder = Annotated[str, typer.Argument(help="The folder of a pairs table; also s3://...", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar=PLACE, help="Folder for the pairs.", show_default=False)
]
Teachers = Annotated[
    list[str] | None, typer.Option(metavar=PLACE, help="teachers: table of a teacher's answers; repeat.")
]
Where = Annotated[
    str | None, typer.Option(help="Pair only experiences for which this SQL condition holds, e.g. 'run < 9'.")
]


class Strategy(StrEnum):
    all = "all"
    best_worst = "best-worst"
    stratified = "stratified"
    divergence = "divergence"
    teachers = "teachers"
    given = "given"


class Weight(StrEnum):
    one = "one"
    gap = "gap"
    chosen = "chosen"


class Contradictions(StrEnum):
    drop = "drop"
    majority = "majority"
    keep = "keep"


class BalanceBy(StrEnum):
    drop = "drop"
    reweight = "reweight"


class Curriculum(StrEnum):
    none = "none"
    easy_first = "easy-first"
    hard_first = "hard-first"


class TeacherChoice(StrEnum):
    majority = "majority"
    best = "best"


@app.command(cls=ConfigCommand)
def build(
    ctx: typer.Context,
    experience: Annotated[
        list[str] | None,
        typer.Argument(help="Experience tables; also s3://...", show_default=False),
    ] = None,
    output: Output = None,
    strategy: Annotated[Strategy, typer.Option(help="Which candidates are paired.")] = Strategy.all,
    min_gap: Annotated[float, typer.Option(help="Least difference of rewards.")] = 0.0,
    max_gap: Annotated[float | None, typer.Option(help="Largest difference of rewards.")] = None,
    tie_tolerance: Annotated[float, typer.Option(help="Rewards tie within this share of the larger one.")] = 1e-9,
    within_run: Annotated[bool, typer.Option(help="Compare only candidates of one run, as NAT does.")] = False,
    min_candidates: Annotated[int, typer.Option(help="Least number of candidates in a group.")] = 2,
    max_pairs_per_group: Annotated[int | None, typer.Option(help="Largest gaps to keep of a group.")] = None,
    max_pairs_per_task: Annotated[int | None, typer.Option(help="Largest gaps to keep of a task.")] = None,
    max_pairs: Annotated[int | None, typer.Option(help="Seeded sample of this many.")] = None,
    weight: Annotated[Weight, typer.Option(help="Weight of a pair: 1, its gap, or the chosen reward.")] = Weight.one,
    high: Annotated[str, typer.Option(help="stratified: chosen at least this; a reward or a quantile.")] = "0.7",
    low: Annotated[str, typer.Option(help="stratified: rejected at most this; a reward or a quantile.")] = "0.4",
    across_groups: Annotated[
        bool, typer.Option("--across-groups", help="stratified: allow different prompts; marked.")
    ] = False,
    max_per_chosen: Annotated[int, typer.Option(help="Across groups: rejected ones for each chosen one.")] = 1,
    tree: Annotated[bool, typer.Option("--tree", help="divergence: compare branches by their mean reward.")] = False,
    environment_divergence: Annotated[
        bool, typer.Option("--environment-divergence", help="divergence: also where a user or tool differed; marked.")
    ] = False,
    teachers: Teachers = None,
    min_teachers: Annotated[int | None, typer.Option(help="teachers: how many must agree; more than half.")] = None,
    teacher_choice: Annotated[
        TeacherChoice, typer.Option(help="teachers: the answer of most, or the best-scored.")
    ] = TeacherChoice.majority,
    votes: Annotated[Path | None, typer.Option(help="CSV of votes instead of rewards.")] = None,
    where: Where = None,
    dedupe: Annotated[bool, typer.Option(help="Keep equal pairs once.")] = True,
    near_duplicates: Annotated[float | None, typer.Option(help="Drop pairs at least this similar (0 to 1).")] = None,
    contradictions: Annotated[Contradictions, typer.Option(help="A over B and B over A.")] = Contradictions.drop,
    drop_truncated: Annotated[bool, typer.Option("--drop-truncated", help="Leave truncated ones out.")] = False,
    keep_masked: Annotated[bool, typer.Option("--keep-masked", help="Keep failed and masked rollouts.")] = False,
    length_balance: Annotated[float | None, typer.Option(help="Bound on the length effect size.")] = None,
    balance_by: Annotated[BalanceBy, typer.Option(help="How lengths are balanced.")] = BalanceBy.drop,
    validation: Annotated[float, typer.Option(help="Share of groups for the validation split.")] = 0.0,
    curriculum: Annotated[Curriculum, typer.Option(help="Order of tasks by mean reward.")] = Curriculum.none,
    curriculum_share: Annotated[float | None, typer.Option(help="Keep the first share of tasks.")] = None,
    curriculum_start: Annotated[float | None, typer.Option(help="Share of tasks in the first stage.")] = None,
    curriculum_increment: Annotated[float, typer.Option(help="Share that each further stage adds.")] = 0.2,
    curriculum_interval: Annotated[int, typer.Option(help="Epochs a trainer stays at a stage.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of sample and split.")] = 0,
    memory: Annotated[str, typer.Option(help="About how much memory to take.")] = "1GB",
    engine: EngineOption = None,
    address: AddressOption = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `pairs` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pair the candidates of each group by their rewards, and say what became of every experience."""
    settings = load_settings(config, override)
    _build(
        ctx, experience, output, settings, is_named=config is not None, engine=engine, address=address, as_json=as_json
    )


@app.command()
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Measure a pairs table: gaps, lengths, duplicates, splits, reward scales."""
    from pairwright.pairs.stats import pair_statistics
    from pairwright.places import place

    there = place(folder)
    found = pair_statistics(there)
    if as_json:
        print_json(found)
        return
    rows = [(name, value) for name, value in found.items() if not isinstance(value, dict)]
    for name, counts in found.items():
        if isinstance(counts, dict):
            rows += [(f"{name}: {key}", value) for key, value in counts.items()]
    print_table(str(there), ("what", "value"), rows)
    say(f"{found['pairs']:,} pairs in {there}. Next: pairwright pairs lint {there}")


@app.command()
def lint(
    folder: Folder,
    max_length_effect: Annotated[float, typer.Option(help="Bound on the length effect size.")] = 0.5,
    max_near_duplicates: Annotated[float, typer.Option(help="Bound on the share of near-duplicates.")] = 0.2,
    as_json: AsJson = False,
) -> None:
    """Check a pairs table before training on it; exit code 2 with the reasons if it should not be."""
    from pairwright.pairs.stats import lint_pairs
    from pairwright.places import place

    there = place(folder)
    found = lint_pairs(there, max_length_effect=max_length_effect, max_near=max_near_duplicates)
    if as_json:
        print_json([{"name": finding.name, "message": finding.message} for finding in found])
    elif found:
        print_table(str(there), ("finding", "what"), [(finding.name, finding.message) for finding in found])
    if found:
        say(f"{there}: {len(found)} findings: {'; '.join(finding.message for finding in found)}")
        raise typer.Exit(2)
    say(f"{there}: nothing found. Next: pairwright export {there} --to trl -o FILE")


@app.command()
def explain(
    folder: Folder,
    identity: Annotated[str, typer.Argument(metavar="ID", help="An experience's or a pair's id, or a part of it.")],
    as_json: AsJson = False,
) -> None:
    """Say where one experience went and why, or where a pair came from."""
    from pairwright.pairs.outcomes import explain as explained
    from pairwright.places import place

    found = explained(place(folder), identity)
    if as_json:
        print_json(found)
        return
    pairs = found.pop("pairs", [])
    print_table(identity, ("what", "value"), list(found.items()))
    for pair in pairs:
        print(f"pair {pair['id']}: {pair['chosen_uid']} ({pair['chosen_reward']:g}) over {pair['rejected_uid']} "
              f"({pair['rejected_reward']:g}), gap {pair['gap']:g}, {pair['split']}")  # fmt: skip
    reason = found.get("reason")
    if "experience" in found:
        say(f"in {found['num_chosen'] + found['num_rejected']} pairs" + (f": {reason}" if reason else ""))


def _build(
    ctx: typer.Context, experience: list[str] | None, output: str | None, settings: "Config", *,
    is_named: bool, engine: EngineName | None, address: str | None, as_json: bool,
) -> None:  # fmt: skip
    from pairwright.places import place

    if is_named:  # the folders of a configuration's run
        experience = experience or [str(Path("runs") / settings.name / "experience")]
        output = output or str(Path("runs") / settings.name / "pairs")
    if not experience or output is None:
        raise ConfigError("expected experience tables and -o DIR, e.g. pairwright pairs runs/first/experience -o pairs")
    where, folder = engine_settings(settings.engine, engine, address), place(output)
    with Progress("building pairs:", "pieces") as progress, opened_engine(where) as opened:
        summary = _built(experience, folder, _options(ctx, settings), engine=opened, progress=progress.show)
    _report(summary, folder, as_json=as_json)


def _options(ctx: typer.Context, settings: "Config") -> "PairOptions":
    """The options of a configuration, with what the command line says in their place."""
    from dataclasses import fields, replace

    from pairwright.pairs.from_config import pair_options
    from pairwright.pairs.options import PairOptions, Threshold
    from pairwright.places import place

    told = {name: value for name, value in ctx.params.items() if _is_told(ctx, name)}
    told = {name: value.value if isinstance(value, StrEnum) else value for name, value in told.items()}
    if "memory" in told:
        told["memory_megabytes"] = _megabytes(told["memory"])
    if "teachers" in told:
        told["teachers"] = tuple(map(place, told["teachers"]))
    for name in ("high", "low"):
        if name in told:
            told[name] = Threshold.parse(told[name], f"--{name}")
    known = {field.name for field in fields(PairOptions)}
    return replace(pair_options(settings), **{name: value for name, value in told.items() if name in known})


def _is_told(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _built(experience: list[str], output: "Place", options: "PairOptions", **run: Any) -> dict[str, Any]:
    from pairwright.pairs.build import build_pairs
    from pairwright.store.table import Table

    return build_pairs([Table(folder, create=False) for folder in experience], output, options, **run)


class NoPairs(PairwrightError):
    """The tables gave no pair: the funnel is written, and the answer is no."""

    exit_code = 2


def _report(summary: dict[str, Any], output: "Place", *, as_json: bool) -> None:
    from pairwright.pairs.funnel import funnel_rows

    if as_json:
        print_json(summary)
    else:
        print_table("funnel", ("stage", "what", "count"), funnel_rows(summary))
    if not summary["pairs"]:
        raise NoPairs(f"{summary['hint'] or 'no pairs'}; {output} says why in funnel.json")
    held = f", {summary['validation']:,} of them for validation" if summary["validation"] else ""
    say(f"{summary['pairs']:,} pairs written to {output}{held}. Next: pairwright pairs lint {output}")


def _megabytes(text: str) -> int:
    units = {"MB": 1, "GB": 1024}
    number, unit = text[:-2].strip(), text[-2:].upper()
    if unit not in units or not number.isdigit() or not int(number):
        raise ConfigError(f"--memory: got {text!r}, expected a size such as 512MB or 2GB")
    return int(number) * units[unit]
