"""`pairwright export TABLE --to FORMAT -o FILE`, and `push` and `pull` of tables to and from the Hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec import to_builtins

from pairwright.cli.arguments import PLACE, AsJson, Overwrite, complete_target, condition_of
from pairwright.cli.output import print_json, print_result, say
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.export import ExportSummary
    from pairwright.paths import Place

Repository = Annotated[str, typer.Argument(help="Dataset repository of the Hub, such as me/pairs.", show_default=False)]
# Formats of an experience table, by the ending of the file; a path without an ending is a folder
_BY_ENDING = {".jsonl": "jsonl", ".parquet": "parquet", ".pwxp": "bytes", "": "hf"}


def export_table(
    table: Annotated[
        str,
        typer.Argument(
            help="A pairs table, its file, or an experience table; for --to tokens a folder of sequences; also "
            "s3://...",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar=PLACE, help="File to write, also s3://...; for hf a folder.", show_default=False
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Pairs: trl, nemo-rl-preference ..., or your own as file.py:FUNCTION; an unknown name lists them all. "
            "Experiences: jsonl, parquet, hf, bytes [default: by the file's ending], trl-unpaired.",
            show_default=False,
            autocompletion=complete_target,
        ),
    ] = None,
    split: Annotated[
        Literal["all", "train", "validation"], typer.Option(help="Pairs: train, validation or all.")
    ] = "all",
    where: Annotated[
        str | None, typer.Option(help="Experiences: condition of the rows to write: 'reward > 0.5'.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="customizer: write the full message history as prompt.")
    ] = False,
    arguments: Annotated[
        Literal["text", "object"],
        typer.Option(help="Arguments of tool calls in chat messages: text (JSON text) or object."),
    ] = "text",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="trl-unpaired of experiences: lowest reward of a run that is labelled true [default: halfway between "
            "lowest and highest].",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[Literal["dpo", "sft", "kto"], typer.Option(help="tokens: rows for dpo, sft or kto.")] = "dpo",
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokens: folder of the tokenizer that encoded them.", show_default=False)
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="tokens: add this model's log-probabilities to the rows.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write pairs for a trainer, or experiences as rows, and count what was written and refused."""
    from pairwright.export import ExportOptions, NothingFits, export_runs, find_target
    from pairwright.paths import claim_file, local_folder, place

    source, file = place(table), place(output)
    is_experience = (source / "table.json").exists()
    if is_experience and to is None:
        to = _BY_ENDING.get(file.suffix)
        if to is None:
            raise ConfigError(f"{file}: unknown ending {file.suffix!r}; say --to {'|'.join(_BY_ENDING.values())}")
    if to is None:
        raise ConfigError("--to: expected what to write the pairs for, e.g. --to trl")
    if where is not None and not (is_experience and to in _BY_ENDING.values()):
        raise ConfigError(f"--where: only rows of an experience table can be chosen, and not for --to {to}")
    if threshold is not None and not is_experience:
        raise ConfigError("--threshold: pairs have a better and a worse side; it is for experience tables")
    if is_experience and to in _BY_ENDING.values():
        from pairwright.store.exporting import export_experiences
        from pairwright.store.table import Table

        with claim_file(file, overwrite=overwrite, work="export"):
            experiences, condition = Table(source, create=False), condition_of(where)
            # checked first, so that no empty file is written
            if not experiences.count(condition):
                which = "" if where is None else f" for which {where!r} holds"
                raise PairwrightError(f"{experiences.path}: no experience{which}; nothing was written")
            num_rows = export_experiences(experiences, to, file, condition)
        if as_json:
            print_json({"target": to, "rows": num_rows, "output": str(file)})
        say(f"{num_rows:,} experiences written to {file} ({to})")
        return
    if is_experience and to != "trl-unpaired":
        raise PairwrightError(
            f"{table} is an experience table, and --to {to} takes pairs: build them with pairwright pairs {table} -o "
            "DIR, or export labelled runs with --to trl-unpaired"
        )
    if to == "tokens":
        from pairwright.training.token_rows import TokenRows

        if tokenizer is None:
            raise ConfigError("--to tokens: name the folder of the tokenizer: --tokenizer DIR")
        with local_folder(source) as folder, claim_file(file, overwrite=overwrite, work="export"):
            rows = TokenRows(folder, tokenizer, kind, reference=reference)
            num_rows = rows.write_parquet(file, split)
        if as_json:
            print_json({"target": to, "kind": kind, "rows": num_rows, "refused": rows.refused, "output": output})
        say(f"{num_rows:,} rows for {kind} written to {output} (tokens); {sum(rows.refused.values()):,} items refused")
        return
    exporter = find_target(to)
    options = ExportOptions(split=split, history=history, arguments=arguments, needs_rows=True)
    try:
        with claim_file(file, overwrite=overwrite, work="export"):
            if is_experience:
                summary = export_runs(source, file, options, threshold=threshold)
            else:
                summary = exporter(source, file, options)
    except NothingFits as error:
        # the summary says why every pair was refused
        _report(error.summary, file, as_json=as_json)
        raise
    _report(summary, file, as_json=as_json)
    noun = "runs" if is_experience else "pairs"
    say(f"{summary.written:,} of {summary.pairs:,} {noun} written to {file} ({summary.target})")


def push_table(
    folder: Annotated[Path, typer.Argument(help="The folder of a pairs or experience table.", show_default=False)],
    repo: Repository,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch to push to, created if it is missing [default: main].")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence in the card, such as apache-2.0.")] = None,
    as_json: AsJson = False,
) -> None:
    """Push a table to a dataset repository of the Hub, with a dataset card: funnel, statistics and hashes."""
    from pairwright.export.hub_dataset import push

    summary = push(folder, repo, private=private, revision=revision, license=license)
    if as_json:
        print_json(to_builtins(summary))
    what = f"{summary.rows:,} {'pairs' if summary.kind == 'pairs' else 'experiences'} in {summary.files:,} files"
    done = "pushed" if summary.changed else "were there already"
    say(f"{what} {done}: {repo} at {summary.revision[:12]}. Next: pairwright pull {repo} -o DIR")


def pull_table(
    repo: Repository,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the table; a new one.", show_default=False)
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit [default: main].")] = None,
    as_json: AsJson = False,
) -> None:
    """Download a table that was pushed, and verify its hashes; an interrupted pull continues."""
    from pairwright.export.hub_dataset import pull_files

    summary = pull_files(repo, output, revision=revision)
    if as_json:
        print_json(to_builtins(summary))
    is_pairs = summary.kind == "pairs"
    done = f"pulled to {output}" if summary.changed else f"were in {output} already"
    next_step = f"pairs lint {output}" if is_pairs else f"pairs {output} -o DIR"
    say(f"{summary.rows:,} {'pairs' if is_pairs else 'experiences'} {done}. Next: pairwright {next_step}")


def _report(summary: "ExportSummary", output: "Place", *, as_json: bool) -> None:
    rows: list[tuple[str, int, str | None]] = [
        (name, getattr(summary, name), None) for name in ("pairs", "written", "rows")
    ]
    for kind, counts in (("refused", summary.refused), ("noted", summary.noted)):
        # reason, number of pairs, and the id of one of them
        rows += [(f"{kind}: {reason}", num, summary.examples[reason][0]) for reason, num in sorted(counts.items())]
    value = to_builtins(summary) | {"output": str(output)}
    print_result(value, f"exported to {summary.target}", ("what", "pairs", "example"), rows, as_json=as_json)
