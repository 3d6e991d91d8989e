"""Strategy `best-worst`: the best against the worst of each group, one pair a group.

Where best and worst are the same completion, the next largest gap between two different ones takes their place.
"""

from pairwright.pairs.candidates import Candidates
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pairing import RowPairs, group_pairs


def best_worst_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """The pair with the largest gap of each group."""
    return group_pairs(candidates, options, largest=1)
