"""The pairs section: histograms of gaps and lengths, and sample pairs side by side with their common text dimmed."""

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.config.sections import CreditConfig
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.pair_table import FILE_NAME, pairs_of_batch
from pairwright.pairs.turn_credit import count_side_credit
from pairwright.records.experience import Pair
from pairwright.records.messages import Message, canonical_messages
from pairwright.report.charts import histogram
from pairwright.report.markup import Markup, format_count, format_number, join, shorten, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.run_folder import RunFolder

MAX_PAIRS = 12  # sample pairs on the page
MAX_TURNS = 12  # turns of a side that are shown
MAX_CHARACTERS = 2_000  # characters of a turn that are shown
KEPT_OF_SAME = 120  # characters that are shown of a common start
NUM_BINS = 24  # of a histogram
Floats = npt.NDArray[np.float64]
# What the calibration of a score does to pairs, by pairs.reliability
_USES = {
    "off": "pairs count alike",
    "weight": "a pair counts by 2p - 1",
    "noise": "1 - p is the label smoothing of each pair",
}


def pairs_section(run: RunFolder) -> Section | None:
    """Return plots of all pairs of the last round, and sample pairs."""
    folder = run.last("pairs")
    if folder is None:
        return None
    rows = _narrow_rows(folder)
    if not rows.height:
        return Section("pairs", "Pairs", tag("p", "There are no pairs.", class_="lead"))
    plots = _spread_plots(rows)
    chosen = sample_pairs(run)
    words = f"{len(chosen):,} of {rows.height:,} pairs, from the largest gap to the smallest."
    if len(chosen) < rows.height:
        words += " All of them, with filters: pairwright view, with the folder of the run."
    parts = [
        _reliability(folder),
        _credit_line(folder),
        tag("div", *(plot.card() for plot in plots), class_="cards"),
        tag("p", words, " What both sides say the same is grey.", class_="lead"),
        *(pair_card(pair, is_open=number < 4) for number, pair in enumerate(chosen)),
    ]
    return Section("pairs", "Pairs", join(parts), plots)


def _narrow_rows(folder: Path) -> pl.DataFrame:
    """Read the columns for plots and sampling, without any text."""
    # four narrow columns: Parquet reads only these from disk
    names = ["id", "gap", "num_chosen_characters", "num_rejected_characters"]
    return pl.scan_parquet(folder / FILE_NAME, glob=False).select(names).collect()


def _spread_plots(rows: pl.DataFrame) -> list[Plot]:
    chosen, rejected = (rows[f"num_{side}_characters"].to_numpy().astype(float) for side in ("chosen", "rejected"))
    edges, (gaps,), note = _bin_columns([rows["gap"].to_numpy()])
    gap = Plot(
        "gaps",
        "Gap of rewards",
        histogram(edges, [("pairs", "accent", gaps)], label="gap of rewards", x_label="gap"),
        [("from", "to", "pairs"), *zip(edges[:-1], edges[1:], gaps, strict=True)],
        note=note,
    )
    edges, counts, note = _bin_columns([chosen, rejected])
    series = [("chosen", "chosen", counts[0]), ("rejected", "rejected", counts[1])]
    lengths = Plot(
        "lengths",
        "Length of both sides",
        histogram(edges, series, label="characters of chosen and rejected", x_label="characters"),
        [("from", "to", "chosen", "rejected"), *zip(edges[:-1], edges[1:], *counts, strict=True)],
        legend=[("chosen", "chosen"), ("rejected", "rejected")],
        note=f"Means {format_number(float(chosen.mean()))} and {format_number(float(rejected.mean()))}. {note}".strip(),
    )
    return [gap, lengths]


def _pick_ids(rows: pl.DataFrame, most: int) -> list[str]:
    """Return `most` evenly spaced ids of pairs in descending order of the gap; deterministic."""
    ordered = rows.sort(["gap", "id"], descending=[True, False])["id"]
    if len(ordered) <= most:
        return ordered.to_list()
    # evenly spaced positions from 0 to n - 1, including the largest and the smallest gap
    return [ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)]


def _bin_columns(columns: list[Floats]) -> tuple[list[float], list[list[int]], str]:
    """Return common edges, the counts of each column, and a note on values beyond the last edge, in its bin."""
    values = np.concatenate(columns)
    low, high = min(0.0, float(values.min())), float(values.max())
    # if the largest value is far beyond the 99th percentile, clip there: outliers would flatten the histogram
    usual = float(np.quantile(values, 0.99))
    note = ""
    if usual > low and high > 2 * usual - low:
        num_beyond = int((values > usual).sum())
        high = usual
        note = f"{num_beyond:,} beyond {format_number(usual)} are in the last bin."
    if (
        all(float(value).is_integer() for value in (low, high))
        and high - low < NUM_BINS
        and bool((values == np.rint(values)).all())
    ):
        # few distinct integers: one bin around each
        edges = np.arange(math.floor(low), math.ceil(high) + 2) - 0.5
    else:
        # NUM_BINS + 1 edges; a single distinct value gets a bin of width 1
        edges = np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)
    # clipping puts values beyond the last edge into its bin, as the note says
    counts = [np.histogram(np.clip(column, edges[0], edges[-1]), edges)[0].tolist() for column in columns]
    return [float(edge) for edge in edges], counts, note


def _reliability(folder: Path) -> Markup | str:
    """Describe the score that the pairs are built by, and the effect of its calibration; empty if it is the reward."""
    funnel = read_funnel(folder)
    score, found = funnel.get("options", {}).get("score"), funnel.get("reliability")
    if score is None:
        return ""
    words = f"Rewards are the stored score {score}."
    if found is not None:
        mean = "-" if found["mean_probability"] is None else format_number(found["mean_probability"])
        words += (
            f" By its calibration, chosen is better with a mean probability p of {mean}; {_USES[found['mode']]}"
            f", and pairs below {format_number(found['min_probability'])} were dropped."
        )
    else:
        words += " It was not calibrated against labels of people for these pairs."
    return tag("p", words, class_="lead")


def _credit_line(folder: Path) -> Markup | str:
    """Describe how many turns of the runs on chosen sides failed; empty if no verdict is known."""
    counts = count_side_credit(folder, CreditConfig()).get("chosen", {})
    if not counts or counts["turns"] == counts["unknown"]:
        return ""
    words = (
        f"{counts['failed'] / counts['turns']:.0%} of the turns in the chosen sides failed "
        f"({counts['failed']:,} of {counts['turns']:,}; {counts['unknown']:,} have no verdict)."
    )
    if counts["failed"]:
        words += " Training imitates them unless tokens.train_turns is accepted."
    return tag("p", words, class_="lead")


def sample_pairs(run: RunFolder) -> list[Pair]:
    folder = run.last("pairs")
    if folder is None:
        return []
    ids = _pick_ids(_narrow_rows(folder), MAX_PAIRS)
    rows = pl.scan_parquet(folder / FILE_NAME, glob=False).filter(pl.col("id").is_in(ids)).collect()
    # rows are in file order; the page uses the order of the ids
    by_id = {pair.id: pair for batch in rows.to_arrow().to_batches() for pair in pairs_of_batch(batch)}
    return [by_id[name] for name in ids]


def pair_card(pair: Pair, *, is_open: bool) -> Markup:
    """Render one pair: its origin, the last turn of the prompt, and both sides."""
    facts = [
        tag("span", "task ", tag("b", pair.chosen_eid.task)),
        tag("span", "gap ", tag("b", format_number(pair.gap))),
        tag("span", "strategy ", pair.strategy),
        tag("span", pair.split),
        tag("span", pair.id[:12]),
    ]
    *before, last = pair.prompt or (Message("user", ""),)
    earlier = ""
    if before:
        summary = tag("summary", f"{format_count(len(before), 'earlier turn')} of the prompt")
        earlier = tag("details", summary, *_render_turns(before))
    num_same = count_same_turns(pair.chosen, pair.rejected)
    heads = [f"{name}, reward {format_number(getattr(pair, f'{name}_reward'))}" for name in ("chosen", "rejected")]
    sides = render_sides(("chosen", "rejected"), heads, pair.chosen[num_same:], pair.rejected[num_same:])
    same = join(render_turn(message) for message in pair.chosen[:num_same][-MAX_TURNS:])
    body = [
        tag("header", *facts),
        earlier,
        render_turn(last),
        tag("details", tag("summary", f"{format_count(num_same, 'turn')} the same on both sides"), same)
        if num_same
        else "",
        tag("div", *sides, class_="sides"),
    ]
    if is_open:
        return tag("article", *body, class_="card pair")
    line = f"Gap {format_number(pair.gap)}, task {shorten(str(pair.chosen_eid.task), 60)}"
    return tag("details", tag("summary", line), tag("article", *body, class_="card pair"))


def render_sides(
    tones: Sequence[str], heads: Sequence[str], left: Sequence[Message], right: Sequence[Message]
) -> list[Markup]:
    """Render two conversations as columns; the common prefix of their first turns is dimmed."""
    # only the first turns that differ are compared character by character
    first = [text_of(side[0]) if side else "" for side in (left, right)]
    same = count_common(*first)
    columns = []
    for tone, head, messages in zip(tones, heads, (left, right), strict=True):
        turns = _render_turns(messages, same) if messages else [tag("p", "ends here", class_="more")]
        columns.append(tag("div", tag("h4", head), *turns, class_=f"side {tone}"))
    return columns


def _render_turns(messages: Sequence[Message], same: int = 0) -> list[Markup]:
    """Render the first turns, and how many more there are; `same` characters of the first are dimmed."""
    turns = [render_turn(message, same=0 if number else same) for number, message in enumerate(messages[:MAX_TURNS])]
    if len(messages) > MAX_TURNS:
        turns.append(tag("p", f"… {format_count(len(messages) - MAX_TURNS, 'more turn')}", class_="more"))
    return turns


def render_turn(message: Message, *, same: int = 0) -> Markup:
    """Render a turn; its first `same` characters are dimmed, and truncated if there are many."""
    text = text_of(message)
    parts: list[object] = []
    if same:
        tail = text[max(0, same - KEPT_OF_SAME) : same]
        num_hidden = same - len(tail)
        parts.append(
            tag("span", f"… {num_hidden:,} characters the same …\n" if num_hidden else "", tail, class_="same")
        )
    rest = text[same:]
    parts.append(rest[:MAX_CHARACTERS])
    if len(rest) > MAX_CHARACTERS:
        parts.append(tag("span", f"\n… {len(rest) - MAX_CHARACTERS:,} more characters", class_="more"))
    role = message.role if message.name is None else f"{message.role} {message.name}"
    return tag("div", tag("h4", role), tag("pre", *parts), class_="turn")


def text_of(message: Message) -> str:
    """Return the whole turn as one text: reasoning, content, calls."""
    parts = []
    if message.reasoning:
        parts.append(f"(reasoning) {message.reasoning}")
    if isinstance(message.content, str):
        parts.append(message.content)
    for part in message.content if isinstance(message.content, list) else ():
        parts.append(str(part["text"]) if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]")
    parts += [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(part for part in parts if part)


def count_same_turns(chosen: Sequence[Message], rejected: Sequence[Message]) -> int:
    """Count the common first turns; always fewer than the turns of either side."""
    same = _count_equal(canonical_messages(chosen), canonical_messages(rejected))
    # at least one turn of each side stays visible, even if all of one side is common
    return min(same, len(chosen) - 1, len(rejected) - 1)


def count_common(first: str, second: str) -> int:
    """Return the length of the common prefix, shortened to a word boundary.

    >>> count_common("take the train", "take the tram")
    9
    """
    length = _count_equal(first, second)
    while 0 < length < max(len(first), len(second)) and not first[length - 1].isspace():
        length -= 1
    return length


def _count_equal(left: Iterable[object], right: Iterable[object]) -> int:
    return len(list(takewhile(lambda both: both[0] == both[1], zip(left, right, strict=False))))
