"""The sections on dropped data: the funnel from experiences to pairs, and the ledger of generated tokens."""

from typing import Any

from pairwright.errors import PairwrightError
from pairwright.ledger import Account, build_ledger
from pairwright.ledger.trained import FILE_NAME, TRAINED
from pairwright.pairs.funnel import read_funnel
from pairwright.report.plots import Markup, Plot, Section, join, tag
from pairwright.report.run_folder import RunFolder, Stages
from pairwright.report.svg import Bar, bar_chart


def funnel_section(run: RunFolder) -> Section | None:
    """The funnels of all rounds; the last is expanded, earlier ones are collapsed."""
    funnels = [(stages, funnel) for stages in run.rounds if stages.pairs and (funnel := _funnel(stages))]
    if not funnels:
        return None
    plots: list[Plot] = []
    parts: list[Markup] = []
    for number, (stages, funnel) in enumerate(reversed(funnels)):
        stage_plots = [_stage_plot(stage, stages) for stage in funnel["stages"]]
        plots += stage_plots
        grid = tag("div", *(plot.card() for plot in stage_plots), class_="cards")
        words = tag("p", _sentence(stages, funnel), class_="lead")
        if number == 0:
            parts += [words, grid]
        else:
            parts.append(tag("details", tag("summary", f"Funnel of {stages.name or 'the run itself'}"), words, grid))
    return Section("funnel", "From experiences to pairs", join(parts), plots)


def _funnel(stages: Stages) -> dict[str, Any] | None:
    assert stages.pairs is not None
    try:
        funnel = read_funnel(stages.pairs)
    except PairwrightError:  # pairs of other origin have no funnel; the other sections still show them
        return None
    return funnel if funnel.get("stages") else None


def _sentence(stages: Stages, funnel: dict[str, Any]) -> str:
    first = funnel["stages"][0]
    held = f", {funnel['validation']:,} of them held out for validation" if funnel.get("validation") else ""
    where = f"{stages.name[:1].upper()}{stages.name[1:]}: " if stages.name else ""
    strategy = funnel.get("options", {}).get("strategy")
    how = f" by the strategy {strategy}" if strategy else ""
    hint = f" {funnel['hint']}" if funnel.get("hint") else ""
    return f"{where}{first['in']:,} {first['unit']} gave {funnel.get('pairs', 0):,} pairs{how}{held}.{hint}"


def _stage_plot(stage: dict[str, Any], stages: Stages) -> Plot:
    total = stage["in"] or 1
    bars = [Bar("in", stage["in"], "before")]
    # descending order: the reason that cost most comes first
    drops = sorted(stage["drops"], key=lambda drop: -drop["count"])
    bars += [Bar(drop["reason"], drop["count"], "rejected", f"{drop['count'] / total:.0%}") for drop in drops]
    bars.append(Bar("out", stage["out"], "accent", f"{stage['out'] / total:.0%}"))
    # in the CSV file drops are negative: their sum with `in` is `out`
    rows = [("what", "count"), ("in", stage["in"]), *((drop["reason"], -drop["count"]) for drop in drops)]
    rows.append(("out", stage["out"]))
    name = f"funnel-{stage['unit']}" + (f"-{stages.name.replace(' ', '-')}" if stages.name else "")
    return Plot(name, stage["unit"].capitalize(), bar_chart(bars, label=f"{stage['unit']}: in, dropped, out"), rows)


# The ledger of each training run: tokens by fate as bars, and whether the sums agree

MAX_LABEL = 44  # characters of a bar's label


def ledger_section(run: RunFolder) -> Section | None:
    """The ledgers of all rounds that were trained locally, last first. Encodes nothing."""
    plots: list[Plot] = []
    parts: list[Markup] = []
    for stages in reversed(run.rounds):
        if stages.train is None or not (stages.train.parent / FILE_NAME).is_file():
            continue
        ledger = build_ledger(stages.name or "training", stages.train.parent, encode=False)
        parts += [tag("p", note, class_="note") for note in ledger.notes]
        for account in ledger.accounts:
            plot = _plot(account, stages)
            plots.append(plot)
            parts += [tag("p", _ledger_sentence(account, stages), class_="lead"), plot.card()]
    return Section("ledger", "Where every generated token went", join(parts), plots) if parts else None


def _ledger_sentence(account: Account, stages: Stages) -> str:
    """Summarize an account: sizes, tokens in the loss, recorded turns, and whether the sums agree."""
    uncounted = sum(fate.num_uncounted for fate in account.fates)
    where = f"{stages.name[:1].upper()}{stages.name[1:]}, " if stages.name else ""
    words = [
        f"{where}{account.channel}: {account.experiences:,} experiences, {account.turns:,} generated turns, "
        f"{account.tokens:,} tokens.",
        f"The losses were computed on {account.loss_tokens:,} tokens in all updates, the ledger says "
        f"{account.drawn_tokens:,}.",
    ]
    if account.num_recorded:
        words.append(f"{account.num_as_sampled:,} of {account.num_recorded:,} recorded turns were trained as sampled.")
    if uncounted:
        words.append(f"{uncounted:,} turns have no recorded ids; pairwright explain --run counts their tokens.")
    words.append("; ".join(account.problems) or "The sums agree.")
    return " ".join(words)


def _plot(account: Account, stages: Stages) -> Plot:
    """Bars of tokens, or of turns if the number of tokens is not known for all."""
    is_counted = not any(fate.num_uncounted for fate in account.fates)
    unit, total = ("tokens", account.tokens) if is_counted else ("turns", account.turns)
    bars = [Bar("generated", total, "before")]
    for fate in account.fates:
        value = fate.tokens if is_counted else fate.turns
        label = fate.name if len(fate.name) <= MAX_LABEL else fate.name[: MAX_LABEL - 1] + "…"
        bars.append(Bar(label, value, "accent" if fate.name == TRAINED else "rejected", f"{value / (total or 1):.0%}"))
    rows: list[tuple[str | int | float, ...]] = [("fate", "turns", "tokens")]
    rows.append(("generated", account.turns, account.tokens))
    rows += [(fate.name, fate.turns, fate.tokens) for fate in account.fates]
    name = f"ledger-{account.channel}" + (f"-{stages.name.replace(' ', '-')}" if stages.name else "")
    title = f"{unit.capitalize()} of {account.channel}"
    return Plot(name, title, bar_chart(bars, label=f"generated {unit} by fate"), rows)
