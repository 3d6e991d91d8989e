"""Where every generated token went: the ledger of each training, as bars and a sentence that says whether it agrees."""

from pairwright.ledger import Account, build_ledger
from pairwright.ledger.trained import FILE_NAME, TRAINED
from pairwright.report.markup import Markup, join, tag
from pairwright.report.plots import Plot
from pairwright.report.run_folder import RunFolder, Stages
from pairwright.report.section import Section
from pairwright.report.svg import Bar, bar_chart

MAX_LABEL = 44  # characters that stand beside a figure


def ledger_section(run: RunFolder) -> Section | None:
    """The ledgers of all rounds that were trained here; the last stands first. Nothing is encoded for it."""
    plots: list[Plot] = []
    parts: list[Markup] = []
    for one in reversed(run.rounds):
        if one.train is None or not (one.train.parent / FILE_NAME).is_file():
            continue
        ledger = build_ledger(one.name or "training", one.train.parent, encode=False)
        parts += [tag("p", note, class_="note") for note in ledger.notes]
        for account in ledger.accounts:
            plot = _plot(account, one)
            plots.append(plot)
            parts += [tag("p", _sentence(account, one), class_="lead"), plot.card()]
    return Section("ledger", "Where every generated token went", join(parts), plots) if parts else None


def _sentence(account: Account, one: Stages) -> str:
    uncounted = sum(fate.num_uncounted for fate in account.fates)
    where = f"{one.name[:1].upper()}{one.name[1:]}, " if one.name else ""
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


def _plot(account: Account, one: Stages) -> Plot:
    """Bars of tokens, or of turns where the tokens of some are not known."""
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
    name = f"ledger-{account.channel}" + (f"-{one.name.replace(' ', '-')}" if one.name else "")
    title = f"{unit.capitalize()} of {account.channel}"
    return Plot(name, title, bar_chart(bars, label=f"generated {unit} by fate"), rows)
