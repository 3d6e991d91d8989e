"""Facets of a selection: counts of values and histograms, each with the condition that narrows the list to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from pairwright.view.row_queries import Numbers, RowQueries, Snapshot

MAX_VALUES = 8
MAX_DISTINCT = 10  # numbers with at most so many values are listed, not binned
NUM_BINS = 20


@dataclass(frozen=True)
class FacetColumn:
    """A column to count: by value, or as a number."""

    name: str
    label: str
    kind: Literal["value", "number", "words"] = "value"  # "words": a text of several words, each counted


def count_facets(
    rows: RowQueries, snapshot: Snapshot, numbers: Numbers | None, facets: Sequence[FacetColumn]
) -> list[dict[str, Any]]:
    """Count the values of columns over a selection; columns without any value are left out."""
    ordered = None if numbers is None else np.sort(numbers)

    def count(frame: pl.DataFrame, _: int) -> list[pl.DataFrame | np.ndarray[Any, Any]]:
        return [_count_batch(frame[facet.name], facet) for facet in facets]

    batches = rows.scan(snapshot, [facet.name for facet in facets], count, ordered)
    results = []
    for position, facet in enumerate(facets):
        parts = [batch[position] for batch in batches]
        result = _numbers(facet, parts) if facet.kind == "number" else _values(facet, parts)
        if result is not None:
            results.append(result)
    return results


def quote(value: str) -> str:
    """A text as a SQL literal.

    >>> quote("it's")
    "'it''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def _count_batch(column: pl.Series, facet: FacetColumn) -> Any:
    if facet.kind == "number":
        return column.drop_nulls().cast(pl.Float64).to_numpy()
    if facet.kind == "words":
        column = column.drop_nulls().str.split(" ").explode()
        column = column.filter(column != "")
    return column.alias("value").cast(pl.String).value_counts()


def _values(facet: FacetColumn, parts: list[Any]) -> dict[str, Any] | None:
    if not parts:
        return None
    counts = pl.concat(parts).group_by("value").agg(pl.col("count").sum())
    counts = counts.sort(["count", "value"], descending=[True, False])
    # A column that has one value for all rows tells nothing; a word may be missing elsewhere.
    if not counts.height or (counts.height == 1 and facet.kind != "words"):
        return None
    values = [
        {"value": value, "count": count, "where": _condition(facet, value)}
        for value, count in counts.head(MAX_VALUES).iter_rows()
    ]
    return {"name": facet.name, "label": facet.label, "values": values, "others": max(0, counts.height - MAX_VALUES)}


def _condition(facet: FacetColumn, value: str | None) -> str:
    if value is None:
        return f"{facet.name} IS NULL"
    if facet.kind == "words":
        return f"STRPOS({facet.name}, {quote(value)}) > 0"
    return f"{facet.name} = {quote(value)}"


def _numbers(facet: FacetColumn, parts: list[Any]) -> dict[str, Any] | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    distinct = np.unique(values[:100_000])
    if low == high:
        return None
    if len(distinct) <= MAX_DISTINCT and np.isin(values, distinct).all():
        rows = [
            {"value": f"{value:g}", "count": int((values == value).sum()), "where": f"{facet.name} = {float(value)!r}"}
            for value in distinct[::-1]
        ]
        return {"name": facet.name, "label": facet.label, "values": rows, "others": 0}
    # Outliers would flatten the histogram: the last bin has all that lies beyond the 99th percentile.
    usual = float(np.quantile(values, 0.99))
    top = usual if usual > low and high > 2 * usual - low else high
    edges = np.linspace(low, top, NUM_BINS + 1)
    if _all_whole(values) and top - low >= NUM_BINS:
        edges = np.unique(np.rint(edges))
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    bins = []
    for number, count in enumerate(counts.tolist()):
        first, last = float(edges[number]), float(edges[number + 1])
        is_last = number == len(counts) - 1
        bound = f" AND {facet.name} < {last!r}" if not is_last else ""
        bins.append({"low": first, "high": high if is_last else last, "count": count})
        bins[-1]["where"] = f"{facet.name} >= {first!r}{bound}"
    return {"name": facet.name, "label": facet.label, "bins": bins, "min": low, "max": high}


def _all_whole(values: Any) -> bool:
    return bool((values == np.rint(values)).all())
