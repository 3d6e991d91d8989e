"""Preference pairs that are comparable: built from the experience table, kept in a table, written for trainers."""

from pairwright.pairs.build import build_pairs
from pairwright.pairs.build_plan import plan_pairs
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition import plan_partition
from pairwright.pairs.strategies.strategies import STRATEGIES

__all__ = ["STRATEGIES", "PairOptions", "build_pairs", "plan_pairs", "plan_partition"]
