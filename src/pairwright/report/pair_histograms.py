"""Histograms of pairs, and the choice of sample pairs across all gaps."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.pair_table import FILE_NAME
from pairwright.report.page_sections import histogram
from pairwright.report.plots import format_number
from pairwright.report.style_sheets import Plot

NUM_BINS = 24
Floats = npt.NDArray[np.float64]


def narrow_rows(folder: Path) -> pl.DataFrame:
    """Read the columns for plots and sampling, without any text."""
    # four narrow columns: Parquet reads only these from disk
    names = ["id", "gap", "num_chosen_characters", "num_rejected_characters"]
    return pl.scan_parquet(folder / FILE_NAME, glob=False).select(names).collect()


def spread_plots(rows: pl.DataFrame) -> list[Plot]:
    """Return histograms of the gap and of the lengths of both sides."""
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


def pick_ids(rows: pl.DataFrame, most: int) -> list[str]:
    """Return `most` evenly spaced ids of pairs in descending order of the gap; deterministic."""
    ordered = rows.sort(["gap", "id"], descending=[True, False])["id"]
    if len(ordered) <= most:
        return ordered.to_list()
    # evenly spaced positions from 0 to n - 1, including the largest and the smallest gap
    return [ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)]


def _bin_columns(columns: list[Floats]) -> tuple[list[float], list[list[int]], str]:
    """Bin columns with common edges.

    Returns the edges, the counts of each column, and a note on values beyond the last edge, which are in the last bin.
    """
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
