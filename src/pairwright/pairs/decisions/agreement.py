"""Agreement of people with each other, and with the reward.

Votes are compared in three classes (one wins, the other wins, tie), ratings by their distance. Skips are ignored.

    agreement   for each item and each two people who judged it, their judgements are compared: the share that agrees.
                Votes agree if they are equal, ratings if they differ by at most a tenth of the range of all ratings
    alpha       Krippendorff's alpha, 1 - observed / expected disagreement: 1 for full agreement, 0 for chance; any
                number of people, each on some of the items (Krippendorff, Content Analysis, 2004, chapter 11)
    kappa       Cohen's kappa of two people on the items that both judged (votes only; Cohen 1960)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

from pairwright.pairs.decisions.vote_file import Rating, Vote

T = TypeVar("T", str, float)
# item -> person -> judgement
Judgements = dict[Hashable, dict[str, T]]
TIE = "tie"
NEAR = 0.1  # two ratings agree within this share of the range of all ratings


def vote_agreement(votes: Iterable[Vote], rewards: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """Measure the agreement of current votes with each other, and with rewards by experience id.

    Returns `items` judged by at least two people, `agreement` and `alpha` of all, `voters` with their counts, `people`
    (agreement and kappa of each two), `reward` if rewards were given. Undefined values are None.
    """
    votes = [vote for vote in votes if not vote.is_skip]
    judgements: Judgements[str] = defaultdict(dict)
    for vote in votes:
        # Relative to the fixed order of the ids, so that it does not matter which side was shown first.
        judgements[vote.key][vote.voter] = TIE if vote.winner is None else str(vote.key.index(vote.winner))
    report = _describe(judgements, lambda one, other: float(one != other), _kappa, within=0.0)
    report["voters"] = dict(sorted(Counter(vote.voter for vote in votes).items()))
    if rewards is not None:
        report["reward"] = {"all": _compare_votes(votes, rewards)} | {
            voter: _compare_votes([vote for vote in votes if vote.voter == voter], rewards)
            for voter in report["voters"]
        }
    return report


def rating_agreement(ratings: Iterable[Rating], rewards: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """Measure the agreement of ratings; see `vote_agreement`. `reward` holds Spearman's correlation with the reward."""
    judgements: Judgements[float] = defaultdict(dict)
    for rating in ratings:
        if rating.rating is not None:
            judgements[rating.uid][rating.voter] = rating.rating
    values = [value for by_voter in judgements.values() for value in by_voter.values()]
    within = NEAR * (max(values) - min(values)) if values else 0.0
    report = _describe(judgements, lambda one, other: (one - other) ** 2, None, within=within)
    report["voters"] = dict(sorted(Counter(voter for by_voter in judgements.values() for voter in by_voter).items()))
    if rewards is not None:
        report["reward"] = {"all": _correlate(judgements, rewards, set(report["voters"]))} | {
            voter: _correlate(judgements, rewards, {voter}) for voter in report["voters"]
        }
    return report


def _describe(
    judgements: Judgements[T],
    distance: Callable[[T, T], float],
    kappa: Callable[[list[tuple[T, T]]], float | None] | None,
    *,
    within: float,
) -> dict[str, Any]:
    shared = [by_voter for by_voter in judgements.values() if len(by_voter) > 1]
    both: dict[tuple[str, str], list[tuple[T, T]]] = defaultdict(list)
    for by_voter in shared:
        for one, other in combinations(sorted(by_voter), 2):
            both[one, other].append((by_voter[one], by_voter[other]))

    def share(pairs: list[tuple[T, T]]) -> float:
        # Distances are squares for ratings, 0 or 1 for votes.
        return sum(distance(*pair) <= within**2 for pair in pairs) / len(pairs)

    everything = [pair for pairs in both.values() for pair in pairs]
    return {
        "items": len(shared),
        "agreement": share(everything) if everything else None,
        "alpha": krippendorff_alpha([list(by_voter.values()) for by_voter in shared], distance),
        "people": [
            {"voters": list(names), "items": len(pairs), "agreement": share(pairs)}
            | ({} if kappa is None else {"kappa": kappa(pairs)})
            for names, pairs in sorted(both.items())
        ],
    }


def krippendorff_alpha(items: Sequence[Sequence[T]], distance: Callable[[T, T], float]) -> float | None:
    """Return Krippendorff's alpha of the values that people gave each item.

    It is None if fewer than two values can be compared, or all are equal. `distance` is the disagreement of two values:
    0 or 1 for classes, the squared difference for numbers.

    >>> krippendorff_alpha([["a", "a"], ["b", "b"], ["a", "b"]], lambda one, other: float(one != other))
    0.4444444444444444
    """
    items = [values for values in items if len(values) > 1]
    counts = Counter(value for values in items for value in values)
    total = sum(counts.values())
    # Summed over distinct values, which are few, and not over pairs of votes.
    expected = sum(counts[one] * counts[other] * distance(one, other) for one, other in combinations(sorted(counts), 2))
    if not expected:
        return None
    # An item with n values has n (n - 1) / 2 pairs; dividing by n - 1 weights it by n.
    observed = sum(
        sum(distance(one, other) for one, other in combinations(values, 2)) / (len(values) - 1) for values in items
    )
    # Both sums are over unordered pairs: the factor of 2 for ordered pairs cancels.
    return 1 - (total - 1) * observed / expected


def _kappa(pairs: list[tuple[str, str]]) -> float | None:
    """Return Cohen's kappa of (judgement, judgement) pairs; None if both people gave one and the same value everywhere.

    >>> _kappa([("a", "a"), ("b", "b"), ("a", "b"), ("b", "a")]), _kappa([("a", "a"), ("b", "b")])
    (0.0, 1.0)
    """
    observed = sum(one == other for one, other in pairs) / len(pairs)
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    chance = sum(first[value] * second[value] for value in first) / len(pairs) ** 2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def _compare_votes(votes: Sequence[Vote], rewards: Mapping[str, float | None]) -> dict[str, Any]:
    """Count the votes for the side with the higher reward; ties and missing rewards are counted separately."""
    counts = Counter(_compare_vote(vote, rewards) for vote in votes)
    num_decided = counts["agree"] + counts["disagree"]
    return {
        **{name: counts[name] for name in ("agree", "disagree", "tied_vote", "tied_reward", "no_reward")},
        "agreement": counts["agree"] / num_decided if num_decided else None,
    }


def _compare_vote(vote: Vote, rewards: Mapping[str, float | None]) -> str:
    one, other = rewards.get(vote.a), rewards.get(vote.b)
    if one is None or other is None or not math.isfinite(one) or not math.isfinite(other):
        return "no_reward"
    if vote.winner is None:
        return "tied_vote"
    if one == other:
        return "tied_reward"
    return "agree" if vote.winner == (vote.a if one > other else vote.b) else "disagree"


def _correlate(
    judgements: Judgements[float], rewards: Mapping[str, float | None], voters: set[str]
) -> dict[str, float | int | None]:
    """Spearman's correlation of mean ratings and rewards."""
    import polars as pl

    means, own_rewards = [], []
    for uid, by_voter in judgements.items():
        values = [value for voter, value in by_voter.items() if voter in voters]
        reward = rewards.get(str(uid))
        if values and reward is not None and math.isfinite(reward):
            means.append(math.fsum(values) / len(values))
            own_rewards.append(reward)
    # The correlation with a constant is undefined.
    if len(set(means)) < 2 or len(set(own_rewards)) < 2:
        return {"items": len(means), "spearman": None}
    frame = pl.DataFrame({"rating": means, "reward": own_rewards})
    return {"items": len(means), "spearman": frame.select(pl.corr("rating", "reward", method="spearman")).item()}
