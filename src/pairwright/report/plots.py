"""A plot: what is drawn on the page, and the same as an SVG file and as a CSV file of its numbers."""

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

# HTML and SVG that cannot be broken out of: text is escaped, only what this module made passes as it is.

_VOID = {"meta", "link", "br", "hr", "img", "circle", "line", "path", "rect"}
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
_SELF_CLOSED = {"circle", "line", "path", "rect"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Any value as text on a page."""
    if isinstance(text, Markup):
        return text
    spelled = _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
    return Markup(html.escape(spelled))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; an attribute that is None or False is left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}{'/' if name in _SELF_CLOSED else ''}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def shown(value: float | int | None, digits: int = 4) -> str:
    """A number for people: 12,345, 0.4938, 1.2e-07; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    text = f"{value:,.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    return text.replace("-", "−") if "e" not in text else text


def counted(number: int, noun: str) -> str:
    """A number of things, in the right form.

    >>> counted(1, "task"), counted(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# How the page and the plots look: three style sheets, put into the page so that it needs no other file.


def page_style() -> Markup:
    """The style of the whole page."""
    return _style("colours.css", "plot.css", "page.css")


def plot_style() -> Markup:
    """The style that a plot carries with it when it is a file of its own."""
    return _style("colours.css", "plot.css")


def _style(*names: str) -> Markup:
    sheets = [(files("pairwright.report") / name).read_text(encoding="utf-8") for name in names]
    return tag("style", Markup("\n".join(sheets)))


# A plot: what is drawn on the page, and the same as an SVG file and as a CSV file of its numbers.

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


# A section of the page: where it is linked from, its heading, what it shows, and the plots that become files.


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    body: Markup
    plots: Sequence[Plot] = ()

    def html(self) -> Markup:
        return tag("section", tag("h2", self.title), self.body, id=self.anchor)
