"""`train.where`: which rows of the tables are trained on. What it leaves out is counted as FILTERED."""

from pathlib import Path

import numpy as np
import polars as pl

from pairwright.arrays import Array
from pairwright.pairs.table import FILE_NAME, PAIR_SCHEMA
from pairwright.store.table import Table
from pairwright.store.where import parse_where

FILTERED = "filtered by --where"


def match_pairs(source: Path, where: str | None, ids: list[str]) -> Array:
    """For each of the ids of a pairs table, whether the condition holds for its first row."""
    if where is None:
        return np.ones(len(ids), np.bool_)
    condition = parse_where(where, PAIR_SCHEMA, option="train.where")
    path = source / FILE_NAME if source.is_dir() else source
    columns = list(dict.fromkeys(["id", *condition.meta.root_names()]))
    rows = pl.read_parquet(path, columns=columns).unique("id", keep="first", maintain_order=True)
    wanted = set(rows.filter(condition)["id"])
    return np.array([name in wanted for name in ids], np.bool_)


def filtered_uids(table: Table, where: str | None) -> set[str]:
    """The ids of the experiences for which the condition does not hold."""
    if where is None:
        return set()
    condition = parse_where(where, option="train.where").not_()
    return {uid for batch in table.scan(condition, ["uid"]) for uid in batch.column(0).to_pylist()}
