"""`pairwright tokens SOURCE --tokenizer DIR -o OUT`, `tokens show`, `tokens check`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import PLACE
from pairwright.cli.help_format import GroupWithBuild
from pairwright.cli.output import Progress, print_json, print_table, say
from pairwright.cli.overrides import ConfigCommand, Overrides, load_settings, parse_overrides, set_flags, with_options
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.paths import Place

app = typer.Typer(help="Messages to training sequences: build, show, check.", no_args_is_help=True, cls=GroupWithBuild)

TokenizerDir = Annotated[Path, typer.Option("--tokenizer", help="A model's folder, with tokenizer.json.")]
TemplateFile = Annotated[
    Path | None,
    typer.Option(help="A chat template's file to use instead of the default one, or its name.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(cls=with_options("tokens", "engine.name", "engine.address", without=("tokens.tokenizer",)))
def build(
    ctx: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="An experience table, or a folder of pairs; also s3://...", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model's folder, with tokenizer.json.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar=PLACE, help="Folder of the cached sequences.", show_default=False),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `tokens` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Encode an experience table or pairs; what is in the cache is not encoded again."""
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


@app.command(cls=ConfigCommand)
def show(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Cached sequences, an experience table, pairs, or a file of conversations (.json, .jsonl); also s3://...",
            show_default=False,
        ),
    ],
    tokenizer: TokenizerDir,
    chat_template: TemplateFile = None,
    name: Annotated[str | None, typer.Option("--id", help="Only the sequences of this experience or pair.")] = None,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many.")] = 3,
    hints: Annotated[
        bool, typer.Option("--hints", help="Experience table: the hinted teachers of error turns.")
    ] = False,
    allow_dropped: Annotated[
        bool, typer.Option("--allow-dropped", help="Also turns of which the template does not render everything.")
    ] = False,
    allow_images: Annotated[bool, typer.Option("--allow-images", help="Also messages with images.")] = False,
    config: Annotated[Path | None, typer.Option(help="--hints: a configuration; train.sdpo says which.")] = None,
    override: Overrides = None,
    html: Annotated[Path | None, typer.Option(help="Write a page instead.")] = None,
    as_json: AsJson = False,
) -> None:
    """Paint tokens: generated, prompt, tool output, stop, hint; in the terminal or as a page."""
    from pairwright.config import load_config
    from pairwright.paths import local_folder, place
    from pairwright.tokens.hints import Hinter
    from pairwright.tokens.stage.preview import describe_dropped, html_page, legend, paint_text, preview, token_rows
    from pairwright.tokens.tokenizer import ChatTokenizer, choose_template

    if override and not hints:
        raise ConfigError(f"{' '.join(override)}: only --hints reads keys of the configuration")
    template = None if chat_template is None else choose_template(tokenizer, chat_template)
    chat_tokenizer = ChatTokenizer.from_folder(tokenizer, template=template)
    with local_folder(place(path)) as folder:  # sequences are mapped into memory
        hinter = Hinter(load_config(config, overrides=parse_overrides(override)).train.sdpo) if hints else None
        sequences = preview(
            folder,
            chat_tokenizer,
            name=name,
            num=num,
            hints=hinter,
            allow_dropped=allow_dropped,
            allow_images=allow_images,
            refused=lambda title, reason: say(f"{title}: refused: {reason}"),
        )
        if hinter is not None:
            hinter.close()
    if html is not None:
        html.write_text(html_page(chat_tokenizer, sequences), encoding="utf-8")
        say(f"{len(sequences)} sequences painted in {html}")
    if as_json:
        print_json([{"name": title, "tokens": token_rows(chat_tokenizer, sequence)} for title, sequence in sequences])
    if as_json or html is not None:
        return
    from rich.console import Console

    # colours also where Rich does not recognise the terminal
    console = Console(force_terminal=sys.stdout.isatty() or None)
    console.print(legend())
    for title, sequence in sequences:
        console.rule(f"{title}  {len(sequence)} tokens, {sequence.num_trained} trained")
        console.print(paint_text(chat_tokenizer, sequence))
        for line in describe_dropped(sequence):
            console.print(line)


@app.command()
def check(tokenizer: TokenizerDir, chat_template: TemplateFile = None, as_json: AsJson = False) -> None:
    """Say whether a chat template is supported, and what is odd about it; exit code 2 if it is not."""
    import msgspec

    from pairwright.tokens.stage.check import check_template
    from pairwright.tokens.tokenizer import ChatTokenizer, choose_template

    template = None if chat_template is None else choose_template(tokenizer, chat_template)
    report = check_template(ChatTokenizer.from_folder(tokenizer, template=template))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        rows = [
            ("supported", report.is_supported),
            ("tools", report.supports_tools),
            ("stops", ", ".join(report.stops)),
            ("arguments as", report.arguments),
            *((f"quirk: {quirk.name}", quirk.detail) for quirk in report.quirks),
        ]
        print_table(str(tokenizer), ("what", "value"), rows)
        # trained tokens are in brackets
        print("example: " + "".join(f"[{text}]" if trained else text for text, trained in report.example))
    say(f"{tokenizer}: {'supported' if report.is_supported else 'not supported'}, {len(report.quirks)} quirks")
    if not report.is_supported:
        raise typer.Exit(2)


def _report(manifest: dict[str, Any], output: "Place", tokenizer: str, *, as_json: bool) -> None:
    from pairwright.tokens.stage.cache import describe_losses

    if as_json:
        print_json(manifest)
    else:
        rows = [(name, value) for name, value in manifest.items() if not isinstance(value, dict)]
        for name in ("refused", "length"):
            rows += [(f"{name}: {key}", value) for key, value in manifest[name].items()]
        print_table(str(output), ("what", "value"), rows)
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
            say(f"{reason}: {WAY_OUT.get(reason, 'docs/tokens.md says what this is')}")
        raise typer.Exit(1)
