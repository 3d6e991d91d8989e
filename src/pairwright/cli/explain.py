"""`pairwright explain --run RUN`."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import print_json, print_table, say
from pairwright.cli.progress import Progress


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
        for one in () if as_json else ledger.accounts:
            rows = [(fate.name, fate.turns, fate.tokens, fate.num_uncounted or "") for fate in one.fates]
            rows.append(("generated", one.turns, one.tokens, sum(fate.num_uncounted for fate in one.fates) or ""))
            title = f"{ledger.name}, {one.channel}: {one.experiences:,} experiences"
            print_table(title, ("fate", "turns", "tokens", "turns without a count"), rows)
            say(
                f"{ledger.name}, {one.channel}: {one.loss_tokens:,} tokens in all updates, {one.drawn_tokens:,} by the "
                f"ledger; {one.num_as_sampled:,} of {one.num_recorded:,} recorded turns were trained as sampled"
            )
    if problems:
        raise LedgerError("the ledger does not add up: " + "; ".join(problems))
    say(f"{run}: every generated token has its place, and the sums agree")
