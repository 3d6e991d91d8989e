"""`--where`: which rows of a table are meant, as a SQL condition on its columns: `reward > 0.5 AND task != 'x'`.

A condition looks at one row at a time: comparisons, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL, arithmetic, text
functions. Aggregates, windows and subqueries are refused, since what they say of a row depends on the others. Nothing
is run as code. Where a condition is null (a comparison with a null), it does not hold.
"""

import warnings
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from pairwright.errors import ConfigError
from pairwright.store.columns import SCHEMA

# Nodes of a Polars expression whose value depends on other rows.
_BEYOND_A_ROW = frozenset({
    "Agg", "AnonymousFunction", "Eval", "Explode", "Filter", "Gather", "Len", "Over", "Range", "Rank", "Rolling",
    "Shift", "Slice", "Sort", "SortBy", "SubPlan",
})  # fmt: skip


def parse_where(text: str, schema: pa.Schema = SCHEMA, *, option: str = "--where") -> pl.Expr:
    """The condition as an expression that is true, or false, for each row; ConfigError for anything else.

    >>> parse_where("reward > 0.5 AND kind = 'multi_turn'").meta.root_names()
    ['reward', 'kind']
    """
    try:
        expression = pl.sql_expr(text)
        columns = expression.meta.root_names()
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{option} {text!r}: {str(error).splitlines()[0]}") from None
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ConfigError(f"{option} {text!r}: no column {unknown[0]!r}; the table has {', '.join(schema.names)}")
    if not columns or not _BEYOND_A_ROW.isdisjoint(_nodes(expression)):
        raise ConfigError(
            f"{option} {text!r}: expected a condition on one row's columns, without aggregates, windows or subqueries"
        )
    empty = pl.DataFrame(pa.Table.from_batches([], schema=schema))
    try:
        kind = empty.lazy().select(expression.alias("condition")).collect_schema()["condition"]
        empty.filter(expression)
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{option} {text!r}: {str(error).splitlines()[0]}") from None
    if kind != pl.Boolean:
        raise ConfigError(f"{option} {text!r}: a value of type {kind}, expected a condition such as 'reward > 0.5'")
    return expression.fill_null(False)


def _nodes(expression: pl.Expr) -> set[str]:
    """The names of all nodes of an expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the form is not stable across versions of Polars; a test looks at it
        return set(_names(msgspec.json.decode(expression.meta.serialize(format="json"))))


def _names(node: Any) -> list[str]:
    if isinstance(node, dict):
        inner = [name for key, value in node.items() if key != "Literal" for name in _names(value)]
        return [name for name in node if name != "Column"] + inner if "Column" not in node else []
    if isinstance(node, list):
        return [name for item in node for name in _names(item)]
    return [node] if isinstance(node, str) else []
