"""Pairs from experience tables: plan on narrow columns, then fetch each text once, then write.

    DIR/pairs.parquet      the pairs (table.py)
    DIR/funnel.json        what went in, what came out, and why the rest did not (funnel.py)
    DIR/outcomes.parquet   for each experience: in how many pairs it is, or the reason why in none (outcomes.py)

The same tables and options give the same bytes, in whatever order the experiences were appended.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.balance import balance_weights, balanced, length_effect
from pairwright.pairs.candidates import read_rows, with_reasons
from pairwright.pairs.drafts import ordered
from pairwright.pairs.filters import filtered, task_ranks
from pairwright.pairs.funnel import FILE_NAME, Funnel
from pairwright.pairs.hints import hint_for
from pairwright.pairs.near import without_near_duplicates
from pairwright.pairs.options import PairOptions
from pairwright.pairs.outcomes import outcomes, write_outcomes
from pairwright.pairs.split import splits
from pairwright.pairs.stats import reward_scale
from pairwright.pairs.strategies import STRATEGIES
from pairwright.pairs.table import write_pairs
from pairwright.pairs.texts import pair_rows
from pairwright.pairs.votes import plan_votes, read_votes, with_ratings
from pairwright.pairs.work import Work
from pairwright.store.journal import sync_folder
from pairwright.store.table import Table


@dataclass(frozen=True)
class Plan:
    """Pairs that are decided, before their text is read: narrow rows, in the order of writing."""

    drafts: pl.DataFrame
    funnel: Funnel
    outcomes: pl.DataFrame
    scale: dict[str, dict[str, float]]
    tables: tuple[Table, ...]


def plan_pairs(tables: Sequence[Table], options: PairOptions) -> Plan:
    """Decide which pairs there are."""
    teachers = tuple(Table(path, create=False) for path in options.teachers)
    everything = (*tables, *teachers)
    rows, strategy = read_rows(tables), options.strategy
    votes = None if options.votes is None else read_votes(options.votes, rows["uid"])
    if votes is not None and votes.ratings is not None:
        rows, votes = with_ratings(rows, votes.ratings), None
    work = Work(everything, options, with_reasons(rows, options))
    if votes is not None:
        strategy, drafts = "votes", plan_votes(work, votes)
    else:
        drafts = STRATEGIES[strategy](work)
    drafts = without_near_duplicates(filtered(drafts, work), work)
    drafts = balanced(drafts, work)
    work.stage.close(drafts.height)
    if not drafts.height:
        work.funnel.hint = hint_for(work)
    drafts = drafts.with_columns(
        strategy=pl.lit(strategy),
        weight=_weights(drafts, work),
        split=splits(drafts, validation=options.validation, seed=options.seed),
    )
    return Plan(_in_order(drafts, work), work.funnel, outcomes(work, drafts), reward_scale(work.rows), everything)


def build_pairs(tables: Sequence[Table], output: Path, options: PairOptions | None = None) -> dict[str, Any]:
    """Build the pairs of tables into a folder; returns what funnel.json says."""
    options = options or PairOptions()
    plan = plan_pairs(tables, options)
    rows = pair_rows(plan.tables, plan.drafts, memory_megabytes=options.memory_megabytes)
    num_pairs = write_pairs(output, rows)
    assert num_pairs == plan.drafts.height, "every draft is a pair"
    write_outcomes(output, plan.outcomes)
    summary = {
        "pairs": num_pairs,
        "train": int((plan.drafts["split"] == "train").sum()),
        "validation": int((plan.drafts["split"] == "validation").sum()),
        "length_effect": _finite(length_effect(plan.drafts)),
        "options": options.as_json(),
        "reward_scale": plan.scale,
        **plan.funnel.as_json(),
    }
    _write_json(output / FILE_NAME, summary)
    return summary


def _weights(drafts: pl.DataFrame, work: Work) -> pl.Series:
    by_length = balance_weights(drafts, work)
    if work.options.weight == "one":
        return pl.Series("weight", by_length, pl.Float64)
    base = drafts["gap" if work.options.weight == "gap" else "chosen_reward"]
    if drafts.height and float(base.min() or 0.0) < 0:  # type: ignore[arg-type]
        raise PairwrightError(
            f"weight: a chosen reward of {base.min()!r} cannot be a weight: use --weight gap, which is never negative"
        )
    return pl.Series("weight", base.to_numpy() * by_length, pl.Float64)


def _in_order(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    if work.options.curriculum == "none":
        return ordered(drafts)
    ranked = ordered(drafts).join(task_ranks(work), on="tid", how="left", maintain_order="left")
    return ranked.sort("rank", maintain_order=True).drop("rank")


def _finite(value: float) -> float | str:
    return value if abs(value) != float("inf") else str(value)


def _write_json(path: Path, value: Any) -> None:
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(hidden, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise PairwrightError(f"{path}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)
