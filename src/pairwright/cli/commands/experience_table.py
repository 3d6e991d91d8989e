"""`pairwright experience stats|head|filter|corrections DIR`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, condition_of
from pairwright.cli.output import flat_rows, print_json, print_json_line, print_table, say

app = typer.Typer(help="Look at an experience table, filter it, add corrections.", no_args_is_help=True)

Dir = Annotated[str, typer.Argument(help="The folder of an experience table; also s3://...", show_default=False)]
Where = Annotated[str | None, typer.Option(help="Only rows for which this SQL expression holds, e.g. 'reward > 0.5'.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def stats(
    folder: Dir,
    where: Where = None,
    credit: Annotated[
        bool, typer.Option("--credit", help="Also turns by verdict (ok, failed, unknown); reads every record.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count what a table holds: kinds, tasks, rewards, lengths, sources, and what people have excluded."""
    from pairwright.config.sections import CreditConfig
    from pairwright.pairs.decisions.exclusions import read_exclusions
    from pairwright.pairs.turn_credit import count_credit
    from pairwright.store.table import Table
    from pairwright.store.table_stats import table_statistics

    table = Table(folder, create=False)
    statistics = table_statistics(table, condition_of(where))
    if where is None:
        statistics["excluded"] = len(read_exclusions(table.path))
    if credit:
        counts = count_credit(table, CreditConfig(), condition_of(where))
        statistics |= {"turn credit": counts, "failed by": counts.pop("failed_by")}
    if as_json:
        print_json(statistics)
        return
    print_table(str(table.path), ("what", "value"), flat_rows(statistics))
    say(f"{statistics['experiences']:,} experiences in {table.path}. Next: pairwright experience head {table.path}")


@app.command()
def head(
    folder: Dir,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many.")] = 5,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show the first experiences: their conversation and reward, or whole as JSON lines."""
    from pairwright.records.grouping import conversation_of
    from pairwright.sources.datasets.pairwright_rows import experience_to_json
    from pairwright.store.table import Table

    table = Table(folder, create=False)
    experiences = table.head(num, condition_of(where))
    for exp in experiences:
        if as_json:
            print_json_line(experience_to_json(exp))
            continue
        print(f"{exp.eid.uid}  {exp.kind}  reward {exp.reward}")
        prompt, completion = conversation_of(exp)
        for message in prompt:
            _print_message("  prompt       ", message)
        for message in completion:
            # tool results and users inside of a completion are not what the model wrote
            label = "completion" if message.is_generated else "tool result" if message.role == "tool" else "prompt"
            _print_message(f"  {label:12} ", message)
        # only preferences have sides
        for name in ("chosen", "rejected"):
            side = getattr(exp, name)
            for message in conversation_of(exp, side).completion if side else ():
                _print_message(f"  {name:12} ", message)
        print()
    say(f"{len(experiences)} shown of {table.path}. Whole records: --json")


@app.command("filter")
def filter_rows(
    folder: Dir,
    where: Annotated[
        str, typer.Option(help="SQL condition of the rows to keep, e.g. 'reward > 0.5'.", show_default=False)
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar=PLACE, help="Folder of the new table.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Write the rows for which a condition holds into a new table."""
    from pairwright.paths import place
    from pairwright.store.conditions import parse_where
    from pairwright.store.exporting import filter_table
    from pairwright.store.table import Table

    source, target = Table(folder, create=False), place(output)
    num_rows, num_kept = filter_table(source, target, parse_where(where))
    if as_json:
        print_json({"rows": num_rows, "kept": num_kept, "left_out": num_rows - num_kept, "where": where})
    say(
        f"{num_kept:,} of {num_rows:,} experiences written to {target}, {num_rows - num_kept:,} left out by "
        f"--where {where!r}. Next: pairwright pairs {target} -o DIR"
    )


@app.command()
def corrections(
    folder: Dir,
    name: Annotated[
        str,
        typer.Option("--from", help="The correction: name of a text score, or a field of info.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new table.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Write corrected runs as preferences: the correction is chosen, the original rejected."""
    from pairwright.scores.corrections import add_corrections
    from pairwright.store.table import Table

    with Table(output) as target:
        counts = add_corrections(Table(folder, create=False), name, target)
    if as_json:
        print_json(dict(counts))
    else:
        print_table("corrections", ("what", "runs"), list(counts.items()))
    say(f"{counts['corrected']:,} preferences in {output}. Next: pairwright pairs {output} -o DIR --strategy imported")


def _print_message(label: str, message: Any) -> None:
    from pairwright.records.messages import count_ids

    text = " ".join(message.text.split())
    if num_ids := count_ids(message):
        text = f"{num_ids} token ids, no text"
    print(f"{label}{message.role}: {text[:160]}{'…' if len(text) > 160 else ''}")
    for call in message.tool_calls:
        print(f"{' ' * len(label)}  calls {call.name}({call.arguments[:120]})")
