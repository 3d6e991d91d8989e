"""The ledger of each training run: tokens by fate as bars, and whether the sums agree."""

from pairwright.ledger import Account, build_ledger
from pairwright.ledger.trained import FILE_NAME, TRAINED
from pairwright.report.charts import Bar, bar_chart
from pairwright.report.markup import Markup, join, shorten, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.run_folder import RunFolder, Stages

MAX_LABEL = 44  # characters of a bar's label


def ledger_section(run: RunFolder) -> Section | None:
    """Return the ledgers of all locally trained rounds, last first. Encodes nothing."""
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
    if account.added_tokens:
        words.append(
            f"{account.num_with_added:,} trained sequences have {account.added_tokens:,} added tokens, which were "
            "not generated."
        )
    if uncounted:
        words.append(f"{uncounted:,} turns have no recorded ids; pairwright explain RUN counts their tokens.")
    words.append("; ".join(account.problems) or "The sums agree.")
    return " ".join(words)


def _plot(account: Account, stages: Stages) -> Plot:
    """Plot tokens as bars, or turns if some turns have no token count."""
    is_counted = not any(fate.num_uncounted for fate in account.fates)
    unit, total = ("tokens", account.tokens) if is_counted else ("turns", account.turns)
    bars = [Bar("generated", total, "before")]
    for fate in account.fates:
        value = fate.tokens if is_counted else fate.turns
        tone = "accent" if fate.name == TRAINED else "rejected"
        bars.append(Bar(shorten(fate.name, MAX_LABEL), value, tone, f"{value / (total or 1):.0%}"))
    rows: list[tuple[str | int | float, ...]] = [("fate", "turns", "tokens")]
    rows.append(("generated", account.turns, account.tokens))
    rows += [(fate.name, fate.turns, fate.tokens) for fate in account.fates]
    name = f"ledger-{account.channel}" + (f"-{stages.name.replace(' ', '-')}" if stages.name else "")
    title = f"{unit.capitalize()} of {account.channel}"
    return Plot(name, title, bar_chart(bars, label=f"generated {unit} by fate"), rows)
