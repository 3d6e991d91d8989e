"""`pairwright export PAIRS --to FORMAT -o FILE`, and `push` and `pull` of tables to and from the Hub."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.cli.arguments import PLACE, complete_target, complete_words
from pairwright.cli.output import print_json, print_table, say
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.export import ExportSummary
    from pairwright.paths import Place


def export_pairs(
    pairs: Annotated[
        str,
        typer.Argument(
            help="The folder of a pairs table, or its file; for trl-unpaired also an experience table; also s3://...",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Target, such as trl. See docs/reference/exports.md.",
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write pairs for a trainer, and say what became of every pair."""
    from pairwright.export import EXPORTERS, ExportOptions, NothingFits, export_runs
    from pairwright.paths import place

    if to not in EXPORTERS:
        near = difflib.get_close_matches(to, EXPORTERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(EXPORTERS)}"
        raise ConfigError(f"--to {to!r}: {hint}")
    options = ExportOptions(split=split, history=history, arguments=arguments, needs_rows=True)  # type: ignore[arg-type]
    file, source = place(output), place(pairs)
    if file.exists() and not overwrite:
        raise PairwrightError(f"{file} exists: replace it with --overwrite, or choose another name")
    is_experience = (source / "table.json").exists()
    _check_source(pairs, to, threshold, is_experience=is_experience)
    try:
        if is_experience:
            summary = export_runs(source, file, options, threshold=threshold)
        else:
            summary = EXPORTERS[to](source, file, options)
    except NothingFits as error:
        # the summary says why every pair was refused
        _report(error.summary, file, as_json=as_json)
        raise
    _report(summary, file, as_json=as_json)
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


def _report(summary: "ExportSummary", output: "Place", *, as_json: bool) -> None:
    if as_json:
        print_json({name: getattr(summary, name) for name in summary.__struct_fields__} | {"output": str(output)})
    else:
        rows: list[tuple[str, int, str | None]] = [("pairs", summary.pairs, None), ("written", summary.written, None)]
        rows.append(("rows", summary.rows, None))
        for kind, counts in (("refused", summary.refused), ("noted", summary.noted)):
            # reason, number of pairs, and the id of one of them
            rows += [(f"{kind}: {reason}", num, summary.examples[reason][0]) for reason, num in sorted(counts.items())]
        print_table(f"exported to {summary.target}", ("what", "pairs", "example"), rows)
