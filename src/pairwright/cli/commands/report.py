"""`pairwright report RUN`: a run on one page; `pairwright view`: a local page over runs and tables."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.arguments import AsJson
from pairwright.cli.output import print_json, print_result, say
from pairwright.cli.progress_view import Progress
from pairwright.errors import ConfigError

Tokenizer = Annotated[Path | None, typer.Option(help="A model's folder, to colour tokens; by default the run's.")]


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page; by default RUN/report.html.")] = None,
    tokenizer: Tokenizer = None,
    title: Annotated[str | None, typer.Option(help="Heading; by default the folder's name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run on one self-contained page: outcome, funnel, pairs, tokens, training, settings."""
    from pairwright.report import write_report

    page = output or run / "report.html"
    contents = write_report(run, page, tokenizer=tokenizer, title=title)
    size = page.stat().st_size
    if as_json:
        print_json({"page": str(page), "bytes": size, "sections": contents.sections, "plots": len(contents.plots)})
    say(
        f"{', '.join(contents.sections)} in {page} ({size / 1000:,.0f} kB); {len(contents.plots)} plots as SVG and CSV "
        f"in {page.parent / 'plots'}. Open the page in a browser."
    )


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, experience tables, pairs, tokens, or folders of them.", show_default="runs"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8010,
    tokenizer: Tokenizer = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write a page that opens without a server into this folder.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Condition of the rows to export, e.g. 'reward < 0.5'.")] = None,
    search: Annotated[str, typer.Option(help="Export the rows that contain a text.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=20_000, help="Number of rows to export from each table.")] = 200,
    as_json: AsJson = False,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Look at runs, experiences, pairs, tokens and evaluations in the browser, and label or exclude them."""
    from pairwright.view.answers import Answers
    from pairwright.view.library import Library

    library = Library(folders or [Path("runs")], tokenizer=tokenizer)
    if export is not None:
        from pairwright.view.static_copy import export_view

        with Progress("exporting", "tables") as progress:
            exported = export_view(Answers(library), export, where=where, text=search, limit=limit, show=progress.show)
        rows = {key: {"exported": count, "matches": matches} for key, (count, matches) in exported.rows.items()}
        value = {"page": str(exported.page), "bytes": exported.num_bytes, "rows": rows, "whole": exported.whole}
        cells = [(key, count, matches) for key, (count, matches) in exported.rows.items()]
        print_result(value, "exported", ("table", "exported", "matches"), cells, as_json=as_json)
        for key in exported.whole:
            say(f"note: {key} does not have the columns of --where: its first rows are in the copy")
        say(f"{exported.page} ({exported.num_bytes / 1e6:,.1f} MB). Open it in a browser; it needs no server.")
        return
    if where is not None or search or as_json:
        raise ConfigError("--where, --search and --json belong to --export; on the page they are above the list")
    from pairwright.view.view_server import serve_view

    def announce(link: str) -> None:
        kinds = [item.kind for item in library.items.values()]
        counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        say(f"{', '.join(counts)}. Open {link} (Ctrl-C ends it).")
        if browser:
            import webbrowser

            webbrowser.open(link)

    serve_view(Answers(library), host=host, port=port, token=secrets.token_urlsafe(24), announce=announce)
