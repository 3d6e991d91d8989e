"""Building blocks of the page: escaped markup, style sheets, plots (on the page, as SVG and CSV files), sections."""

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec

# HTML and SVG: all text is escaped, except Markup built by this module

# Elements without content: HTML void elements, and SVG shapes, which are closed by a slash
_VOID = {"meta", "link", "br", "hr", "img", "circle", "line", "path", "rect"}
# control characters, zero-width characters and direction overrides, which could disguise text
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
_SELF_CLOSED = {"circle", "line", "path", "rect"}


class Markup(str):
    """A string that is markup and is not escaped again."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Escape any value as text for a page; invisible characters become \\uXXXX."""
    if isinstance(text, Markup):
        return text
    spelled = _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
    return Markup(html.escape(spelled))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Build an element. `class_` is class, `stroke_width` is stroke-width; attributes of None or False are left out."""
    attribute_text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{attribute_text}{'/' if name in _SELF_CLOSED else ''}>")
    return Markup(f"<{name}{attribute_text}>{join(children)}</{name}>")


def format_number(value: float | int | None, digits: int = 4) -> str:
    """Format a number for display: 12,345, 0.4938, 1.2e-07; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    text = f"{value:,.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    return text.replace("-", "−") if "e" not in text else text


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun in singular or plural.

    >>> format_count(1, "task"), format_count(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Style sheets, embedded so that the page needs no other file


def page_style() -> Markup:
    """The style of the whole page."""
    return _style("colours.css", "plot.css", "page.css")


def plot_style() -> Markup:
    """The style embedded in a plot's own SVG file."""
    return _style("colours.css", "plot.css")


def _style(*names: str) -> Markup:
    sheets = [(files("pairwright.report") / name).read_text(encoding="utf-8") for name in names]
    return tag("style", Markup("\n".join(sheets)))


# Plots

INDEX = "plots.json"


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
        """The plot as an element of the page."""
        return tag(
            "figure",
            tag("h3", self.title),
            legend(self.legend) if self.legend else "",
            self.svg,
            tag("p", self.note, class_="note") if self.note else "",
            class_="card",
            style="margin:0",
        )


def legend(series: Sequence[tuple[str, str]]) -> Markup:
    return tag("p", *(tag("span", tag("i", class_=tone), name) for name, tone in series), class_="legend")


def write_plots(folder: Path, plots: Sequence[Plot]) -> None:
    """Write each plot as NAME.svg and NAME.csv, listed in `plots.json`. Only files of the previous list are removed."""
    _remove_listed(folder)
    if not plots:
        return
    folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for plot in plots:
        name = file_name(plot.name, taken)
        # the style goes right behind the opening tag, so that the file looks the same outside of the page
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
        # the list may have been edited: delete plain names only, never a path
        if re.fullmatch(r"[a-z0-9-]+", name):
            for ending in (".svg", ".csv"):
                (folder / f"{name}{ending}").unlink(missing_ok=True)
    (folder / INDEX).unlink(missing_ok=True)


def file_name(name: str, taken: set[str]) -> str:
    """A safe and unused file name for any metric or reason."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "plot"
    number = 1
    while (candidate := plain if number == 1 else f"{plain}-{number}") in taken:
        number += 1
    taken.add(candidate)
    return candidate


# Sections of the page: anchor, heading, content, and the plots to write as files


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    body: Markup
    plots: Sequence[Plot] = ()

    def html(self) -> Markup:
        return tag("section", tag("h2", self.title), self.body, id=self.anchor)
