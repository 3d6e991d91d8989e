"""What commands print: results on stdout, everything else on stderr, JSON on request."""

import sys
from collections.abc import Sequence
from typing import Any

from pairwright.jsontext import encode, to_json


def print_json(value: Any) -> None:
    """A result as one JSON document. Non-finite numbers are written as jsontext writes them."""
    sys.stdout.write(to_json(value) + "\n")


def print_json_line(value: Any) -> None:
    sys.stdout.write(encode(value).decode() + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A result for people: a Rich table in a terminal, tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(value) for value in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False
    )
    for number, name in enumerate(columns):
        is_first = number == 0
        table.add_column(name.replace("_", " "), justify="left" if is_first else "right", no_wrap=is_first)
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
