"""The train and validation splits: by groups that share nothing. No prompt, and no task, stands on both sides.

Tasks that share a prompt belong together, and so do prompts that share a task. Where such a set goes is decided by a
hash of the seed and its smallest prompt hash alone, so it stays there when other data is added.
"""

import numpy as np
import polars as pl

from pairwright.pairs.identity import seeded, words_of
from pairwright.records import EID


def splits(drafts: pl.DataFrame, *, validation: float, seed: int) -> pl.Series:
    """For each draft 'train' or 'validation'."""
    if validation <= 0 or not drafts.height:
        return pl.Series("split", ["train"] * drafts.height, pl.String)
    sets = _sets(drafts)
    names = sets.unique().sort()
    hashes = seeded(seed, words_of(names))
    held = hashes.astype(np.float64) < validation * 2.0**64
    if len(names) > 1 and validation < 1:  # neither side is empty where both can have something
        held[np.argmin(hashes)] = True
        if held.all():
            held[np.argmax(hashes)] = False
    side = pl.Series(np.where(held, "validation", "train"))
    return sets.replace_strict(names, side, return_dtype=pl.String).alias("split")


def _sets(drafts: pl.DataFrame) -> pl.Series:
    """The set of each draft, named by its smallest prompt hash: labels spread until they no longer change."""
    links = drafts.select("tid", "prompt_hash")
    across = drafts.filter(pl.col("across_groups"))
    if across.height:
        others = pl.Series("tid", [EID.parse(uid).tid for uid in across["rejected_uid"]], pl.String)
        links = pl.concat([links, across.select("prompt_hash").with_columns(others).select("tid", "prompt_hash")])
    links = links.with_columns(label=pl.col("prompt_hash"))
    while True:
        spread = links.with_columns(label=pl.col("label").min().over("tid"))
        spread = spread.with_columns(label=pl.col("label").min().over("prompt_hash"))
        if spread["label"].equals(links["label"]):
            return spread["label"].head(drafts.height)
        links = spread
