"""Builds the report: a self-contained HTML page without scripts or network requests, and its plots as files.

Sections are in the order of a reader's questions: outcome, recipes, funnel, pairs, tokens, ledger, training, settings.
A missing stage has no section. The output is deterministic: the same run gives the same bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pairwright.errors import PairwrightError
from pairwright.paths import write_bytes
from pairwright.report.ledger_section import ledger_section
from pairwright.report.markup import Markup, join, tag
from pairwright.report.outcome import outcome_section
from pairwright.report.page_parts import PLOT_SHEETS, Plot, Section, style_of, write_plots
from pairwright.report.pairs_section import pairs_section
from pairwright.report.recipes_section import recipes_section
from pairwright.report.run_folder import RunFolder, open_run
from pairwright.report.settings_section import settings_section
from pairwright.report.stage_sections import funnel_section, tokens_section
from pairwright.report.training_section import curves_section

# The content security policy forbids scripts and requests, in case the escaping of some text fails.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """The HTML page, its plots, and the anchors of its sections."""

    html: str
    plots: list[Plot]
    sections: list[str]


def make_report(folder: Path, *, tokenizer: Path | None = None, title: str | None = None) -> Report:
    run = open_run(folder)
    builders: list[tuple[str, Callable[[RunFolder], Section | None]]] = [
        ("outcome", outcome_section),
        ("recipes", recipes_section),
        ("funnel", funnel_section),
        ("pairs", pairs_section),
        ("tokens", lambda opened: tokens_section(opened, tokenizer)),
        ("ledger", ledger_section),
        ("training", curves_section),
        ("settings", settings_section),
    ]
    sections: list[Section] = []
    for name, build in builders:
        try:
            section = build(run)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            # some of our errors are also ValueErrors; their messages are complete
            if isinstance(error, PairwrightError):
                raise
            # files of an unexpected format give a one-line error instead of a traceback
            raise PairwrightError(
                f"{folder}: the section {name!r} cannot be made, its files are not as this release writes them "
                f"({type(error).__name__}: {error}): run that stage again"
            ) from error
        sections += [] if section is None else [section]
    return Report(
        html=str(_page(title or run.name, sections)),
        plots=[plot for section in sections for plot in section.plots],
        sections=[section.anchor for section in sections],
    )


def write_report(folder: Path, output: Path, *, tokenizer: Path | None = None, title: str | None = None) -> Report:
    """Write the page, and its plots into the folder `plots` beside it."""
    report = make_report(folder, tokenizer=tokenizer, title=title)
    try:
        # the page is written last, so that a new page always has new plots
        write_plots(output.parent / "plots", report.plots)
        write_bytes(output, report.html.encode())
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}; no report was written") from error
    return report


def _page(title: str, sections: list[Section]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        # an empty icon keeps the browser from requesting favicon.ico
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title} · pairwright"),
        style_of(*PLOT_SHEETS, "page.css"),
    )
    header = tag("header", tag("p", "pairwright report", class_="eyebrow"), tag("h1", title))
    nav = tag("nav", *links, aria_label="sections") if len(links) > 1 else ""
    footer = tag("footer", "Made by pairwright from the files of the run. Plots lie beside this page as SVG and CSV.")
    body = tag("body", tag("main", header, nav, *(section.html() for section in sections), footer))
    return join(["", Markup("<!doctype html>"), tag("html", head, body, lang="en"), "\n"])
