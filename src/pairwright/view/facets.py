"""Facets of a selection: counts of values and histograms, each with the condition that narrows the list to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from pairwright.view.row_queries import Query, RowQueries

MAX_VALUES = 8
MAX_DISTINCT = 10  # numbers with at most this many distinct values are listed, not binned
NUM_BINS = 20


@dataclass(frozen=True)
class FacetColumn:
    """A column to count: by value, as a number, or by the words in a text: each match of the pattern `word`."""

    name: str
    label: str
    kind: Literal["value", "number", "words"] = "value"
    word: str = r"\S+"
    show: Callable[[str], str] = str  # a word as people read it


def count_facets(rows: RowQueries, query: Query, facets: Sequence[FacetColumn]) -> list[dict[str, Any]]:
    """Count the values of columns over the rows of a query; columns without any value are left out."""
    snapshot = rows.snapshot()

    def count(frame: pl.DataFrame) -> list[pl.DataFrame]:
        return [_count_batch(frame[facet.name], facet) for facet in facets]

    numbers = rows.select(Query(query.where, query.text), snapshot)  # in the order of the table
    batches = rows.scan(snapshot, [facet.name for facet in facets], count, numbers)
    results = []
    for facet, *parts in zip(facets, *batches, strict=True) if batches else ():
        counts = pl.concat(parts).group_by("value").agg(pl.col("count").sum())
        result = _numbers(facet, counts) if facet.kind == "number" else _values(facet, counts)
        if result is not None:
            results.append(result)
    return results


def quote(value: str) -> str:
    """Quote text as a SQL literal.

    >>> quote("it's")
    "'it''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def _count_batch(column: pl.Series, facet: FacetColumn) -> pl.DataFrame:
    if facet.kind == "number":
        column = column.cast(pl.Float64).drop_nulls()
    else:
        if facet.kind == "words":
            column = column.str.extract_all(facet.word).list.unique().explode().drop_nulls()
        column = column.cast(pl.String)
    return column.alias("value").value_counts()


def _values(facet: FacetColumn, counts: pl.DataFrame) -> dict[str, Any] | None:
    counts = counts.sort(["count", "value"], descending=[True, False])
    # A single value for all rows is not informative; a single word is, since rows may lack it.
    if not counts.height or (counts.height == 1 and facet.kind != "words"):
        return None
    values = [
        {
            "value": facet.show(value) if facet.kind == "words" else value,
            "count": count,
            "where": _condition(facet, value),
        }
        for value, count in counts.head(MAX_VALUES).iter_rows()
    ]
    return {"name": facet.name, "label": facet.label, "values": values, "others": max(0, counts.height - MAX_VALUES)}


def _condition(facet: FacetColumn, value: str | None) -> str:
    if value is None:
        return f"{facet.name} IS NULL"
    if facet.kind == "words":
        return f"STRPOS({facet.name}, {quote(value)}) > 0"
    return f"{facet.name} = {quote(value)}"


def _numbers(facet: FacetColumn, merged: pl.DataFrame) -> dict[str, Any] | None:
    values, counts = (column.to_numpy() for column in merged.sort("value"))
    if len(values) < 2:
        return None
    low, high = float(values[0]), float(values[-1])
    if len(values) <= MAX_DISTINCT:
        rows = [
            {"value": f"{value:g}", "count": count, "where": f"{facet.name} = {value!r}"}
            for value, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True)
        ]
        return {"name": facet.name, "label": facet.label, "values": rows, "others": 0}
    # Outliers would flatten the histogram: the last bin has all values beyond the 99th percentile.
    usual = float(np.quantile(np.repeat(values, counts), 0.99))
    top = usual if usual > low and high > 2 * usual - low else high
    edges = np.linspace(low, top, NUM_BINS + 1)
    if bool((values == np.rint(values)).all()) and top - low >= NUM_BINS:
        edges = np.unique(np.rint(edges))
    binned, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges, weights=counts)
    name = facet.name
    bins: list[dict[str, Any]] = [
        {"low": first, "high": last, "count": int(count), "where": f"{name} >= {first!r} AND {name} < {last!r}"}
        for first, last, count in zip(edges[:-1].tolist(), edges[1:].tolist(), binned.tolist(), strict=True)
    ]
    bins[-1] |= {"high": high, "where": f"{name} >= {bins[-1]['low']!r}"}
    return {"name": facet.name, "label": facet.label, "bins": bins, "min": low, "max": high}
