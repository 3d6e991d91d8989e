"""Strategy `divergence`: compare whole trajectories of one task from the first message that differs.

The longest common prefix of two runs (canonical form) is the prompt, and the rest of each run is a side. A pair is kept
only if the model generated the first different message on both sides; otherwise a user or a tool answered differently.
"""

from typing import Any

import numpy as np
import polars as pl

from pairwright.pairs.candidates.candidates import Candidates, assign_groups
from pairwright.pairs.candidates.trajectories import read_chains
from pairwright.pairs.funnel import Reason
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import add_keys, count_group_pairs, count_groups, group_pairs, no_drafts

# Runs of one task and step form a group, even if their prompts differ.
_KEYS = ("tid", "step")


def plan_divergence(state: PartitionState) -> pl.DataFrame:
    """Return the drafts of all tasks."""
    state.rows, candidates = assign_groups(state.rows, state.options, keys=_KEYS)
    chains = read_chains(state.tables, candidates.frame["uid"])
    runs = [chains[uid] for uid in candidates.frame["uid"]]
    # Two runs are identical if their whole conversations are, not only their completions.
    whole = pl.Series("completion_hash", [run.rest_hash(0) for run in runs], pl.String)
    candidates = Candidates(candidates.frame.with_columns(whole), candidates.starts)
    # All pairs: the cap of a group applies after incomparable ones were dropped.
    pairs = group_pairs(candidates, state.options, largest=None)
    # Small groups first, as in earlier versions: the same runs give the same table.
    pairs = pairs.select(np.argsort(candidates.sizes[candidates.groups[pairs.chosen]], kind="stable"))
    gave = count_groups(candidates, pairs, state.options, state.funnel)
    count_group_pairs(candidates, gave, len(pairs.chosen), state.options, state.funnel)
    if not len(pairs.chosen):
        return no_drafts()

    rows = {"chosen": pairs.chosen, "rejected": pairs.rejected}
    sides = [[runs[row] for row in numbers.tolist()] for numbers in rows.values()]
    cuts = [chosen.common(rejected) for chosen, rejected in zip(*sides, strict=True)]
    columns: dict[str, Any] = {
        **{name: candidates.frame[name][pairs.chosen] for name in ("tid", "task", "step")},
        "group": candidates.groups[pairs.chosen],
        # Both sides share these messages, so the hash of the chosen run is used.
        "prompt_hash": [run.prefix_hash(cut) for run, cut in zip(sides[0], cuts, strict=True)],
        "gap": pairs.gaps,
        "cut": cuts,
        "info": [f'{{"divergence":{cut}}}' for cut in cuts],
    }
    for (side, numbers), chains_of_side in zip(rows.items(), sides, strict=True):
        columns |= {f"{side}_{name}": candidates.frame[name][numbers] for name in ("uid", "row", "reward")}
        # Characters and hashes cover only the messages after the cut.
        both = list(zip(chains_of_side, cuts, strict=True))
        columns[f"{side}_hash"] = [run.rest_hash(cut) for run, cut in both]
        columns[f"num_{side}_characters"] = [sum(run.characters[cut:]) for run, cut in both]
    # What each run has at the cut: None where it ends, else whether the model generated the message.
    at_cut = [[(*run.is_generated, None)[cut] for run, cut in zip(side, cuts, strict=True)] for side in sides]
    drafts = add_keys(pl.DataFrame(columns)).with_columns(
        one=pl.Series(at_cut[0], dtype=pl.Boolean), other=pl.Series(at_cut[1], dtype=pl.Boolean)
    )
    checks = [
        (Reason.DIFFERENT_PROMPTS, pl.col("cut") == 0),
        (Reason.PREFIX, pl.any_horizontal(pl.col("one", "other").is_null())),
        (Reason.ENVIRONMENT, ~(pl.col("one") & pl.col("other"))),
    ]
    return state.drop_where(drafts, checks).drop("one", "other")
