"""`pairwright report RUN`: a run on one page; `pairwright explain --run RUN`: where every generated token went."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import Progress, print_json, print_table, say

# `pairwright report`.


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
    contents = write_report(run, page, tokenizer=tokenizer, title=title)
    size = page.stat().st_size
    if as_json:
        print_json({"page": str(page), "bytes": size, "sections": contents.sections, "plots": len(contents.plots)})
    say(
        f"{', '.join(contents.sections)} in {page} ({size / 1000:,.0f} kB); {len(contents.plots)} plots as SVG and CSV "
        f"in {page.parent / 'plots'}. Open the page in a browser."
    )


# `pairwright explain`.


def explain_run(
    run: Annotated[Path, typer.Option("--run", help="Folder of a run, of one of its rounds, or of a training.")],
    encode: Annotated[
        bool, typer.Option("--encode/--no-encode", help="Count tokens that were not recorded by encoding them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where every generated token went: trained, cut, refused, not paired; exit code 2 if the sums disagree."""
    import msgspec

    from pairwright.ledger import LedgerError, build_ledger, train_folders

    ledgers = []
    for name, folder in train_folders(run):
        with Progress("encoding", "items") as progress:
            ledgers.append(build_ledger(name, folder, encode=encode, progress=progress.show))
    problems = [problem for ledger in ledgers for problem in ledger.problems]
    if as_json:
        print_json({"ledgers": msgspec.to_builtins(ledgers), "problems": problems})
    for ledger in ledgers:
        for note in ledger.notes:
            say(f"note: {ledger.name}: {note}")
        # JSON has the accounts already
        for account in () if as_json else ledger.accounts:
            rows = [(fate.name, fate.turns, fate.tokens, fate.num_uncounted or "") for fate in account.fates]
            rows.append(
                ("generated", account.turns, account.tokens, sum(fate.num_uncounted for fate in account.fates) or "")
            )
            title = f"{ledger.name}, {account.channel}: {account.experiences:,} experiences"
            print_table(title, ("fate", "turns", "tokens", "turns without a count"), rows)
            say(
                f"{ledger.name}, {account.channel}: {account.loss_tokens:,} tokens in all updates, "
                f"{account.drawn_tokens:,} by the ledger; {account.num_as_sampled:,} of {account.num_recorded:,} "
                "recorded turns were trained as sampled"
            )
    if problems:
        raise LedgerError("the ledger does not add up: " + "; ".join(problems))
    say(f"{run}: every generated token has its place, and the sums agree")
