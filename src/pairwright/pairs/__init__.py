"""Preference pairs: built from experience tables, stored in a pairs table."""

from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition import plan_partition
from pairwright.pairs.strategies.strategies import STRATEGIES, Group

__all__ = ["STRATEGIES", "Group", "PairOptions", "build_pairs", "plan_partition"]
