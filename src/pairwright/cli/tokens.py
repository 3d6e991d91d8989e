"""`pairwright tokens SOURCE --tokenizer DIR -o OUT`, `tokens show`, `tokens check`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.groups import GroupWithBuild
from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.progress import Progress
from pairwright.errors import PairwrightError

app = typer.Typer(help="Messages to training sequences: build, show, check.", no_args_is_help=True, cls=GroupWithBuild)

TokenizerDir = Annotated[Path, typer.Option("--tokenizer", help="A model's folder, with tokenizer.json.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class TruncateSide(StrEnum):
    keep_start = "keep_start"
    keep_end = "keep_end"
    drop = "drop"


@app.command()
def build(
    source: Annotated[Path, typer.Argument(help="An experience table, or a folder of pairs.", show_default=False)],
    tokenizer: TokenizerDir,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the cached sequences.")],
    max_length: Annotated[int | None, typer.Option(min=1, help="Cut longer sequences.")] = None,
    truncation: Annotated[TruncateSide, typer.Option(help="What to keep of what is cut.")] = TruncateSide.keep_end,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    as_json: AsJson = False,
) -> None:
    """Encode an experience table or pairs; what is in the cache is not encoded again."""
    from pairwright.tokens.stage import EncodeOptions, encode_source

    options = EncodeOptions(str(tokenizer), max_length, truncation.value)
    with Progress("encoding", "items") as progress:
        manifest = encode_source(source, output, options, num_workers=workers, progress=progress.show)
    if as_json:
        print_json(manifest)
    else:
        rows = [(name, value) for name, value in manifest.items() if not isinstance(value, dict)]
        rows += [(f"refused: {reason}", count) for reason, count in manifest["refused"].items()]
        rows += [(f"length: {name}", value) for name, value in manifest["length"].items()]
        print_table(str(output), ("what", "value"), rows)
    num_refused = sum(manifest["refused"].values())
    say(
        f"{manifest['sequences']:,} sequences of {manifest['exact']:,} items in {output}, {num_refused:,} refused, "
        f"{manifest['trained_share']:.1%} of tokens trained. "
        f"Next: pairwright tokens show {output} --tokenizer {tokenizer}"
    )


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of cached sequences.", show_default=False)],
    tokenizer: TokenizerDir,
    name: Annotated[str | None, typer.Option("--id", help="Only the sequences of this experience or pair.")] = None,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many.")] = 3,
    html: Annotated[Path | None, typer.Option(help="Write a page instead.")] = None,
) -> None:
    """Paint tokens: generated, prompt, tool output, stop; in the terminal or as a page."""
    from itertools import islice

    import polars as pl

    from pairwright.tokens.show import html_page, legend, painted_text
    from pairwright.tokens.stage import read_sequences
    from pairwright.tokens.tokenizer import ChatTokenizer

    ready = ChatTokenizer.from_folder(tokenizer)
    where = None if name is None else pl.col("id") == name
    found = list(islice(read_sequences(folder, where), num))
    if not found:
        raise PairwrightError(f"{folder}: no sequence{'' if name is None else f' of {name}'}; see manifest.json")
    if html is not None:
        html.write_text(html_page(ready, [(f"{uid} {side}".strip(), sequence) for uid, side, sequence in found]))
        say(f"{len(found)} sequences painted in {html}")
        return
    from rich.console import Console

    console = Console(force_terminal=sys.stdout.isatty() or None)
    console.print(legend())
    for uid, side, sequence in found:
        console.rule(f"{uid} {side}  {len(sequence)} tokens, {sequence.num_trained} trained")
        console.print(painted_text(ready, sequence))


@app.command()
def check(tokenizer: TokenizerDir, as_json: AsJson = False) -> None:
    """Say whether a chat template is supported, and what is odd about it; exit code 2 if it is not."""
    import msgspec

    from pairwright.tokens.check import check_template

    found = check_template(str(tokenizer))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        rows = [
            ("supported", found.is_supported),
            ("tools", found.supports_tools),
            ("stops", ", ".join(found.stops)),
            ("arguments as", found.arguments),
            *((f"quirk: {quirk.name}", quirk.detail) for quirk in found.quirks),
        ]
        print_table(str(tokenizer), ("what", "value"), rows)
        print("example: " + "".join(f"[{text}]" if trained else text for text, trained in found.example))
    say(f"{tokenizer}: {'supported' if found.is_supported else 'not supported'}, {len(found.quirks)} quirks")
    if not found.is_supported:
        raise typer.Exit(2)
