"""`pairwright report RUN`: one page that shows every stage of a run."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import print_json, say


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page; by default RUN/report.html.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model's folder, to paint tokens; by default the run's.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading; by default the folder's name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Show a run on one self-contained page: outcome, funnel, pairs, tokens, training, settings."""
    from pairwright.report import write_report

    page = output or run / "report.html"
    found = write_report(run, page, tokenizer=tokenizer, title=title)
    size = page.stat().st_size
    if as_json:
        print_json({"page": str(page), "bytes": size, "sections": found.sections, "plots": len(found.plots)})
    say(f"{', '.join(found.sections)} in {page} ({size / 1000:,.0f} kB); {len(found.plots)} plots as SVG and CSV in "
        f"{page.parent / 'plots'}. Open the page in a browser.")  # fmt: skip
