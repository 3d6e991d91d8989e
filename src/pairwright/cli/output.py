"""What commands print: results on stdout, everything else on stderr, JSON on request."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pairwright.jsontext import encode, to_json


def print_json(value: Any) -> None:
    """A result as one JSON document. Non-finite numbers are written as jsontext writes them."""
    sys.stdout.write(to_json(value) + "\n")


def print_json_line(value: Any) -> None:
    sys.stdout.write(encode(value).decode() + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, short: Mapping[str, str] | None = None
) -> None:
    """A result for people: a table in a terminal, with short headings if given; tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(value) for value in row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold underline", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        is_first = number == 0
        label = (short or {}).get(name, name.replace("_", " "))
        table.add_column(label, justify="left" if is_first else "right", no_wrap=is_first)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console().print(table)


def say(line: str) -> None:
    """A line about what happened, on stderr."""
    print(line, file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
