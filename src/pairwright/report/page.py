"""The report: one self-contained page without script or network, and its plots as files.

Sections stand in the order in which a reader asks: what came of it, what went in, what it looks like, how it was
trained, with which settings. A stage that is absent has no section. The same run gives the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pairwright.errors import PairwrightError
from pairwright.places import write_bytes
from pairwright.report.curves import curves_section
from pairwright.report.funnel_shown import funnel_section
from pairwright.report.ledger_section import ledger_section
from pairwright.report.markup import Markup, join, tag
from pairwright.report.outcome import outcome_section
from pairwright.report.pairs_shown import pairs_section
from pairwright.report.plots import Plot, write_plots
from pairwright.report.run_folder import RunFolder, open_run
from pairwright.report.section import Section
from pairwright.report.settings_shown import settings_section
from pairwright.report.style import page_style
from pairwright.report.tokens_shown import tokens_section

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """The page and the plots on it."""

    html: str
    plots: list[Plot]
    sections: list[str]


def make_report(folder: Path, *, tokenizer: Path | None = None, title: str | None = None) -> Report:
    """The report of a run's folder."""
    run = open_run(folder)
    builders: list[tuple[str, Callable[[RunFolder], Section | None]]] = [
        ("outcome", outcome_section),
        ("funnel", funnel_section),
        ("pairs", pairs_section),
        ("tokens", lambda found: tokens_section(found, tokenizer)),
        ("ledger", ledger_section),
        ("training", curves_section),
        ("settings", settings_section),
    ]
    sections = [section for name, build in builders if (section := _built(build, run, name, folder))]
    return Report(
        html=str(_page(title or run.name, sections)),
        plots=[plot for section in sections for plot in section.plots],
        sections=[section.anchor for section in sections],
    )


def write_report(folder: Path, output: Path, *, tokenizer: Path | None = None, title: str | None = None) -> Report:
    """Write the page, and its plots into the folder `plots` beside it."""
    report = make_report(folder, tokenizer=tokenizer, title=title)
    try:
        write_plots(output.parent / "plots", report.plots)
        write_bytes(output, report.html.encode())
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}; no report was written") from error
    return report


def _built(build: Callable[[RunFolder], Section | None], run: RunFolder, name: str, folder: Path) -> Section | None:
    """A section; files of another shape than ours end in one line, not in a traceback."""
    try:
        return build(run)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, PairwrightError):
            raise
        raise PairwrightError(
            f"{folder}: the section {name!r} cannot be made, its files are not as this release writes them "
            f"({type(error).__name__}: {error}): run that stage again"
        ) from error


def _page(title: str, sections: list[Section]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · pairwright"),
        page_style(),
    )
    header = tag("header", tag("p", "pairwright report", class_="eyebrow"), tag("h1", title))
    nav = tag("nav", *links, aria_label="sections") if len(links) > 1 else ""
    footer = tag("footer", "Made by pairwright from the files of the run. Plots lie beside this page as SVG and CSV.")
    body = tag("body", tag("main", header, nav, *(section.html() for section in sections), footer))
    return join(["", Markup("<!doctype html>"), tag("html", head, body, lang="en"), "\n"])
