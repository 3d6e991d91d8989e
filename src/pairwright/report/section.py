"""A section of the page: where it is linked from, its heading, what it shows, and the plots that become files."""

from collections.abc import Sequence
from dataclasses import dataclass

from pairwright.report.markup import Markup, tag
from pairwright.report.plots import Plot


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    body: Markup
    plots: Sequence[Plot] = ()

    def html(self) -> Markup:
        return tag("section", tag("h2", self.title), self.body, id=self.anchor)
