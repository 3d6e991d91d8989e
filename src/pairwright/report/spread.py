"""How gaps and lengths are spread over the pairs, and which pairs are shown: some of every size of gap."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.table import FILE_NAME
from pairwright.report.markup import shown
from pairwright.report.plots import Plot
from pairwright.report.svg import histogram

NUM_BINS = 24
Floats = npt.NDArray[np.float64]


def narrow_rows(folder: Path) -> pl.DataFrame:
    """What the plots and the choice of pairs need; no text is read."""
    names = ["id", "gap", "num_chosen_characters", "num_rejected_characters"]
    return pl.scan_parquet(folder / FILE_NAME, glob=False).select(names).collect()


def spread_plots(rows: pl.DataFrame) -> list[Plot]:
    """Histograms of the gap and of the lengths of both sides."""
    chosen, rejected = (rows[f"num_{side}_characters"].to_numpy().astype(float) for side in ("chosen", "rejected"))
    edges, (gaps,), note = _binned([rows["gap"].to_numpy()])
    gap = Plot(
        "gaps", "Gap of rewards", histogram(edges, [("pairs", "accent", gaps)], label="gap of rewards", x_label="gap"),
        [("from", "to", "pairs"), *zip(edges[:-1], edges[1:], gaps, strict=True)], note=note,
    )  # fmt: skip
    edges, counts, note = _binned([chosen, rejected])
    series = [("chosen", "chosen", counts[0]), ("rejected", "rejected", counts[1])]
    lengths = Plot(
        "lengths", "Length of both sides",
        histogram(edges, series, label="characters of chosen and rejected", x_label="characters"),
        [("from", "to", "chosen", "rejected"), *zip(edges[:-1], edges[1:], *counts, strict=True)],
        legend=[("chosen", "chosen"), ("rejected", "rejected")],
        note=f"Means {shown(float(chosen.mean()))} and {shown(float(rejected.mean()))}. {note}".strip(),
    )  # fmt: skip
    return [gap, lengths]


def picked_ids(rows: pl.DataFrame, most: int) -> list[str]:
    """Pairs from the largest gap to the smallest, evenly; the same for the same table."""
    ordered = rows.sort(["gap", "id"], descending=[True, False])["id"]
    if len(ordered) <= most:
        return ordered.to_list()
    return [ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)]


def _binned(columns: list[Floats]) -> tuple[list[float], list[list[int]], str]:
    """Common edges, the counts of each column, and a word about values beyond the last edge, which are in its bin."""
    values = np.concatenate(columns)
    low, high = min(0.0, float(values.min())), float(values.max())
    usual = float(np.quantile(values, 0.99))
    note = ""
    if usual > low and high > 2 * usual - low:
        num_beyond = int((values > usual).sum())
        high = usual
        note = f"{num_beyond:,} beyond {shown(usual)} are in the last bin."
    if all(float(value).is_integer() for value in (low, high)) and high - low < NUM_BINS and _all_whole(values):
        edges = np.arange(math.floor(low), math.ceil(high) + 2) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)
    counts = [np.histogram(np.clip(column, edges[0], edges[-1]), edges)[0].tolist() for column in columns]
    return [float(edge) for edge in edges], counts, note


def _all_whole(values: Floats) -> bool:
    return bool((values == np.rint(values)).all())
