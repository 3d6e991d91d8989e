"""Drafts: pairs as narrow rows, before any text is read. What a strategy returns and every filter works on.

`chosen_row` and `rejected_row` say where the text is (rows.py), `cut` where a trajectory is cut into prompt and
completion, `chosen_at` and `rejected_at` which one message of a conversation is the whole side; `row_uid` is the
preference that a given pair is copied from. `key` is a hash of what is compared (prompt, chosen, rejected): equal
drafts are the same pair. It orders what rewards leave open, and sampling goes by it, so the result does not depend on
the order of the input.
"""

from typing import Any

import numpy as np
import polars as pl

from pairwright.pairs.candidates import Candidates, Indices
from pairwright.pairs.identity import Words, hex_digits, pair_keys, words_of
from pairwright.pairs.pairing import RowPairs

DRAFT_SCHEMA: dict[str, Any] = {
    "key": pl.String,
    "tid": pl.String,
    "task": pl.String,
    "step": pl.Int64,
    "group": pl.Int64,
    "prompt_hash": pl.String,
    "chosen_hash": pl.String,
    "rejected_hash": pl.String,
    "chosen_uid": pl.String,
    "rejected_uid": pl.String,
    "chosen_row": pl.Int64,
    "rejected_row": pl.Int64,
    "chosen_reward": pl.Float64,
    "rejected_reward": pl.Float64,
    "gap": pl.Float64,
    "across_groups": pl.Boolean,
    "num_chosen_characters": pl.Int64,
    "num_rejected_characters": pl.Int64,
    "cut": pl.Int64,
    "chosen_at": pl.Int64,
    "rejected_at": pl.Int64,
    "row_uid": pl.String,
    "info": pl.String,
}
ORDER = ("prompt_hash", "tid", "step", "gap", "key", "chosen_uid", "rejected_uid")
_DESCENDING = [name == "gap" for name in ORDER]
_OF_PAIR = ("tid", "task", "step", "prompt_hash")
_OF_SIDE = ("completion_hash", "num_characters", "uid", "row", "reward")
HASHES = ("prompt_hash", "chosen_hash", "rejected_hash")


def drafts_of(candidates: Candidates, pairs: RowPairs) -> pl.DataFrame:
    """Rows of groups that were paired, as drafts in order."""
    frame = candidates.frame.select(*_OF_PAIR, *_OF_SIDE)
    prompts, completions = words_of(frame["prompt_hash"]), candidates.completions
    keys = pair_keys(prompts[pairs.chosen], completions[pairs.chosen], completions[pairs.rejected])
    groups = candidates.groups[pairs.chosen]
    order = _order(groups, pairs, keys)
    pairs = pairs.select(order)
    chosen, rejected = frame[pairs.chosen], frame.select(_OF_SIDE)[pairs.rejected]
    columns = {
        "key": hex_digits(keys[order]),
        **{name: chosen[name] for name in _OF_PAIR},
        "group": groups[order],
        "gap": pairs.gaps,
        "across_groups": (prompts[pairs.chosen] != prompts[pairs.rejected]).any(axis=1),
    }
    for side, rows in (("chosen", chosen), ("rejected", rejected)):
        columns |= {f"{side}_hash": rows["completion_hash"], f"num_{side}_characters": rows["num_characters"]}
        columns |= {f"{side}_{name}": rows[name] for name in ("uid", "row", "reward")}
    return _complete(pl.DataFrame(columns))


def finished(frame: pl.DataFrame) -> pl.DataFrame:
    """Drafts of any strategy with their key and every column; their order stays."""
    keys = hex_digits(pair_keys(*(words_of(frame[name]) for name in HASHES)))
    return _complete(frame.with_columns(keys.alias("key")))


def ordered(drafts: pl.DataFrame) -> pl.DataFrame:
    """By prompt, task and step, then from the largest gap down."""
    return drafts.sort(ORDER, descending=_DESCENDING)


def no_drafts() -> pl.DataFrame:
    return pl.DataFrame(schema=DRAFT_SCHEMA)


def _order(groups: Indices, pairs: RowPairs, keys: Words) -> Indices:
    """The order of drafts. Rows of equal reward and completion stand by id, so that their numbers order equal keys."""
    order = np.lexsort([-pairs.gaps, groups])
    tied = (np.diff(groups[order]) == 0) & (np.diff(pairs.gaps[order]) == 0)
    places = np.flatnonzero(np.append(tied, False) | np.insert(tied, 0, False))
    some = order[places]  # rows that share group and gap stand together, and stay together
    columns = (pairs.rejected, pairs.chosen, keys[:, 1], keys[:, 0], -pairs.gaps, groups)
    order[places] = some[np.lexsort([column[some] for column in columns])]
    return order


def _complete(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in DRAFT_SCHEMA if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, DRAFT_SCHEMA[name]).alias(name) for name in missing)
    frame = frame.with_columns(pl.col("across_groups").fill_null(False))
    return frame.select(pl.col(name).cast(kind) for name, kind in DRAFT_SCHEMA.items())
