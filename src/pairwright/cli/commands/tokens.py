"""`pairwright tokens SOURCE --tokenizer DIR -o OUT`, `tokens show`, `tokens audit`, `tokens check`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.help_style import GroupWithDefault
from pairwright.cli.key_options import with_options
from pairwright.cli.output import flat_rows, print_json, print_result, print_table, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError
from pairwright.records.json_text import to_json

if TYPE_CHECKING:
    from pairwright.paths import Place
    from pairwright.tokens.sequence import Sequence
    from pairwright.tokens.stage.check import TemplateCheck
    from pairwright.tokens.tokenizer import ChatTokenizer

app = typer.Typer(
    help="Encode messages as training sequences: build, show, audit, check.", no_args_is_help=True, cls=GroupWithDefault
)

TokenizerDir = Annotated[Path, typer.Option("--tokenizer", help="A model's folder, with tokenizer.json, or a Hub id.")]
# Keys without an option: set them in a configuration, or as KEY=VALUE
_WITHOUT_OPTION = ("tokens.tokenizer", "tokens.keep_first", "tokens.clock", "tokens.boundaries")
_TEMPLATE_KEYS = ("tokens.chat_template", "tokens.chat_template_kwargs")
_SHOW_KEYS = (*_TEMPLATE_KEYS, "tokens.tools_as_text", "tokens.allow_dropped", "tokens.allow_images")
_PROBLEM = ("template", "problem", "turn", "conversations", "way_out")
# For each quirk of a template: what it concerns, and what to do
_QUIRKS = {
    "refuses_system": ("a system message", "-"),
    "refuses_system_in_the_middle": ("a system message in mid-dialogue", "-"),
    "no_calls": ("calls of tools", "--tools-as-text hermes writes them as text"),
    "no_results": ("results of tools", "--tools-as-text hermes writes them as text"),
    "counts_turns": ("many turns", "none needed"),
}
# Quirks that the conversations also show
_IN_CASES = {
    "refused_plain", "refused_calls", "rewrites_history", "no_tools", "no_parallel_calls", "drops_content",
    "drops_calls", "drops_reasoning",
}  # fmt: skip


@app.command(cls=with_options("tokens", "engine.name", "engine.address", without=_WITHOUT_OPTION))
def build(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="An experience table, or a folder of pairs; also s3://...", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model's folder, with tokenizer.json, or a Hub id.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar=PLACE, help="Folder of the cached sequences.", show_default=False),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `tokens` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Encode an experience table or pairs; cached sequences are not encoded again."""
    from pairwright.engines import open_engine
    from pairwright.paths import place
    from pairwright.tokens.stage.stage import encode_source

    flags = set_flags(ctx) | ({} if tokenizer is None else {"tokens.tokenizer": ("--tokenizer", str(tokenizer))})
    settings = load_settings(config, override, flags)
    options = settings.tokens
    # the folders of a configuration's run
    if config is not None:
        source = source or str(Path("runs") / settings.name / "pairs")
        output = output or str(Path("runs") / settings.name / "tokens")
    if source is None or output is None or options.tokenizer is None:
        example = "pairwright tokens runs/first/pairs --tokenizer path/to/model -o runs/first/tokens"
        raise ConfigError(f"expected a source, --tokenizer DIR and -o DIR, e.g. {example}")
    # `tokens.workers` overrides the workers of the engine
    folder, workers = place(output), options.workers or settings.engine.workers
    engine_settings = settings.engine.model_copy(update={"workers": workers})
    with Progress("encoding", "items") as progress, open_engine(engine_settings) as engine:
        manifest = encode_source(place(source), folder, options, engine=engine, progress=progress.show)
    _report(manifest, folder, options.tokenizer, as_json=as_json)


def _report(manifest: dict[str, Any], output: "Place", tokenizer: str, *, as_json: bool) -> None:
    from pairwright.tokens.stage.cache import describe_losses

    counts = {name: value for name, value in manifest.items() if name not in ("options", "credit")}
    print_result(manifest, str(output), ("what", "value"), flat_rows(counts), as_json=as_json)
    for line in describe_losses(manifest):
        say(f"warning: {line}")
    num_refused = sum(manifest["refused"].values())
    say(
        f"{manifest['sequences']:,} sequences of {manifest['encoded']:,} items in {output}, {num_refused:,} refused, "
        f"{manifest['trained_share']:.1%} of tokens trained. "
        f"Next: pairwright tokens show {output} --tokenizer {tokenizer}"
    )
    # everything was refused: say for each reason what to do
    if not manifest["sequences"]:
        from pairwright.tokens.refusals import WAY_OUT

        for reason in manifest["refused"]:
            say(f"{reason}: {WAY_OUT.get(reason, 'the page Tokens of the documentation says what this is')}")
        raise typer.Exit(1)


@app.command(cls=with_options(*_SHOW_KEYS, after="tokenizer"))
def show(
    ctx: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Cached sequences, an experience table, pairs, or a file of conversations (.json, .jsonl); also s3://...",
            show_default=False,
        ),
    ],
    tokenizer: TokenizerDir,
    name: Annotated[str | None, typer.Option("--id", help="Only the sequences of this experience or pair.")] = None,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many.")] = 3,
    hints: Annotated[
        bool, typer.Option("--hints", help="Experience table: show the teacher's sequences, with hints at error turns.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="A configuration whose `tokens` section to use; for --hints train.sdpo, too.")
    ] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Colour tokens by origin (generated, prompt, tool output, stop, hint), in the terminal."""
    import msgspec

    from pairwright.paths import local_folder, place
    from pairwright.tokens.encode_options import EncodeOptions
    from pairwright.tokens.hints import Hinter
    from pairwright.tokens.stage.paint import token_rows
    from pairwright.tokens.stage.preview import preview
    from pairwright.tokens.tokenizer import load_tokenizer

    others = [word for word in override or () if not word.startswith("tokens.")]
    if others and not hints:
        raise ConfigError(f"{' '.join(others)}: only --hints reads keys outside of the section `tokens`")
    settings = load_settings(config, override, set_flags(ctx))
    chat_tokenizer = load_tokenizer(settings.tokens.model_copy(update={"tokenizer": str(tokenizer)}))
    with local_folder(place(path)) as folder:  # sequences are mapped into memory
        hinter = Hinter(settings.train.sdpo) if hints else None
        refused: list[tuple[str, str]] = []
        sequences = preview(
            folder,
            chat_tokenizer,
            name=name,
            num=num,
            hints=hinter,
            options=EncodeOptions.of(settings.tokens),
            refused=lambda title, reason: refused.append((title, reason)),
        )
        if hinter is not None:
            hinter.close()
    for title, reason in refused:
        say(f"{title}: refused: {reason}")
    if as_json:
        print_json(
            [
                {
                    "name": title,
                    "report": msgspec.to_builtins(sequence.report),
                    "tokens": token_rows(chat_tokenizer, sequence),
                }
                for title, sequence in sequences
            ]
        )
    else:
        _print_sequences(chat_tokenizer, sequences)


def _print_sequences(tokenizer: "ChatTokenizer", sequences: "list[tuple[str, Sequence]]") -> None:
    """Print sequences in colours, in a pipe with brackets, each with its report."""
    from rich.console import Console

    from pairwright.tokens.stage.paint import describe_report, describe_size, legend, paint_text

    # colours also where Rich does not recognise the terminal; in a pipe lines are not wrapped
    has_colours = sys.stdout.isatty()
    console = Console(force_terminal=has_colours or None, soft_wrap=not has_colours)
    console.print(legend(colours=has_colours))
    for title, sequence in sequences:
        # printed separately, so that it is never wrapped
        heading = f"── {title}  {describe_size(sequence)}"
        console.print(heading, style="bold", markup=False, highlight=False, soft_wrap=True)
        console.print(paint_text(tokenizer, sequence, colours=has_colours))
        for line in describe_report(sequence):
            console.print(line, markup=False, highlight=False)


@app.command()
def audit(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file for the trainer, a file that import reads, or pairs.", show_default=False
        ),
    ],
    tokenizer: TokenizerDir,
    trainer: Annotated[Literal["trl"], typer.Option(help="Trainer whose preparation to run: trl.")] = "trl",
    max_length: Annotated[
        int | None, typer.Option(min=0, help="The trainer's max_length; 0 for none [default: the trainer's own].")
    ] = None,
    assistant_only_loss: Annotated[
        bool, typer.Option("--assistant-only-loss", help="SFT: the trainer's option of this name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a trainer's own preparation on a file, and report which tokens it trains that the model did not generate."""
    from pairwright.trl.mask_audit import audit_file

    arguments = {} if max_length is None else {"max_length": max_length or None}
    if assistant_only_loss:
        arguments["assistant_only_loss"] = True
    found = audit_file(path, tokenizer, arguments=arguments)
    counts = {name: getattr(found, name) for name in found.__struct_fields__}
    title = f"{path} as TRL's {found.trainer} trainer prepares it"
    print_result(counts, title, ("what", "value"), flat_rows(counts), as_json=as_json)
    wrong = found.trained - found.both
    say(
        f"TRL would train {found.trained:,} tokens, {wrong:,} of which the model did not generate "
        f"({wrong / max(found.trained, 1):.1%}), and leave out {found.left_out:,} of {found.generated:,} that it did"
    )


@app.command(cls=with_options(*_TEMPLATE_KEYS, after="tokenizer"))
def check(
    ctx: typer.Context,
    tokenizer: Annotated[
        list[Path],
        typer.Option("--tokenizer", help="A model's folder, with tokenizer.json, or a Hub id; may be repeated."),
    ],
    config: Annotated[Path | None, typer.Option(help="A configuration whose `tokens` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Test chat templates on small conversations: what is exact, what is refused and why, and better settings.

    Exit code 2 if a template does not support a plain conversation.
    """
    import msgspec

    from pairwright.tokens.stage.check import check_template
    from pairwright.tokens.tokenizer import load_tokenizer

    # Folders of the same name are distinguished by their paths.
    options = load_settings(config, override, set_flags(ctx)).tokens
    is_unique = len({folder.name for folder in tokenizer}) == len(tokenizer)
    reports = {}
    for folder in tokenizer:
        ready = load_tokenizer(options.model_copy(update={"tokenizer": str(folder)}))
        reports[folder.name if is_unique else str(folder)] = check_template(ready, try_variables=True)
    if as_json:
        values = {name: msgspec.to_builtins(report) for name, report in reports.items()}
        print_json(values if len(values) > 1 else next(iter(values.values())))
    else:
        _print_checks(reports)
    for name, report in reports.items():
        verdict = "supported" if report.is_supported else "not supported"
        counts = f"{report.num_exact} of {len(report.cases)} conversations exact"
        say(f"{name}: {verdict}, {counts}, tools {'supported' if report.supports_tools else 'not supported'}")
        if report.advice is not None:
            variables = to_json(report.advice.variables)
            better = f"{report.advice.num_exact} of {len(report.cases)} are exact, {report.advice.num_single} of them "
            say(
                f"{name}: with --chat-template-kwargs '{variables}' {better}as one sequence "
                f"(without it {report.num_exact} and {report.num_single})"
            )
    if not all(report.is_supported for report in reports.values()):
        raise typer.Exit(2)


def _print_checks(reports: "dict[str, TemplateCheck]") -> None:
    """A row for each template; then the cases that are not one exact sequence; then the quirks and an example."""
    counted = ("exact", "single", "by_turn", "refused", "dropped", "unstopped", "added")
    rows = []
    for name, report in reports.items():
        cases = report.cases
        losses = [sum(bool(getattr(case, field)) for case in cases) for field in ("dropped", "unstopped", "added")]
        by_turn = sum(case.is_exact and case.num_sequences > 1 for case in cases)
        refused = sum(not case.num_sequences for case in cases)
        counts = (f"{report.num_exact} of {len(cases)}", report.num_single, by_turn, refused, *losses)
        tools = "yes" if report.supports_tools else "no"
        rows.append((name, *counts, tools, " ".join(report.stops) or None))
    columns = ("template", *counted, "tools", "stops")
    # Hide losses that no template has, so that the others fit into a terminal.
    unused = {column for number, column in enumerate(columns) if not any(row[number] for row in rows)}
    title = "Chat templates, tried on small conversations"
    print_table(title, columns, rows, short={"single": "as one"}, left=("stops",), hidden=unused - {"refused"})
    if problems := _list_problems(reports):
        print_table("\nWhat is in the way of one exact sequence", _PROBLEM, problems, left=_PROBLEM)
    if len(reports) == 1:
        (report,) = reports.values()
        form = {"object": "an object", "text": "JSON text"}.get(report.arguments, report.arguments)
        print(f"\nArguments of calls are given as {form}.")
        print("An example; what is trained is in brackets:\n")
        print("".join(f"[{text}]" if trained else text for text, trained in report.example))


def _list_problems(reports: "dict[str, TemplateCheck]") -> "list[tuple[Any, ...]]":
    """A row for each template and reason: the first turn that it concerns, and the conversations."""
    rows: list[tuple[Any, ...]] = []
    for name, report in reports.items():
        problems: dict[tuple[str, str], list[str]] = {}
        turns: dict[tuple[str, str], str] = {}
        for case in report.cases:
            for problem in case.list_problems():
                key = problem.reason, problem.way_out
                problems.setdefault(key, []).append(case.name)
                turns.setdefault(key, "-" if problem.message is None else f"message {problem.message}")
        for (reason, way_out), cases in problems.items():
            others = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
            rows.append((name, reason, turns[reason, way_out], cases[0] + others, way_out or "-"))
        quirks = [quirk for quirk in report.quirks if quirk.name not in _IN_CASES]
        for quirk in quirks:
            what, way_out = _QUIRKS.get(quirk.name, (quirk.name, "-"))
            rows.append((name, f"{what}: {quirk.detail}", "-", "-", way_out))
    return rows
