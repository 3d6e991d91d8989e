"""`pairwright explain PATH [ID]`: what an import would make of a file, or what became of a table, a run or an id."""

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import AsJson
from pairwright.cli.output import print_json, print_result, print_table, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import Progress
from pairwright.errors import PairwrightError

if TYPE_CHECKING:
    from pairwright.paths import Place

EXPLAIN_KEYS = ("sources.format", "sources.reward", "sources.map", "sources.task")


def explain(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH [ID]",
            help="Files to import; a pairs or experience table or a run, with or without an id; or an id alone, which "
            "is looked up in the tables here and below runs/.",
            show_default=False,
        ),
    ],
    config: Annotated[Path | None, typer.Option(help="A configuration whose `sources` section to use.")] = None,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Explain a file (what each field would become), a table (what was dropped, and why), a run (where its tokens went)
    or an id (which pairs it is in, or why in none). Writes nothing.

    Exit code 2 if the tokens of a run do not add up.
    """
    from pairwright.paths import place
    from pairwright.store.table_marker import MARKER

    path = place(words[0])
    is_path = words[0] == "-" or path.exists() or glob.has_magic(words[0])
    if len(words) == 1 and (words[0].startswith('["') or not is_path):  # a whole id is a JSON list
        try:
            _explain_id([*_pairs_below(Path()), *_pairs_below(Path("runs"))], words[0], as_json=as_json)
        except PairwrightError as error:
            raise PairwrightError(f"{path}: no such file or folder; as an id: {error}") from None
        return
    is_table = (path / MARKER).exists()
    tables = _pairs_below(path.parent if is_table else path) if not path.is_file() else []
    if len(words) == 2 and (tables or is_table):
        _explain_id(tables, words[1], as_json=as_json)
    elif (path / "train.json").exists() or (isinstance(path, Path) and any(path.glob("**/train/train.json"))):
        _explain_tokens(Path(words[0]), as_json=as_json)
    elif tables:
        from pairwright.pairs.funnel import funnel_rows, read_funnel

        table = tables[-1]
        funnel = read_funnel(table)
        print_result(funnel, "funnel", ("stage", "what", "count"), funnel_rows(funnel), as_json=as_json)
        say(f"{funnel['pairs']:,} pairs in {table}. One experience or pair: pairwright explain {table} ID")
    elif is_table:
        raise PairwrightError(f"{path}: no pairs were built from it yet. Next: pairwright pairs {path} -o DIR")
    else:  # what each field of the first records of each file would become
        from pairwright.sources.explain import explain_file
        from pairwright.sources.files import expand_paths
        from pairwright.sources.format import options_of

        sources = load_settings(config, override, set_flags(ctx)).sources
        options = options_of(sources)
        explanations = [explain_file(file, sources.format, options) for file in expand_paths(words)]
        if as_json:
            print_json([explanation.as_json() for explanation in explanations])
        for explanation in () if as_json else explanations:
            typer.echo("\n".join(explanation.lines()))


def _pairs_below(folder: "Place") -> "list[Place]":
    """The pairs tables of a folder: the folder itself, or those of a run and its rounds."""
    from pairwright.pairs.outcomes import FILE_NAME

    if (folder / FILE_NAME).exists() or not isinstance(folder, Path):
        return [folder]
    patterns = (f"*/{FILE_NAME}", f"*/*/{FILE_NAME}", f"*/*/*/{FILE_NAME}")
    return [file.parent for pattern in patterns for file in sorted(folder.glob(pattern))]


def _explain_id(tables: "list[Place]", identity: str, *, as_json: bool) -> None:
    """Print the pairs of an experience, or why it has none; for the id of a pair, print its origin."""
    from pairwright.pairs.outcomes import explain as explain_id

    refusal = PairwrightError(f"{identity}: there is no pairs table; make one with: pairwright pairs EXPERIENCE -o DIR")
    for table in tables:
        try:
            answer = explain_id(table, identity)
            break
        except PairwrightError as error:
            refusal = error
    else:
        raise refusal
    if as_json:
        print_json(answer)
        return
    pairs = answer.pop("pairs", [])
    print_table(identity, ("what", "value"), list(answer.items()))
    for pair in pairs:
        print(
            f"pair {pair['id']}: {pair['chosen_uid']} ({pair['chosen_reward']:g}) over {pair['rejected_uid']} "
            f"({pair['rejected_reward']:g}), gap {pair['gap']:g}, {pair['split']}"
        )
    if "experience" in answer:
        reason = f": {answer['reason']}" if answer.get("reason") else ""
        say(f"in {answer['num_chosen'] + answer['num_rejected']} pairs of {table}{reason}")


def _explain_tokens(run: Path, *, as_json: bool) -> None:
    """Print where every generated token went, for each round and channel."""
    import msgspec

    from pairwright.ledger import LedgerError, build_ledger, train_folders

    ledgers = []
    for name, folder in train_folders(run):
        with Progress("encoding", "items") as progress:
            ledgers.append(build_ledger(name, folder, progress=progress.show))
    problems = [problem for ledger in ledgers for problem in ledger.problems]
    if as_json:
        print_json({"ledgers": msgspec.to_builtins(ledgers), "problems": problems})
    for ledger in ledgers:
        for note in ledger.notes:
            say(f"note: {ledger.name}: {note}")
        for account in () if as_json else ledger.accounts:
            num_uncounted = sum(fate.num_uncounted for fate in account.fates)
            rows: list[tuple[Any, ...]] = [
                (fate.name, fate.turns, fate.tokens, fate.num_uncounted or "") for fate in account.fates
            ]
            rows.append(("generated", account.turns, account.tokens, num_uncounted or ""))
            title = f"{ledger.name}, {account.channel}: {account.experiences:,} experiences"
            print_table(title, ("fate", "turns", "tokens", "turns without a count"), rows)
            say(
                f"{ledger.name}, {account.channel}: {account.loss_tokens:,} tokens in all updates, "
                f"{account.drawn_tokens:,} by the ledger; {account.num_as_sampled:,} of {account.num_recorded:,} "
                f"recorded turns were trained as sampled; {account.added_tokens:,} added tokens in "
                f"{account.num_with_added:,} trained sequences"
            )
    if problems:
        raise LedgerError("the ledger does not add up: " + "; ".join(problems))
    say(f"{run}: every generated token has its place, and the sums agree")
