"""`pairwright import PATH... -o DIR`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.guards import Interrupted, describe_stop
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.store.importing import ImportSummary

_COLUMNS = (
    "files",
    "experiences",
    "messages",
    "tool_calls",
    "errors",
    "unscored",
    "already_there",
    "quarantined",
)
# Headings of these columns in a terminal
_HEADINGS = {"experiences": "read", "errors": "failed tool calls", "already_there": "already imported"}
IMPORT_KEYS = (
    "sources.format", "sources.reward", "sources.map", "sources.task", "sources.run", "sources.step",
    "sources.compaction_prompt", "sources.redact", "engine.name", "engine.address", "engine.workers",
)  # fmt: skip


def import_files(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs; also s3://..., and - for standard input", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar=PLACE, help="Folder of the experience table.", show_default=False),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="CSV or JSON lines of rewards, by id (with or without a task) or by task and run."),
    ] = None,
    step_name: Annotated[str | None, typer.Option(help="NAT: name of the TTC step whose candidates to read.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Replace earlier imports of these files.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if anything was quarantined.")] = False,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `sources` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read agent traces into an experience table, and account for every record."""
    from pairwright.engines.process_pool import without_blas_threads

    # these imports load numpy, whose BLAS would start a thread per core
    with without_blas_threads():
        from pairwright.engines import open_engine
        from pairwright.paths import place
        from pairwright.sources.format import options_of
        from pairwright.store.importing import import_files as run_import
        from pairwright.store.importing import refuse_empty
        from pairwright.store.table import Table

    settings = load_settings(config, override, set_flags(ctx))
    sources = settings.sources
    paths = paths or list(sources.paths)
    if output is None and config is not None:
        output = str(Path("runs") / settings.name / "experience")
    if not paths or output is None:
        raise ConfigError("expected files to read and -o DIR, e.g. pairwright import traces/ -o runs/first/experience")
    folder = place(output)
    table = Table(folder)
    try:
        with Progress("reading", "MB") as progress, open_engine(settings.engine) as engine:
            summary = run_import(
                paths,
                table,
                format_name=sources.format,
                options=options_of(sources, step_name=step_name),
                redact=sources.redact,
                scores=scores,
                update=update,
                engine=engine,
                progress=progress.show,
            )
    except KeyboardInterrupt as error:
        line = f"{describe_stop('import')}; {folder} has {table.count():,} experiences now"
        raise Interrupted(line) from error
    _report(summary, as_json=as_json)
    # after the report, which explains why nothing was read
    refuse_empty(summary)
    if sources.compaction_prompt is not None and "codex" not in summary.formats:
        say("--compaction-prompt has no effect: it applies to Codex sessions only, and no file is one")
    if step_name is not None and "nat" not in summary.formats:
        say("--step-name has no effect: it applies to NAT's intermediate steps only, and no file has them")
    num_added = summary.total("experiences") - summary.total("already_there")
    if summary.total("already_there") and (sources.reward is not None or scores is not None):
        say("records that were imported earlier keep their rewards; import into a new table to change them")
    num_bad = summary.total("quarantined")
    quarantine = f"; {num_bad:,} in {folder}/quarantine.jsonl" if num_bad else ""
    say(f"{num_added:,} experiences added to {folder}{quarantine}. Next: pairwright experience stats {folder}")
    if strict and num_bad:
        raise PairwrightError(f"strict: {num_bad:,} records were quarantined")


def _report(summary: "ImportSummary", *, as_json: bool) -> None:
    value = {
        # every count is present, zeros too
        "formats": {name: dict.fromkeys(_COLUMNS, 0) | dict(counts) for name, counts in summary.formats.items()},
        "reasons": summary.reasons,
        "examples": summary.examples,
        "secrets": summary.secrets,
        "repairs": summary.repairs,
        "scores_to_choose": summary.scores_to_choose,
        "scores": {"rows": summary.num_scores, "used": summary.num_scores_used},
        "replaced": summary.num_replaced,
        "not_read": summary.not_read,
        "maps": summary.maps,
        "same_as": summary.same_as,
        "added": summary.total("experiences") - summary.total("already_there"),
    }
    rows = [(name, *(counts.get(column, 0) for column in _COLUMNS)) for name, counts in summary.formats.items()]
    print_result(value, "imported", ("format", *_COLUMNS), rows, as_json=as_json, short=_HEADINGS)
    # the most frequent reasons
    for reason, count in list(summary.reasons.items())[:10]:
        say(f"quarantined: {count:,} × {reason}; the first: {summary.examples[reason]}")
    if summary.secrets:
        kinds = {str(secret["kind"]) for secret in summary.secrets}
        say(f"redacted: {len(summary.secrets):,} secrets ({', '.join(sorted(kinds))}); --json lists where")
    for repair, count in summary.repairs.items():
        say(f"repaired: {count:,} × {repair}")
    if summary.total("unscored"):
        _say_unscored(summary)
    if summary.num_scores:
        say(f"scores: {summary.num_scores_used:,} of {summary.num_scores:,} were used")
    if summary.total("tokens_dropped"):
        say(f"token ids dropped: {summary.total('tokens_dropped'):,} records (not contiguous, see info.tokens_dropped)")
    for file, other in list(summary.same_as.items())[:3]:
        say(f"{file}: records were there already, from {other}; if the files are different runs, import both at once")
    if summary.not_read:
        names = ", ".join(f"{name} ({count:,})" for name, count in list(summary.not_read.items())[:10])
        say(f"not kept: fields of more than 2,000 bytes, by name and number of records: {names}; --map can use them")
    for file, text in list(summary.maps.items())[:3]:
        say(f"{file}: read with the map of an earlier import, --map {text}")
    if summary.num_replaced:
        say(f"replaced: {summary.num_replaced:,} records of an earlier import")


def _say_unscored(summary: "ImportSummary") -> None:
    """Say how many records have no reward, and which fields could be the score."""
    # "field: word" names a value of a field that is a word without a known number
    words: dict[str, list[str]] = {}
    names = []
    for name in summary.scores_to_choose:
        field, colon, word = name.partition(": ")
        if colon:
            words.setdefault(field, []).append(word)
        else:
            names.append(f"--reward={name} (less is better)" if name.startswith("-") else name)
    count = f"unscored: {summary.total('unscored'):,}"
    if names:
        say(f"{count}; --reward chooses among {', '.join(names)}")
    for field, some in list(words.items())[:3]:
        table = ", ".join(f"{word}: NUMBER" for word in some)
        say(f"{count}; the words of {field} have no known numbers: --map 'reward={field},scores={{{table}}}'")
    if not names and not words and summary.total("unscored") == summary.total("experiences"):
        say(f"{count}, and no field looks like a score: --scores FILE adds rewards by id")
