"""Groups and their pairs counted by what became of them, arithmetically: pairs that nobody built are counted too."""

import numpy as np
import polars as pl

from pairwright.pairs.candidates import Candidates
from pairwright.pairs.funnel import Funnel, Reason, Stage
from pairwright.pairs.gaps import reward_gaps
from pairwright.pairs.identity import words_of
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pairing import RowPairs, count_gaps


def count_groups(candidates: Candidates, pairs: RowPairs, options: PairOptions, funnel: Funnel) -> Candidates:
    """The stage of the groups; returns those that gave a pair."""
    sizes, rewards = candidates.sizes, candidates.rewards
    stage = funnel.stage("groups", len(sizes))
    gave = np.zeros(len(sizes), np.bool_)
    gave[candidates.groups[pairs.chosen]] = True
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    largest = reward_gaps(best, worst, near=[options.min_gap])
    hashes = words_of(candidates.frame["completion_hash"])
    first = hashes[np.repeat(candidates.starts[:-1], sizes)]
    differs = np.bincount(candidates.groups, (hashes != first).any(axis=1), len(sizes))
    same = differs == 0
    checks = [(Reason.IDENTICAL, same), (Reason.TIED, best == worst), (Reason.BELOW_GAP, largest < options.min_gap)]
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
    return candidates.select(gave)


def count_group_pairs(giving: Candidates, num_pairs: int, options: PairOptions, funnel: Funnel) -> Stage:
    """The stage of the pairs, begun: of all pairs in the groups that gave some, those that the strategy left."""
    sizes = giving.sizes
    stage = funnel.stage("pairs", int((sizes * (sizes - 1) // 2).sum()))
    tied, below, above = count_gaps(giving.starts, giving.rewards, options)
    identical = _num_identical_apart(giving, options)
    stage.drop(Reason.TIED, tied)
    stage.drop(Reason.BELOW_GAP, below)
    stage.drop(Reason.ABOVE_GAP, above)
    stage.drop(Reason.IDENTICAL, identical)
    rest = stage.num_in - tied - below - above - identical - num_pairs
    capped = options.strategy == "all"
    stage.drop(Reason.GROUP_CAP if capped else Reason.NOT_PICKED, rest)
    return stage


def _num_identical_apart(candidates: Candidates, options: PairOptions) -> int:
    """Pairs of one completion with itself whose rewards lie within the bounds of the gap."""
    frame = candidates.frame.select("completion_hash", "reward").with_columns(group=pl.Series(candidates.groups))
    again = frame.filter(pl.len().over("group", "completion_hash") > 1)
    if not again.height:
        return 0
    again = again.sort("group", "completion_hash", "reward", descending=[False, False, True])
    runs = again.select(pl.struct("group", "completion_hash").rle_id()).to_series().to_numpy()
    starts = np.append(np.flatnonzero(np.diff(runs, prepend=-1)), again.height)
    sizes = np.diff(starts)
    return int((sizes * (sizes - 1) // 2).sum()) - sum(count_gaps(starts, again["reward"].to_numpy(), options))
