"""A plot: what is drawn on the page, and the same as an SVG file and as a CSV file of its numbers."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pairwright.report.markup import Markup, tag
from pairwright.report.style import plot_style

INDEX = "plots.json"


@dataclass(frozen=True)
class Plot:
    """`name` is the file's name, `legend` the series with their colours, `rows` the numbers, headings first."""

    name: str
    title: str
    svg: Markup
    rows: Sequence[Sequence[object]]
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""

    def card(self) -> Markup:
        """The plot as it stands on the page."""
        return tag(
            "figure",
            tag("h3", self.title),
            legend(self.legend) if self.legend else "",
            self.svg,
            tag("p", self.note, class_="note") if self.note else "",
            class_="card", style="margin:0",
        )  # fmt: skip


def legend(series: Sequence[tuple[str, str]]) -> Markup:
    return tag("p", *(tag("span", tag("i", class_=tone), name) for name, tone in series), class_="legend")


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Each plot as NAME.svg and NAME.csv. `plots.json` lists them; what it listed before is removed, nothing else."""
    _remove_listed(folder)
    if not plots:
        return
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for plot in plots:
        name = file_name(plot.name, taken)
        opening, rest = plot.svg.split(">", 1)
        (folder / f"{name}.svg").write_text(f"{opening}>{plot_style()}{rest}", encoding="utf-8")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(plot.rows)
        (folder / f"{name}.csv").write_text(text.getvalue(), encoding="utf-8")
    (folder / INDEX).write_bytes(msgspec.json.encode(sorted(taken)))


def _remove_listed(folder: Path) -> None:
    try:
        names = msgspec.json.decode((folder / INDEX).read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return
    for name in names:
        if re.fullmatch(r"[a-z0-9-]+", name):
            for ending in (".svg", ".csv"):
                (folder / f"{name}{ending}").unlink(missing_ok=True)
    (folder / INDEX).unlink(missing_ok=True)


def file_name(name: str, taken: set[str]) -> str:
    """A name that is safe as a file's, whatever metric or reason it came from, and not taken yet."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "plot"
    number = 1
    while (found := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    taken.add(found)
    return found
