"""Groups and their pairs counted by what became of them, arithmetically: pairs that nobody built are counted too."""

import numpy as np
import polars as pl

from pairwright.pairs.candidates import Candidates, Flags
from pairwright.pairs.funnel import Funnel, Reason, Stage
from pairwright.pairs.gaps import is_tied, reward_gaps
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pairing import RowPairs, count_gaps


def count_groups(candidates: Candidates, pairs: RowPairs, options: PairOptions, funnel: Funnel) -> Flags:
    """The stage of the groups; returns which of them gave a pair."""
    sizes, rewards = candidates.sizes, candidates.rewards
    stage = funnel.stage("groups", len(sizes))
    gave = np.zeros(len(sizes), np.bool_)
    gave[candidates.groups[pairs.chosen]] = True
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    largest = reward_gaps(best, worst, near=[options.min_gap])
    hashes = candidates.completions
    first = hashes[np.repeat(candidates.starts[:-1], sizes)]
    differs = np.bincount(candidates.groups, (hashes != first).any(axis=1), len(sizes))
    same = differs == 0
    tied = is_tied(best, worst, options.tie_tolerance)
    checks = [(Reason.IDENTICAL, same), (Reason.TIED, tied), (Reason.BELOW_GAP, largest < options.min_gap)]
    if options.strategy == "stratified":
        checks += [(Reason.NOT_HIGH, best < options.high.value), (Reason.NOT_LOW, worst > options.low.value)]
    if options.max_gap is not None:
        checks.append((Reason.ABOVE_GAP, np.ones(len(sizes), np.bool_)))
    left = ~gave
    for reason, holds in checks:
        found = left & holds
        stage.drop(reason, int(found.sum()), candidates.first_uids(found))
        left &= ~found
    stage.drop(Reason.NOT_PICKED, int(left.sum()), candidates.first_uids(left))
    stage.close(int(gave.sum()))
    return gave


def count_group_pairs(
    candidates: Candidates, gave: Flags, num_pairs: int, options: PairOptions, funnel: Funnel
) -> Stage:
    """The stage of the pairs, begun: of all pairs in the groups that gave some, those that the strategy left."""
    sizes, rows = candidates.sizes[gave], np.repeat(gave, candidates.sizes)
    stage = funnel.stage("pairs", int((sizes * (sizes - 1) // 2).sum()))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tied, below, above = count_gaps(starts, candidates.rewards[rows], options)
    identical = _num_identical_apart(candidates, rows, options)
    stage.drop(Reason.TIED, tied)
    stage.drop(Reason.BELOW_GAP, below)
    stage.drop(Reason.ABOVE_GAP, above)
    stage.drop(Reason.IDENTICAL, identical)
    rest = stage.num_in - tied - below - above - identical - num_pairs
    capped = options.strategy == "all"
    stage.drop(Reason.GROUP_CAP if capped else Reason.NOT_PICKED, rest)
    return stage


def _num_identical_apart(candidates: Candidates, giving: Flags, options: PairOptions) -> int:
    """Of some rows, pairs of one completion with itself whose rewards lie within the bounds of the gap."""
    rows = candidates.recurring[giving[candidates.recurring]]
    again = pl.DataFrame({"group": candidates.groups[rows], "reward": candidates.rewards[rows]})
    again = again.with_columns(completion_hash=candidates.frame["completion_hash"].gather(rows))
    again = again.filter(pl.len().over("group", "completion_hash") > 1) if again.height else again
    if not again.height:
        return 0
    again = again.sort("group", "completion_hash", "reward", descending=[False, False, True])
    runs = again.select(pl.struct("group", "completion_hash").rle_id()).to_series().to_numpy()
    starts = np.append(np.flatnonzero(np.diff(runs, prepend=-1)), again.height)
    sizes = np.diff(starts)
    return int((sizes * (sizes - 1) // 2).sum()) - sum(count_gaps(starts, again["reward"].to_numpy(), options))
