"""Pairs whose sides may not be comparable: from files with disjoint rewards, of different models or system prompts.

Two files whose rewards do not overlap were probably scored by different scorers: the gap then shows which file an
answer is from, not which answer is better. Such pairs are counted, not dropped: `--within` forbids them.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from pairwright.errors import ConfigError
from pairwright.pairs.candidates.candidates import key_column
from pairwright.pairs.pair_table import pair_batches
from pairwright.paths import Place
from pairwright.records.json_text import from_json
from pairwright.store.table import Table

_READ = ("uid", "source", "model_version", "reward", "kind")
_SIDES = ("chosen", "rejected")


def check_within(tables: Sequence[Table], name: str) -> None:
    """Raise ConfigError if no experience has the field that `--within` names: it would have no effect."""
    for table in tables:
        for batch in table.scan(columns=["source", "model_version", "info"]):
            rows = pl.DataFrame(pa.Table.from_batches([batch]))
            if rows.select(key_column(f"within:{name}"))[:, 0].null_count() < rows.height:
                return
    raise ConfigError(f"within: no experience has {name!r}; expected model, source, or a field of info")


def count_crossings(folder: Place, tables: Sequence[Table], *, compares_prompts: bool) -> dict[str, int]:
    """Count pairs across files with disjoint rewards, models, or (if it `compares_prompts`) system prompts."""
    frames = [pl.DataFrame(batch) for batch in pair_batches(folder, ["chosen_uid", "rejected_uid"])]
    if not frames:
        return {}
    # Both sides of an imported preference are in one record.
    pairs = pl.concat(frames).filter(pl.col("chosen_uid") != pl.col("rejected_uid"))
    wanted = pl.concat([pairs["chosen_uid"], pairs["rejected_uid"]]).unique()
    found, ranges = [], []
    system = [pl.col("prompt").map_elements(_system_of, return_dtype=pl.String).alias("system")]
    for table in tables if pairs.height else ():
        for batch in table.scan(columns=[*_READ, *(["prompt"] if compares_prompts else [])]):
            rows = pl.DataFrame(pa.Table.from_batches([batch]))
            scored = rows.filter(pl.col("reward").is_finite())
            ranges.append(_ranges(scored.select("source", least="reward", most="reward")))
            used = rows.filter(pl.col("uid").is_in(wanted.implode()))
            found.append(used.select("uid", "source", "model_version", *(system if compares_prompts else [])))
    if not found:
        return {}
    sides = pl.concat(found).unique("uid", keep="first")
    bounds = _ranges(pl.concat(ranges))
    both = pairs
    for side in _SIDES:
        one = sides.join(bounds, on="source", how="left", nulls_equal=True)
        one = one.rename({name: f"{side}_{name}" for name in one.columns})
        both = both.join(one, on=f"{side}_uid", how="left")
    disjoint = (pl.col("chosen_least") > pl.col("rejected_most")) & pl.col("chosen_source").ne_missing(
        pl.col("rejected_source")
    )
    checks = {"files with disjoint rewards": disjoint, "models": _differ("model_version")}
    if compares_prompts:
        checks["system prompts"] = _differ("system")
    counts = both.select(expression.sum().alias(name) for name, expression in checks.items()).row(0, named=True)
    return {name: int(count) for name, count in counts.items() if count}


def _ranges(rewards: pl.DataFrame) -> pl.DataFrame:
    return rewards.group_by("source").agg(pl.col("least").min(), pl.col("most").max())


def _differ(name: str) -> pl.Expr:
    return pl.col(f"chosen_{name}").ne_missing(pl.col(f"rejected_{name}"))


def _system_of(prompt: Any) -> str | None:
    messages = from_json(prompt) if prompt else []
    return next((str(one.get("content")) for one in messages if one.get("role") in ("system", "developer")), None)
