"""Human votes instead of rewards (`--votes FILE.csv`): ratings or votes on pairs, detected by the column names.

    voter,uid,rating,time        the last rating of each voter; their mean is the reward, for any strategy
    voter,a,b,verdict,time       the last verdict of each voter on two experiences: a, b, tie or skip
    uid,rating                   without voters: every row counts
    chosen,rejected              without voters: every row is a vote

The majority of the votes on two experiences wins. In a pair from votes, rewards are the shares of votes for each side,
and a tie is half a vote for each. The usual rules apply: equal prompts, no ties, no empty or identical sides. An
unknown id is an error that names the line. Skipped, replaced and undone votes are counted.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pairwright.errors import SourceError
from pairwright.pairs.decisions.agreement import rating_agreement, vote_agreement
from pairwright.pairs.decisions.decision_log import Line, parse_lines
from pairwright.pairs.decisions.vote_file import (
    RATING_COLUMNS,
    VOTE_COLUMNS,
    Replay,
    Vote,
    parse_rating,
    parse_vote,
    read_number,
    replay,
)
from pairwright.pairs.funnel import NUM_EXAMPLES, Reason
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import add_keys, no_drafts

# The hash of a missing completion; such a draft is dropped as unusable.
NO_HASH = "0" * 32
Sides = tuple[str, str]


@dataclass(frozen=True)
class Votes:
    """Votes of a file.

    ratings    mean ratings by id; None for votes on pairs
    wins       votes by (chosen id, rejected id)
    ties       tied votes by sorted pair of ids
    skipped    sorted pairs of ids that people skipped
    summary    for funnel.json: counts, and agreement of people with each other and with the reward
    """

    ratings: dict[str, float] | None = None
    wins: Counter[Sides] = field(default_factory=Counter)
    ties: Counter[Sides] = field(default_factory=Counter)
    skipped: frozenset[Sides] = frozenset()
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def matches(self) -> list[Sides]:
        """The sorted pairs of ids with a verdict, each once."""
        return sorted({(min(sides), max(sides)) for sides in self.wins} | set(self.ties))


def read_votes(path: Path, rows: pl.DataFrame) -> Votes:
    """Read a CSV file of votes; raises SourceError for ids that are not in `rows`, which has `uid` and `reward`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    rewards: dict[str, float | None] = dict(rows.select("uid", "reward").iter_rows())
    header, lines, unfinished = parse_lines(path, content)
    names = set(header)
    if set(VOTE_COLUMNS) <= names:
        votes = replay(path, lines, parse_vote, column="verdict")
        return _count_verdicts(path, votes, rewards, unfinished)
    if set(RATING_COLUMNS) <= names:
        ratings = replay(path, lines, parse_rating, column="rating")
        by_uid: dict[str, list[float]] = defaultdict(list)
        for rating in ratings.decisions:
            _check_known(path, rating.line, rating.uid, rewards)
            if rating.rating is not None:
                by_uid[rating.uid].append(rating.rating)
        summary = {"kind": "ratings", **ratings.count(), "unfinished": unfinished}
        summary["agreement"] = rating_agreement(ratings.decisions, rewards)
        return Votes(_means(by_uid), summary=summary)
    if {"uid", "rating"} <= names:
        return Votes(_ratings(path, lines, rewards), summary={"kind": "ratings", "decisions": len(lines)})
    if {"chosen", "rejected"} <= names:
        wins = _wins(path, lines, rewards)
        return Votes(wins=wins, summary={"kind": "votes", "decisions": wins.total()})
    raise SourceError(
        f"{path}:1: got columns {sorted(names)}, expected uid,rating or chosen,rejected, or a file of pairwright view: "
        f"{','.join(VOTE_COLUMNS)} or {','.join(RATING_COLUMNS)}"
    )


def _count_verdicts(path: Path, votes: Replay[Vote], rewards: dict[str, float | None], unfinished: int) -> Votes:
    wins: Counter[Sides] = Counter()
    ties: Counter[Sides] = Counter()
    skipped = set()
    for vote in votes.decisions:
        for uid in (vote.a, vote.b):
            _check_known(path, vote.line, uid, rewards)
        if vote.is_skip:
            skipped.add(vote.key)
        elif vote.winner is None:
            ties[vote.key] += 1
        else:
            wins[vote.winner, vote.b if vote.winner == vote.a else vote.a] += 1
    summary = {"kind": "votes", **votes.count(), "ties": ties.total(), "unfinished": unfinished}
    summary["agreement"] = vote_agreement(votes.decisions, rewards)
    return Votes(wins=wins, ties=ties, skipped=frozenset(skipped), summary=summary)


def with_ratings(rows: pl.DataFrame, ratings: dict[str, float]) -> pl.DataFrame:
    """Replace the rewards of rows by ratings; rows without a rating become unscored."""
    rated = pl.DataFrame(
        {"uid": list(ratings), "vote": list(ratings.values())}, schema={"uid": pl.String, "vote": pl.Float64}
    )
    return rows.join(rated, on="uid", how="left", maintain_order="left").with_columns(reward="vote").drop("vote")


def plan_votes(state: PartitionState, votes: Votes) -> pl.DataFrame:
    """Return one draft for each two experiences with pairwise votes; the majority decides which is chosen."""
    matches = votes.matches
    voted = pl.Series(sorted({uid for sides in matches for uid in sides}), dtype=pl.String)
    free = pl.col("reason").is_null() | (pl.col("reason") == Reason.UNSCORED.value)
    no_vote = pl.when(pl.col("uid").is_in(voted.implode()).not_()).then(pl.lit(Reason.NO_VOTE.value))
    state.rows = state.rows.with_columns(reason=pl.when(free).then(no_vote).otherwise("reason"))
    skipped = sorted(votes.skipped.difference(matches))
    stage = state.funnel.stage("pairs", len(matches) + len(skipped))
    stage.drop(Reason.SKIPPED, len(skipped), [f"{one} over {other}" for one, other in skipped[:NUM_EXAMPLES]])
    if not matches:
        return no_drafts()
    checks = [
        (Reason.UNUSABLE_VOTE, pl.col("unusable")),
        (Reason.DIFFERENT_PROMPTS, pl.col("apart")),
        (Reason.IDENTICAL, pl.col("chosen_hash") == pl.col("rejected_hash")),
        *state.gap_checks(),
    ]
    return state.drop_where(_drafts(matches, votes, state), checks).drop("unusable", "apart")


def _drafts(matches: list[tuple[str, str]], votes: Votes, state: PartitionState) -> pl.DataFrame:
    """Return one draft per match, with the flags `unusable` (a side has a reason) and `apart` (prompts differ)."""
    sides, shares = [], []
    for one, other in matches:
        half = votes.ties[one, other] / 2
        own, theirs = votes.wins[one, other] + half, votes.wins[other, one] + half
        sides.append((one, other) if own >= theirs else (other, one))
        shares.append(
            (max(own, theirs) / (own + theirs), min(own, theirs) / (own + theirs), abs(own - theirs) / (own + theirs))
        )
    columns = ("uid", "row", "tid", "task", "step", "prompt_hash", "completion_hash", "num_characters", "reason")
    # Of several records with one id, a usable one (null reason) comes first.
    rows = state.rows.select(columns).sort("uid", "reason", nulls_last=False).unique("uid", keep="first")
    frame = pl.DataFrame(sides, schema=["chosen_uid", "rejected_uid"], orient="row").hstack(
        pl.DataFrame(shares, schema=["chosen_reward", "rejected_reward", "gap"], orient="row")
    )
    chosen = frame.select(uid="chosen_uid").join(rows, on="uid", how="left", maintain_order="left")
    rejected = frame.select(uid="rejected_uid").join(rows, on="uid", how="left", maintain_order="left")
    drafts = frame.with_columns(
        *(chosen[name] for name in ("tid", "task", "step", "prompt_hash")),
        chosen["completion_hash"].fill_null(NO_HASH).alias("chosen_hash"),
        rejected["completion_hash"].fill_null(NO_HASH).alias("rejected_hash"),
        chosen["row"].alias("chosen_row"),
        rejected["row"].alias("rejected_row"),
        chosen["num_characters"].alias("num_chosen_characters"),
        rejected["num_characters"].alias("num_rejected_characters"),
        pl.struct(chosen["tid"], chosen["step"], chosen["prompt_hash"]).rank("dense").cast(pl.Int64).alias("group"),
    )
    unusable = chosen["reason"].is_not_null() | rejected["reason"].is_not_null()
    return add_keys(drafts).with_columns(
        unusable.alias("unusable"), (chosen["prompt_hash"] != rejected["prompt_hash"]).alias("apart")
    )


def _ratings(path: Path, lines: Sequence[Line], ids: Container[str]) -> dict[str, float]:
    by_uid: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        uid = _check_known(path, line.number, line.cells.get("uid"), ids)
        by_uid[uid].append(read_number(path, line.number, line.cells.get("rating")))
    return _means(by_uid)


def _means(by_uid: dict[str, list[float]]) -> dict[str, float]:
    # fsum: the mean does not depend on the order of lines.
    return {uid: math.fsum(ratings) / len(ratings) for uid, ratings in by_uid.items()}


def _wins(path: Path, lines: Sequence[Line], ids: Container[str]) -> Counter[Sides]:
    wins: Counter[Sides] = Counter()
    for line in lines:
        chosen, rejected = (
            _check_known(path, line.number, line.cells.get(side), ids) for side in ("chosen", "rejected")
        )
        if chosen == rejected:
            raise SourceError(f"{path}:{line.number}: {chosen} is voted on against itself")
        wins[chosen, rejected] += 1
    return wins


def _check_known(path: Path, line: int, uid: str | None, ids: Container[str]) -> str:
    if uid is None or uid not in ids:
        raise SourceError(f"{path}:{line}: got id {uid!r}, expected the uid of an experience in the tables")
    return uid
