"""Parts of the page: sections and plots. A plot is also written as SVG and CSV; style sheets are embedded in both."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

from pairwright.report.markup import Markup, tag

PLOT_SHEETS = ("colours.css", "plot.css")  # what a plot's SVG file embeds
INDEX = "plots.json"


def style_of(*names: str) -> Markup:
    sheets = [(files("pairwright.report") / name).read_text(encoding="utf-8") for name in names]
    return tag("style", Markup("\n".join(sheets)))


@dataclass(frozen=True)
class Plot:
    """A plot. `name` is the file name, `legend` the series with their colours, `rows` the CSV, with a header row."""

    name: str
    title: str
    svg: Markup
    rows: Sequence[Sequence[object]]
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""

    def card(self) -> Markup:
        keys = [tag("span", tag("i", class_=tone), name) for name, tone in self.legend]
        return tag(
            "figure",
            tag("h3", self.title),
            tag("p", *keys, class_="legend") if keys else "",
            self.svg,
            tag("p", self.note, class_="note") if self.note else "",
            class_="card",
            style="margin:0",
        )


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    body: Markup
    plots: Sequence[Plot] = ()

    def html(self) -> Markup:
        return tag("section", tag("h2", self.title), self.body, id=self.anchor)


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Write each plot as NAME.svg and NAME.csv, listed in `plots.json`. Only files of the previous list are removed."""
    _remove_listed(folder)
    if not plots:
        return
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    style = style_of(*PLOT_SHEETS)
    for plot in plots:
        name = file_name(plot.name, taken)
        # the style follows the opening tag, so that the file looks the same outside of the page
        opening, rest = plot.svg.split(">", 1)
        (folder / f"{name}.svg").write_text(f"{opening}>{style}{rest}", encoding="utf-8")
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
        # the list may have been edited: delete plain names only, never a path
        if re.fullmatch(r"[a-z0-9-]+", name):
            for ending in (".svg", ".csv"):
                (folder / f"{name}{ending}").unlink(missing_ok=True)
    (folder / INDEX).unlink(missing_ok=True)


def file_name(name: str, taken: set[str]) -> str:
    """Return a safe and unused file name for any metric or reason."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "plot"
    number = 1
    while (candidate := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    taken.add(candidate)
    return candidate
