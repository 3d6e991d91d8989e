"""What commands print: results on stdout (a table or JSON), everything else on stderr."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pairwright.records.json_text import to_json


def print_json(value: Any) -> None:
    """A result as one JSON document. Non-finite numbers are written as `records.json_text` writes them."""
    sys.stdout.write(to_json(value) + "\n")


def print_result(
    value: Any, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool, **layout: Any
) -> None:
    """Print a result: `value` as JSON with --json, otherwise as a table. layout: options of `print_table`."""
    if as_json:
        print_json(value)
    else:
        print_table(title, columns, rows, **layout)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    short: Mapping[str, str] | None = None,
    left: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> None:
    """Print a result: in a terminal a table (`left`: columns of text; `hidden`: columns to leave out), in a pipe
    tab-separated lines with all columns."""
    # in a pipe: no colours and no wrapping, so that cut and awk can read it
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(value) for value in row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold underline", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        if name in hidden:
            continue
        is_first = number == 0
        label = (short or {}).get(name, name.replace("_", " "))
        table.add_column(label, justify="left" if is_first or name in left else "right", no_wrap=is_first)
    for row in rows:
        table.add_row(*(_cell(value) for name, value in zip(columns, row, strict=True) if name not in hidden))
    Console().print(table)


def flat_rows(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Rows (what, value) for `print_table`: plain values first, then the entries of each mapping as "name: key"."""
    rows = [(name, value) for name, value in values.items() if not isinstance(value, dict)]
    nested = [(name, value) for name, value in values.items() if isinstance(value, dict)]
    return rows + [(f"{name}: {key}", inner) for name, value in nested for key, inner in value.items()]


def say(line: str) -> None:
    print(line, file=sys.stderr)


def say_in_colour(line: str, colour: str) -> None:
    """A line on stderr, coloured in a terminal."""
    if not colour or not sys.stderr.isatty():
        say(line)
        return
    from rich.console import Console

    Console(stderr=True, highlight=False).print(line, style=colour, markup=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
