"""Strategy `divergence`: compare whole trajectories of one task from the first message that differs.

The longest common prefix of two runs (canonical form) is the prompt, and the rest of each run is a side. A pair is kept
only if the model generated the first different message on both sides; if a user or a tool answered differently, it is
dropped, or marked if `environment_divergence` is set.
With `tree`, all runs of a task form a tree of messages. At each node, branches are compared by the mean reward of their
runs; a chosen branch is represented by its best run, a rejected one by its worst.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from pairwright.pairs.candidates.candidates import TIE_FLOOR, Candidates, assign_groups, is_tied, reward_gaps
from pairwright.pairs.candidates.trajectories import Chain, read_chains
from pairwright.pairs.funnel import Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import add_keys, count_group_pairs, count_groups, group_pairs, no_drafts
from pairwright.records.json_text import to_json

# Runs of one task and step form a group, even if their prompts differ.
_KEYS = ("tid", "step")


@dataclass(frozen=True, slots=True)
class Parting:
    """Two runs that diverge after `cut` messages, and the rewards by which they are compared.

    `scale` is the largest magnitude of the averaged rewards, for tie tolerance: a mean near 0 of rewards near 1 has the
    float noise of the latter.
    """

    chosen: int
    rejected: int
    cut: int
    rewards: tuple[float, float]
    group: int
    num_runs: tuple[int, int] = (1, 1)
    scale: float = TIE_FLOOR


def plan_divergence(state: PartitionState) -> pl.DataFrame:
    """Return the drafts of all tasks."""
    state.rows, candidates = assign_groups(state.rows, state.options, keys=_KEYS)
    chains = read_chains(state.tables, candidates.frame["uid"])
    runs = [chains[uid] for uid in candidates.frame["uid"]]
    # Two runs are identical if their whole conversations are, not only their completions.
    whole = pl.Series("completion_hash", [run.rest_hash(0) for run in runs], pl.String)
    candidates = Candidates(candidates.frame.with_columns(whole), candidates.starts)
    partings = _tree(candidates, runs, state) if state.options.tree else _pairwise(candidates, runs, state)
    drafts = _drafts(candidates, runs, partings, state.options)
    return _drop_incomparable(drafts, partings, runs, state)


def _pairwise(candidates: Candidates, runs: list[Chain], state: PartitionState) -> list[Parting]:
    """Compare every two runs of a group."""
    # All pairs: the cap of a group applies after incomparable ones were dropped.
    pairs = group_pairs(candidates, state.options, largest=None)
    gave = count_groups(candidates, pairs, state.options, state.funnel)
    count_group_pairs(candidates, gave, len(pairs.chosen), state.options, state.funnel)
    rewards, groups = candidates.rewards.tolist(), candidates.groups
    partings = []
    for chosen, rejected in zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True):
        cut = runs[chosen].common(runs[rejected])
        partings.append(Parting(chosen, rejected, cut, (rewards[chosen], rewards[rejected]), int(groups[chosen])))
    return partings


def _tree(candidates: Candidates, runs: list[Chain], state: PartitionState) -> list[Parting]:
    """Compare the branches at each node of the message tree of a group, by mean reward."""
    stage = state.funnel.stage("groups", len(candidates.sizes))
    stage.close(len(candidates.sizes))
    rewards = candidates.rewards.tolist()
    partings: list[Parting] = []
    for group, (start, end) in enumerate(
        zip(candidates.starts[:-1].tolist(), candidates.starts[1:].tolist(), strict=True)
    ):
        for depth, branches in _nodes(list(range(start, end)), runs):
            means = [float(np.mean([rewards[run] for run in branch])) for branch in branches]
            for one in range(len(branches)):
                for other in range(one + 1, len(branches)):
                    high, low = (one, other) if means[one] >= means[other] else (other, one)
                    # Rows of a group are sorted from the highest reward down.
                    chosen, rejected = branches[high][0], branches[low][-1]
                    sizes = len(branches[high]), len(branches[low])
                    scale = max(abs(rewards[run]) for branch in (high, low) for run in branches[branch])
                    both = means[high], means[low]
                    partings.append(Parting(chosen, rejected, depth, both, group, sizes, max(scale, TIE_FLOOR)))
    state.funnel.stage("pairs", len(partings))
    return partings


def _nodes(rows: list[int], runs: list[Chain]) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the branching nodes of the message tree: number of shared messages, and the runs of each branch."""
    # A stack of (number of messages shared, rows that share them).
    waiting = [(0, rows)]
    while waiting:
        depth, here = waiting.pop()
        branches: dict[bytes, list[int]] = {}
        for row in here:
            # A run that ends here is in no branch.
            if depth < len(runs[row].hashes):
                branches.setdefault(runs[row].hashes[depth], []).append(row)
        if len(branches) > 1:
            yield depth, [branches[name] for name in sorted(branches)]
        waiting += [(depth + 1, branch) for _, branch in sorted(branches.items()) if len(branch) > 1]


def _drafts(candidates: Candidates, runs: list[Chain], partings: list[Parting], options: PairOptions) -> pl.DataFrame:
    """Convert partings to drafts."""
    if not partings:
        return no_drafts()
    frame = candidates.frame
    chosen, rejected = (frame[[getattr(parting, side) for parting in partings]] for side in ("chosen", "rejected"))
    high, low = (np.array([parting.rewards[side] for parting in partings]) for side in (0, 1))
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    sides = {side: [runs[getattr(parting, side)] for parting in partings] for side in ("chosen", "rejected")}
    cuts = [parting.cut for parting in partings]
    columns = {
        "tid": chosen["tid"],
        "task": chosen["task"],
        "step": chosen["step"],
        "group": [parting.group for parting in partings],
        # Both sides share these messages, so the hash of the chosen run is used.
        "prompt_hash": [run.prefix_hash(cut) for run, cut in zip(sides["chosen"], cuts, strict=True)],
        "chosen_uid": chosen["uid"],
        "rejected_uid": rejected["uid"],
        "chosen_row": chosen["row"],
        "rejected_row": rejected["row"],
        "chosen_reward": high,
        "rejected_reward": low,
        "gap": reward_gaps(high, low, near=near),
        "cut": cuts,
        "info": [_info(parting, runs, options) for parting in partings],
    }
    for side, chains in sides.items():
        # Characters and hashes cover only the messages after the cut.
        columns[f"{side}_hash"] = [run.rest_hash(cut) for run, cut in zip(chains, cuts, strict=True)]
        columns[f"num_{side}_characters"] = [sum(run.characters[cut:]) for run, cut in zip(chains, cuts, strict=True)]
    return add_keys(pl.DataFrame(columns))


def _info(parting: Parting, runs: list[Chain], options: PairOptions) -> str:
    info: dict[str, object] = {"divergence": parting.cut}
    if options.tree:
        info["num_runs"] = list(parting.num_runs)
    if not _is_choice(parting, runs):
        info["diverged_by"] = "environment"
    return to_json(info)


def _is_choice(parting: Parting, runs: list[Chain]) -> bool:
    sides = runs[parting.chosen], runs[parting.rejected]
    return all(parting.cut < len(run.is_generated) and run.is_generated[parting.cut] for run in sides)


def _drop_incomparable(
    drafts: pl.DataFrame, partings: list[Parting], runs: list[Chain], state: PartitionState
) -> pl.DataFrame:
    """Drop drafts without a common prefix, without a difference generated by the model, or with a gap out of bounds."""
    if not drafts.height:
        return drafts
    options = state.options
    lengths = [min(len(runs[parting.chosen].hashes), len(runs[parting.rejected].hashes)) for parting in partings]
    high, low = drafts["chosen_reward"].to_numpy(), drafts["rejected_reward"].to_numpy()
    scale = np.array([parting.scale for parting in partings])
    # In order of precedence: a draft gets the first reason that holds.
    checks = [
        (Reason.DIFFERENT_PROMPTS, pl.Series([parting.cut == 0 for parting in partings])),
        (Reason.PREFIX, pl.Series([parting.cut >= length for parting, length in zip(partings, lengths, strict=True)])),
        (Reason.ENVIRONMENT, pl.Series([not _is_choice(parting, runs) for parting in partings])),
        (Reason.TIED, pl.Series(is_tied(high, low, options.tie_tolerance, scale=scale))),
        (Reason.BELOW_GAP, drafts["gap"] < options.min_gap),
        (Reason.ABOVE_GAP, drafts["gap"] > (np.inf if options.max_gap is None else options.max_gap)),
    ]
    if options.environment_divergence:
        checks = [check for check in checks if check[0] is not Reason.ENVIRONMENT]
    reason = pl.Series([None] * drafts.height, dtype=pl.String)
    for name, bad in checks:
        reason = pl.select(pl.when(reason.is_null() & bad).then(pl.lit(name.value)).otherwise(reason)).to_series()
    # Reasons without drops are counted too, so that the funnel keeps the order of the checks.
    for name, _ in checks:
        here = drafts.with_columns(reason=reason)
        state.drop(here, name, (reason == name.value).fill_null(False))
    return drafts.filter(reason.is_null())
