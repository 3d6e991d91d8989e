"""Human votes instead of rewards (`--votes FILE.csv`): ratings or pairwise votes, detected by the column names.

    uid,rating                   the mean rating of an experience is its reward, for any strategy
    chosen,rejected              one vote per row, sides given by id: the majority of the votes on two experiences wins

In a pair from pairwise votes, rewards are the shares of votes for each side. The usual rules apply: equal prompts, no
ties, no empty or identical sides. An id that is in no table is an error that names the line.
"""

import csv
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pairwright.errors import SourceError
from pairwright.pairs.candidates.candidates import is_tied_expression
from pairwright.pairs.funnel import Reason
from pairwright.pairs.partition_state import Work
from pairwright.pairs.strategies.pairing import add_keys, no_drafts

# In place of the hash of a completion that is missing; such a draft is dropped as unusable.
NO_HASH = "0" * 32


@dataclass(frozen=True)
class Votes:
    """Votes of a file: mean ratings by id, or counts of (chosen id, rejected id)."""

    ratings: dict[str, float] | None
    wins: Counter[tuple[str, str]]


def read_votes(path: Path, known: pl.Series) -> Votes:
    """Read a CSV file of votes; raises SourceError for ids that are not in `known`."""
    ids = set(known)
    try:
        # utf-8-sig skips the byte order mark that spreadsheets write.
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = set(reader.fieldnames or ())
            if {"uid", "rating"} <= names:
                return Votes(_ratings(path, reader, ids), Counter())
            if {"chosen", "rejected"} <= names:
                return Votes(None, _wins(path, reader, ids))
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    raise SourceError(f"{path}:1: got columns {sorted(names)}, expected uid,rating or chosen,rejected")


def with_ratings(rows: pl.DataFrame, ratings: dict[str, float]) -> pl.DataFrame:
    """Replace the rewards of rows by ratings; rows without a rating become unscored."""
    rated = pl.DataFrame(
        {"uid": list(ratings), "vote": list(ratings.values())}, schema={"uid": pl.String, "vote": pl.Float64}
    )
    return rows.join(rated, on="uid", how="left", maintain_order="left").with_columns(reward="vote").drop("vote")


def plan_votes(work: Work, votes: Votes) -> pl.DataFrame:
    """Return one draft for each two experiences with pairwise votes; the majority decides which is chosen."""
    voted = pl.Series(sorted({uid for sides in votes.wins for uid in sides}), dtype=pl.String)
    # No reward is needed: the votes judge.
    free = pl.col("reason").is_null() | (pl.col("reason") == Reason.UNSCORED.value)
    no_vote = pl.when(pl.col("uid").is_in(voted.implode()).not_()).then(pl.lit(Reason.NO_VOTE.value))
    work.rows = work.rows.with_columns(reason=pl.when(free).then(no_vote).otherwise("reason"))
    # Each two experiences once, whichever was chosen.
    matches = sorted({(min(sides), max(sides)) for sides in votes.wins})
    work.funnel.stage("pairs", len(matches))
    if not matches:
        return no_drafts()
    return _drop_incomparable(_drafts(matches, votes, work), work)


def _drafts(matches: list[tuple[str, str]], votes: Votes, work: Work) -> pl.DataFrame:
    """Return one draft per match, with the flags `unusable` (a side has a reason) and `apart` (prompts differ)."""
    sides, shares = [], []
    for one, other in matches:
        own, theirs = votes.wins[one, other], votes.wins[other, one]
        sides.append((one, other) if own >= theirs else (other, one))
        # Shares of the votes for the chosen and the rejected side, and their difference, which is the gap.
        shares.append(
            (max(own, theirs) / (own + theirs), min(own, theirs) / (own + theirs), abs(own - theirs) / (own + theirs))
        )
    columns = ("uid", "row", "tid", "task", "step", "prompt_hash", "completion_hash", "num_characters", "reason")
    # Of several records with one id, one that can be used (null reason) comes first.
    rows = work.rows.select(columns).sort("uid", "reason", nulls_last=False).unique("uid", keep="first")
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


def _drop_incomparable(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    most = math.inf if work.options.max_gap is None else work.options.max_gap
    for reason, bad in (
        (Reason.UNUSABLE_VOTE, pl.col("unusable")),
        (Reason.DIFFERENT_PROMPTS, pl.col("apart")),
        (Reason.IDENTICAL, pl.col("chosen_hash") == pl.col("rejected_hash")),
        (Reason.TIED, is_tied_expression(work.options.tie_tolerance)),
        (Reason.BELOW_GAP, pl.col("gap") < work.options.min_gap),
        (Reason.ABOVE_GAP, pl.col("gap") > most),
    ):
        drafts = work.drop(drafts, reason, drafts.select(bad.alias("bad")).to_series())
    return drafts.drop("unusable", "apart")


def _ratings(path: Path, reader: "csv.DictReader[str]", ids: set[str]) -> dict[str, float]:
    by_uid: dict[str, list[float]] = defaultdict(list)
    for row in reader:
        uid = _check_known(path, reader.line_num, row["uid"], ids)
        try:
            rating = float(row["rating"])
        except (TypeError, ValueError):
            rating = math.nan
        if not math.isfinite(rating):
            raise SourceError(f"{path}:{reader.line_num}: rating: got {row['rating']!r}, expected a number")
        by_uid[uid].append(rating)
    # fsum: the mean does not depend on the order of lines.
    return {uid: math.fsum(ratings) / len(ratings) for uid, ratings in by_uid.items()}


def _wins(path: Path, reader: "csv.DictReader[str]", ids: set[str]) -> Counter[tuple[str, str]]:
    wins: Counter[tuple[str, str]] = Counter()
    for row in reader:
        chosen, rejected = (_check_known(path, reader.line_num, row[side], ids) for side in ("chosen", "rejected"))
        if chosen == rejected:
            raise SourceError(f"{path}:{reader.line_num}: {chosen} is voted on against itself")
        wins[chosen, rejected] += 1
    return wins


def _check_known(path: Path, line: int, uid: str | None, ids: set[str]) -> str:
    if uid not in ids:
        raise SourceError(f"{path}:{line}: got id {uid!r}, expected the uid of an experience in the tables")
    return uid
