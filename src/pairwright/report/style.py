"""How the page and the plots look: three style sheets, put into the page so that it needs no other file."""

from importlib.resources import files

from pairwright.report.markup import Markup, tag


def page_style() -> Markup:
    """The style of the whole page."""
    return _style("colours.css", "plot.css", "page.css")


def plot_style() -> Markup:
    """The style that a plot carries with it when it is a file of its own."""
    return _style("colours.css", "plot.css")


def _style(*names: str) -> Markup:
    sheets = [(files("pairwright.report") / name).read_text(encoding="utf-8") for name in names]
    return tag("style", Markup("\n".join(sheets)))
