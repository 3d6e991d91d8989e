"""`pairwright pairs [build]|stats|lint|explain|votes`, and `export`, `push` and `pull` of what it built."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, complete_target, complete_words
from pairwright.cli.help_style import GroupWithBuild
from pairwright.cli.key_options import set_flags, with_options
from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.overrides import Overrides, load_settings
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.export import ExportSummary
    from pairwright.paths import Place

app = typer.Typer(
    cls=GroupWithBuild, help="Build preference pairs from experience tables, and look at them.", no_args_is_help=True
)

Folder = Annotated[str, typer.Argument(help="The folder of a pairs table; also s3://...", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar=PLACE, help="Folder for the pairs.", show_default=False)
]


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
    """Pair the candidates of each group by their rewards, and say what became of every experience."""
    from pairwright.engines import open_engine
    from pairwright.pairs.build import build_pairs
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
    _report(summary, folder, as_json=as_json)


@app.command()
def stats(folder: Folder, as_json: AsJson = False) -> None:
    """Measure a pairs table: gaps, lengths, duplicates, splits, reward scales."""
    from pairwright.pairs.pair_stats import pair_statistics
    from pairwright.paths import place

    path = place(folder)
    statistics = pair_statistics(path)
    if as_json:
        print_json(statistics)
        return
    # plain values first, then each dict as rows of its own
    rows = [(name, value) for name, value in statistics.items() if not isinstance(value, dict)]
    for name, counts in statistics.items():
        if isinstance(counts, dict):
            rows += [(f"{name}: {key}", value) for key, value in counts.items()]
    print_table(str(path), ("what", "value"), rows)
    say(f"{statistics['pairs']:,} pairs in {path}. Next: pairwright pairs lint {path}")


@app.command()
def lint(
    folder: Folder,
    max_length_effect: Annotated[float, typer.Option(help="Bound on the length effect size.")] = 0.5,
    max_near_duplicates: Annotated[float, typer.Option(help="Bound on the share of near-duplicates.")] = 0.2,
    as_json: AsJson = False,
) -> None:
    """Check a pairs table before training on it; exit code 2 with the reasons if it should not be."""
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
def explain(
    folder: Folder,
    identity: Annotated[str, typer.Argument(metavar="ID", help="An experience's or a pair's id, or a part of it.")],
    as_json: AsJson = False,
) -> None:
    """Say where one experience went and why, or where a pair came from."""
    from pairwright.pairs.outcomes import explain as explain_id
    from pairwright.paths import place

    answer = explain_id(place(folder), identity)
    if as_json:
        print_json(answer)
        return
    # pairs are printed as lines below the table
    pairs = answer.pop("pairs", [])
    print_table(identity, ("what", "value"), list(answer.items()))
    for pair in pairs:
        print(
            f"pair {pair['id']}: {pair['chosen_uid']} ({pair['chosen_reward']:g}) over {pair['rejected_uid']} "
            f"({pair['rejected_reward']:g}), gap {pair['gap']:g}, {pair['split']}"
        )
    reason = answer.get("reason")
    if "experience" in answer:
        say(f"in {answer['num_chosen'] + answer['num_rejected']} pairs" + (f": {reason}" if reason else ""))


@app.command()
def votes(
    file: Annotated[Path, typer.Argument(help="A file of votes or ratings.", show_default=False)],
    experience: Annotated[
        list[str], typer.Argument(help="The experience tables that were judged; also s3://...", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Say how many people voted, and how far they agree with each other and with the reward."""
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
    for name, count in summary.get("crossing", {}).items():
        say(f"{count:,} of {summary['pairs']:,} pairs compare different {name}; --within can forbid them")
    validation = f", {summary['validation']:,} of them for validation" if summary["validation"] else ""
    say(f"{summary['pairs']:,} pairs written to {output}{validation}. Next: pairwright pairs lint {output}")


# `pairwright export PAIRS --to FORMAT -o FILE`, and `push` and `pull` of tables to and from the Hub.


def export_pairs(
    pairs: Annotated[
        str,
        typer.Argument(
            help="The folder of a pairs table, or its file; for trl-unpaired also an experience table; for tokens a "
            "folder of sequences; also s3://...",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Target, such as trl, or your own as file.py:FUNCTION. An unknown name lists them all.",
            show_default=False,
            autocompletion=complete_target,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar=PLACE, help="File to write, also s3://...; for hf a folder.", show_default=False
        ),
    ],
    split: Annotated[
        str,
        typer.Option(
            help="Which pairs: train, validation or all.", autocompletion=complete_words("all", "train", "validation")
        ),
    ] = "all",
    history: Annotated[
        bool, typer.Option("--history", help="customizer: messages with the full history as prompt.")
    ] = False,
    arguments: Annotated[
        str,
        typer.Option(
            help="Arguments of tool calls in chat messages: text (JSON text) or object.",
            autocompletion=complete_words("text", "object"),
        ),
    ] = "text",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Experience tables: reward from which on a run is labelled true [default: halfway between lowest and "
            "highest].",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="tokens: rows for dpo, sft or kto.",
            autocompletion=complete_words("dpo", "sft", "kto"),
        ),
    ] = "dpo",
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokens: the folder that they were encoded with.", show_default=False)
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="tokens: a model whose log-probabilities the rows have.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write pairs for a trainer, and say what became of every pair."""
    from pairwright.export import ExportOptions, NothingFits, export_runs, find_target
    from pairwright.paths import claim_file, local_folder, place

    if to == "tokens":
        from pairwright.training.token_rows import TokenRows

        if tokenizer is None:
            raise ConfigError("--to tokens: name the folder of the tokenizer: --tokenizer DIR")
        with local_folder(place(pairs)) as folder, claim_file(place(output), overwrite=overwrite, work="export"):
            rows = TokenRows(folder, tokenizer, kind, reference=reference)
            num_rows = rows.write_parquet(place(output), split)
        if as_json:
            print_json({"target": to, "kind": kind, "rows": num_rows, "refused": rows.refused, "output": output})
        say(f"{num_rows:,} rows for {kind} written to {output} (tokens); {sum(rows.refused.values()):,} items refused")
        return
    exporter = find_target(to)
    options = ExportOptions(split=split, history=history, arguments=arguments, needs_rows=True)  # type: ignore[arg-type]
    file, source = place(output), place(pairs)
    is_experience = (source / "table.json").exists()
    _check_source(pairs, to, threshold, is_experience=is_experience)
    try:
        with claim_file(file, overwrite=overwrite, work="export"):
            if is_experience:
                summary = export_runs(source, file, options, threshold=threshold)
            else:
                summary = exporter(source, file, options)
    except NothingFits as error:
        # the summary says why every pair was refused
        _report_export(error.summary, file, as_json=as_json)
        raise
    _report_export(summary, file, as_json=as_json)
    noun = "runs" if is_experience else "pairs"
    say(f"{summary.written:,} of {summary.pairs:,} {noun} written to {file} ({summary.target})")


def push_table(
    folder: Annotated[Path, typer.Argument(help="The folder of a pairs or experience table.", show_default=False)],
    repo: Annotated[str, typer.Argument(help="Dataset repository of the Hub, such as me/pairs.", show_default=False)],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch to push to, created if it is missing [default: main].")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence in the card, such as apache-2.0.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Push a table to a dataset repository of the Hub, with a card made of its funnel, statistics and hashes."""
    from pairwright.export.hub_dataset import push

    summary = push(folder, repo, private=private, revision=revision, license=license)
    if as_json:
        print_json({name: getattr(summary, name) for name in summary.__struct_fields__})
    what = f"{summary.rows:,} {'pairs' if summary.kind == 'pairs' else 'experiences'} in {summary.files:,} files"
    done = "pushed" if summary.changed else "were there already"
    say(f"{what} {done}: {repo} at {summary.revision[:12]}. Next: pairwright pull {repo} -o DIR")


def pull_table(
    repo: Annotated[str, typer.Argument(help="Dataset repository of the Hub, such as me/pairs.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the table; a new one.", show_default=False)
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit [default: main].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Download a table that was pushed, and check every byte of it; a pull that was cut off goes on."""
    from pairwright.export.hub_dataset import pull_files

    summary = pull_files(repo, output, revision=revision)
    if as_json:
        print_json({name: getattr(summary, name) for name in summary.__struct_fields__})
    is_pairs = summary.kind == "pairs"
    done = f"pulled to {output}" if summary.changed else f"were in {output} already"
    next_step = f"pairs lint {output}" if is_pairs else f"pairs {output} -o DIR"
    say(f"{summary.rows:,} {'pairs' if is_pairs else 'experiences'} {done}. Next: pairwright {next_step}")


def _check_source(source: str, to: str, threshold: float | None, *, is_experience: bool) -> None:
    """Raise where a target takes pairs and there are runs, or the other way round."""
    if is_experience and to != "trl-unpaired":
        raise PairwrightError(
            f"{source} is an experience table, and --to {to} takes pairs: build them with pairwright pairs {source}, "
            "or export labelled runs with --to trl-unpaired"
        )
    if threshold is not None and not is_experience:
        raise ConfigError("--threshold: pairs have a better and a worse side; it is for experience tables")


def _report_export(summary: "ExportSummary", output: "Place", *, as_json: bool) -> None:
    if as_json:
        print_json({name: getattr(summary, name) for name in summary.__struct_fields__} | {"output": str(output)})
    else:
        rows: list[tuple[str, int, str | None]] = [("pairs", summary.pairs, None), ("written", summary.written, None)]
        rows.append(("rows", summary.rows, None))
        for kind, counts in (("refused", summary.refused), ("noted", summary.noted)):
            # reason, number of pairs, and the id of one of them
            rows += [(f"{kind}: {reason}", num, summary.examples[reason][0]) for reason, num in sorted(counts.items())]
        print_table(f"exported to {summary.target}", ("what", "pairs", "example"), rows)
