"""Decisions of people: votes and ratings (`vote_file.py`), exclusions (`exclusions.py`), agreement of people."""

from pairwright.pairs.decisions.agreement import rating_agreement, vote_agreement
from pairwright.pairs.decisions.exclusions import Exclusion, ExclusionFile, read_exclusions
from pairwright.pairs.decisions.vote_file import Rating, RatingFile, Vote, VoteFile

__all__ = [
    "Exclusion",
    "ExclusionFile",
    "Rating",
    "RatingFile",
    "Vote",
    "VoteFile",
    "rating_agreement",
    "read_exclusions",
    "vote_agreement",
]
