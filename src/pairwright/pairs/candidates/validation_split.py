"""Train/validation split: no prompt and no task is in both."""

import numpy as np
import polars as pl

from pairwright.pairs.candidates.pair_ids import seeded_draws, words_of
from pairwright.records.experience import EID


def splits(drafts: pl.DataFrame, *, validation: float, seed: int) -> pl.Series:
    """Return 'train' or 'validation' for each draft.

    Drafts that share a task or a prompt, directly or through others, are in the same split. `validation` is the share
    of such sets to hold out.
    """
    if validation <= 0 or not drafts.height:
        return pl.Series("split", ["train"] * drafts.height, pl.String)
    sets = _sets(drafts)
    names = sets.unique().sort()
    hashes = seeded_draws(seed, words_of(names))
    # Draws are uniform in [0, 2**64), so this share of the sets is held out.
    held = hashes.astype(np.float64) < validation * 2.0**64
    if len(names) > 1 and validation < 1:  # with two or more sets, neither split is empty
        held[np.argmin(hashes)] = True
        if held.all():
            held[np.argmax(hashes)] = False
    side = pl.Series(np.where(held, "validation", "train"))
    return sets.replace_strict(names, side, return_dtype=pl.String).alias("split")


def _sets(drafts: pl.DataFrame) -> pl.Series:
    """Return the connected component (by task and prompt) of each draft, named by its smallest prompt hash."""
    links = drafts.select("tid", "prompt_hash")
    across = drafts.filter(pl.col("across_groups"))
    # A pair across groups also links the task of its rejected side to its prompt.
    if across.height:
        others = pl.Series("tid", [EID.parse(uid).tid for uid in across["rejected_uid"]], pl.String)
        links = pl.concat([links, across.select("prompt_hash").with_columns(others).select("tid", "prompt_hash")])
    links = links.with_columns(label=pl.col("prompt_hash"))
    # Connected components of the graph that links tasks and prompts, by propagating the smallest label.
    while True:
        spread = links.with_columns(label=pl.col("label").min().over("tid"))
        spread = spread.with_columns(label=pl.col("label").min().over("prompt_hash"))
        if spread["label"].equals(links["label"]):
            return spread["label"].head(drafts.height)
        links = spread
