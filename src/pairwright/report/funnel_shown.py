"""What became of every experience: the funnel of pair building, stage by stage."""

from typing import Any

from pairwright.errors import PairwrightError
from pairwright.pairs.funnel import read_funnel
from pairwright.report.markup import Markup, join, tag
from pairwright.report.plots import Plot
from pairwright.report.run_folder import RunFolder, Stages
from pairwright.report.section import Section
from pairwright.report.svg import Bar, bar_chart


def funnel_section(run: RunFolder) -> Section | None:
    """The funnels of all rounds; the last is open, those before it are folded."""
    found = [(one, funnel) for one in run.rounds if one.pairs and (funnel := _funnel(one))]
    if not found:
        return None
    plots: list[Plot] = []
    parts: list[Markup] = []
    for number, (one, funnel) in enumerate(reversed(found)):
        stages = [_stage_plot(stage, one) for stage in funnel["stages"]]
        plots += stages
        grid = tag("div", *(plot.card() for plot in stages), class_="cards")
        words = tag("p", _sentence(one, funnel), class_="lead")
        if number == 0:
            parts += [words, grid]
        else:
            parts.append(tag("details", tag("summary", f"Funnel of {one.name or 'the run itself'}"), words, grid))
    return Section("funnel", "From experiences to pairs", join(parts), plots)


def _funnel(one: Stages) -> dict[str, Any] | None:
    assert one.pairs is not None
    try:
        found = read_funnel(one.pairs)
    except PairwrightError:  # pairs from elsewhere have no funnel; they are shown all the same
        return None
    return found if found.get("stages") else None


def _sentence(one: Stages, funnel: dict[str, Any]) -> str:
    first = funnel["stages"][0]
    held = f", {funnel['validation']:,} of them held out for validation" if funnel.get("validation") else ""
    where = f"{one.name[:1].upper()}{one.name[1:]}: " if one.name else ""
    strategy = funnel.get("options", {}).get("strategy")
    how = f" by the strategy {strategy}" if strategy else ""
    hint = f" {funnel['hint']}" if funnel.get("hint") else ""
    return f"{where}{first['in']:,} {first['unit']} gave {funnel.get('pairs', 0):,} pairs{how}{held}.{hint}"


def _stage_plot(stage: dict[str, Any], one: Stages) -> Plot:
    total = stage["in"] or 1
    bars = [Bar("in", stage["in"], "before")]
    drops = sorted(stage["drops"], key=lambda drop: -drop["count"])
    bars += [Bar(drop["reason"], drop["count"], "rejected", f"{drop['count'] / total:.0%}") for drop in drops]
    bars.append(Bar("out", stage["out"], "accent", f"{stage['out'] / total:.0%}"))
    rows = [("what", "count"), ("in", stage["in"]), *((drop["reason"], -drop["count"]) for drop in drops)]
    rows.append(("out", stage["out"]))
    name = f"funnel-{stage['unit']}" + (f"-{one.name.replace(' ', '-')}" if one.name else "")
    return Plot(name, stage["unit"].capitalize(), bar_chart(bars, label=f"{stage['unit']}: in, dropped, out"), rows)
