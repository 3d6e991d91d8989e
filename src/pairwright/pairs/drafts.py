"""Drafts: pairs as narrow rows, before any text is read. What a strategy returns and every filter works on.

`cut` is where a trajectory is cut into prompt and completion; `row_uid` is the preference that a given pair is copied
from. `key` is a hash of what is compared (prompt, chosen, rejected): equal drafts are the same pair. It orders what
rewards leave open, and sampling goes by it, so the result does not depend on the order of the input.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from pairwright.pairs.candidates import Candidates
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
    "chosen_reward": pl.Float64,
    "rejected_reward": pl.Float64,
    "gap": pl.Float64,
    "across_groups": pl.Boolean,
    "num_chosen_characters": pl.Int64,
    "num_rejected_characters": pl.Int64,
    "cut": pl.Int64,
    "row_uid": pl.String,
    "info": pl.String,
}
ORDER = ("tid", "step", "prompt_hash", "gap", "key")
_DESCENDING = [False, False, False, True, False]


def drafts_of(candidates: Candidates, pairs: RowPairs) -> pl.DataFrame:
    """Rows that were paired, as drafts."""
    frame = candidates.frame
    chosen, rejected = frame[pairs.chosen], frame[pairs.rejected]
    return finished(
        pl.DataFrame(
            {
                "tid": chosen["tid"],
                "task": chosen["task"],
                "step": chosen["step"],
                "group": candidates.groups[pairs.chosen],
                "prompt_hash": chosen["prompt_hash"],
                "chosen_hash": chosen["completion_hash"],
                "rejected_hash": rejected["completion_hash"],
                "chosen_uid": chosen["uid"],
                "rejected_uid": rejected["uid"],
                "chosen_reward": chosen["reward"],
                "rejected_reward": rejected["reward"],
                "gap": pairs.gaps,
                "across_groups": chosen["prompt_hash"] != rejected["prompt_hash"],
                "num_chosen_characters": chosen["num_characters"],
                "num_rejected_characters": rejected["num_characters"],
            }
        )
    )


def finished(frame: pl.DataFrame) -> pl.DataFrame:
    """Drafts with their key and every column, in order."""
    keys = _keys(frame.select("prompt_hash", "chosen_hash", "rejected_hash"))
    missing = [name for name in DRAFT_SCHEMA if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, DRAFT_SCHEMA[name]).alias(name) for name in missing)
    frame = frame.with_columns(pl.Series("key", keys, pl.String))
    frame = frame.with_columns(pl.col("across_groups").fill_null(False))
    return frame.select(pl.col(name).cast(kind) for name, kind in DRAFT_SCHEMA.items())


def ordered(drafts: pl.DataFrame) -> pl.DataFrame:
    """By task, step and prompt, then from the largest gap down."""
    return drafts.sort([*ORDER, "chosen_uid", "rejected_uid"], descending=[*_DESCENDING, False, False])


def no_drafts() -> pl.DataFrame:
    return pl.DataFrame(schema=DRAFT_SCHEMA)


def seeded_hashes(values: Sequence[str] | pl.Series, seed: int) -> npt.NDArray[np.uint64]:
    """64 bits for each text, the same on every machine and in every release."""
    digest = xxhash.xxh3_64_intdigest
    prefix = f"{seed}\0".encode()
    return np.fromiter((digest(prefix + value.encode()) for value in values), np.uint64, len(values))


def _keys(parts: pl.DataFrame) -> list[str]:
    digest = xxhash.xxh3_128_hexdigest
    return [digest(text.encode()) for text in parts.select(pl.concat_str(pl.all(), separator="\0")).to_series()]
