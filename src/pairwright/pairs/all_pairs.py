"""Strategy `all`: every two candidates of a group with different rewards, or the K of them with the largest gaps."""

from pairwright.pairs.candidates import Candidates
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pairing import RowPairs, group_pairs


def all_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Pairs by group, from the largest gap down; at most `max_pairs_per_group` of each."""
    return group_pairs(candidates, options, largest=options.max_pairs_per_group)
