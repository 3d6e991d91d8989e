"""`pairwright pairs [build]|stats|lint|explain`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pairwright.cli.groups import GroupWithBuild
from pairwright.cli.output import print_json, print_table, say

app = typer.Typer(
    cls=GroupWithBuild, help="Build preference pairs from experience tables, and look at them.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The folder of a pairs table.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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


@app.command()
def build(
    experience: Annotated[list[Path], typer.Argument(help="Folders of experience tables.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the pairs.", show_default=False)],
    strategy: Annotated[Strategy, typer.Option(help="Which candidates are paired.")] = Strategy.all,
    min_gap: Annotated[float, typer.Option(help="Least difference of rewards.")] = 0.0,
    max_gap: Annotated[float | None, typer.Option(help="Largest difference of rewards.")] = None,
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
    teachers: Annotated[list[Path] | None, typer.Option(help="teachers: table of a teacher's answers; repeat.")] = None,
    min_teachers: Annotated[int | None, typer.Option(help="teachers: how many must agree; more than half.")] = None,
    teacher_choice: Annotated[
        TeacherChoice, typer.Option(help="teachers: the answer of most, or the best-scored.")
    ] = TeacherChoice.majority,
    votes: Annotated[Path | None, typer.Option(help="CSV of votes instead of rewards.")] = None,
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
    seed: Annotated[int, typer.Option(help="Seed of sample and split.")] = 0,
    memory: Annotated[str, typer.Option(help="About how much text to hold at once.")] = "1GB",
    as_json: AsJson = False,
) -> None:
    """Pair the candidates of each group by their rewards, and say what became of every experience."""
    settings = dict(locals())
    _build(settings.pop("experience"), settings.pop("output"), as_json=settings.pop("as_json"), settings=settings)


@app.command()
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Measure a pairs table: gaps, lengths, duplicates, splits, reward scales."""
    from pairwright.pairs.stats import pair_statistics

    found = pair_statistics(folder)
    if as_json:
        print_json(found)
        return
    rows = [(name, value) for name, value in found.items() if not isinstance(value, dict)]
    for name, counts in found.items():
        if isinstance(counts, dict):
            rows += [(f"{name}: {key}", value) for key, value in counts.items()]
    print_table(str(folder), ("what", "value"), rows)
    say(f"{found['pairs']:,} pairs in {folder}. Next: pairwright pairs lint {folder}")


@app.command()
def lint(
    folder: Folder,
    max_length_effect: Annotated[float, typer.Option(help="Bound on the length effect size.")] = 0.5,
    max_near_duplicates: Annotated[float, typer.Option(help="Bound on the share of near-duplicates.")] = 0.2,
    as_json: AsJson = False,
) -> None:
    """Check a pairs table before training on it; exit code 2 with the reasons if it should not be."""
    from pairwright.pairs.stats import lint_pairs

    found = lint_pairs(folder, max_length_effect=max_length_effect, max_near=max_near_duplicates)
    if as_json:
        print_json([{"name": finding.name, "message": finding.message} for finding in found])
    elif found:
        print_table(str(folder), ("finding", "what"), [(finding.name, finding.message) for finding in found])
    if found:
        say(f"{folder}: {len(found)} findings: {'; '.join(finding.message for finding in found)}")
        raise typer.Exit(2)
    say(f"{folder}: nothing found. Next: pairwright export {folder} --to trl -o FILE")


@app.command()
def explain(
    folder: Folder,
    identity: Annotated[str, typer.Argument(metavar="ID", help="An experience's or a pair's id, or a part of it.")],
    as_json: AsJson = False,
) -> None:
    """Say where one experience went and why, or where a pair came from."""
    from pairwright.pairs.outcomes import explain as explained

    found = explained(folder, identity)
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


def _build(experience: list[Path], output: Path, *, as_json: bool, settings: dict[str, Any]) -> None:
    from pairwright.pairs.build import build_pairs
    from pairwright.pairs.funnel import funnel_rows
    from pairwright.pairs.options import PairOptions, Threshold
    from pairwright.store.table import Table

    settings = {name: value.value if isinstance(value, StrEnum) else value for name, value in settings.items()}
    settings["teachers"] = tuple(settings["teachers"] or ())
    settings["memory_megabytes"] = _megabytes(settings.pop("memory"))
    for name in ("high", "low"):
        settings[name] = Threshold.parse(settings[name], f"--{name}")
    options = PairOptions(**settings)
    summary = build_pairs([Table(folder, create=False) for folder in experience], output, options)
    if as_json:
        print_json(summary)
    else:
        print_table("funnel", ("stage", "what", "count"), funnel_rows(summary))
    if summary["hint"]:
        say(summary["hint"])
    held = f", {summary['validation']:,} of them for validation" if summary["validation"] else ""
    say(f"{summary['pairs']:,} pairs written to {output}{held}. Next: pairwright pairs lint {output}")


def _megabytes(text: str) -> int:
    from pairwright.errors import ConfigError

    units = {"MB": 1, "GB": 1024}
    number, unit = text[:-2].strip(), text[-2:].upper()
    if unit not in units or not number.isdigit() or not int(number):
        raise ConfigError(f"--memory: got {text!r}, expected a size such as 512MB or 2GB")
    return int(number) * units[unit]
