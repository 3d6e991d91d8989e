"""Decisions on the page: the queue of pairs to vote on and of runs to rate, votes, ratings, exclusions, agreement.

Votes go to `votes.csv` and ratings to `ratings.csv` in the folder of the run (of the table if there is no run),
exclusions to `exclusions.csv` and votes on turns to `turn_votes.csv` in the folder of the experience table; `pairs`
reads the first three, turn credit the last. A decision is on disk before the response is sent. In blind mode, rewards
and ids are not sent, and the order of the sides is drawn for each voter.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.decisions import (
    ExclusionFile,
    Rating,
    RatingFile,
    Vote,
    VoteFile,
    rating_agreement,
    vote_agreement,
)
from pairwright.pairs.decisions.turn_votes import TurnVoteFile
from pairwright.pairs.pair_table import pairs_of_batch
from pairwright.store.arrow import from_batch
from pairwright.view.experience_queries import ExperienceQueries, experience_view, plain
from pairwright.view.facets import quote
from pairwright.view.library import Item, Library
from pairwright.view.pair_queries import PairQueries, pair_view
from pairwright.view.row_queries import Numbers, Query, RowQueries, Snapshot

ORDERS = ("disagreement", "gap", "random")
_CHUNK = 256  # rows of the queue that are read together
_SIDES = ("chosen_uid", "rejected_uid")
_File = TypeVar("_File", VoteFile, RatingFile, ExclusionFile)


class UndoQuestion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Revokes the last decision of a person. Subclasses add the fields of a new decision."""

    source: str
    voter: str


class VoteQuestion(UndoQuestion):
    """A vote on the pair with an id; `blind` means that the order of its sides was drawn."""

    id: str
    verdict: str
    blind: bool = True


class RateQuestion(UndoQuestion):
    uid: str
    rating: float | None = None


class TurnQuestion(UndoQuestion):
    """A vote on one turn of an experience: ok, failed, unknown, or skip, which revokes it."""

    uid: str
    turn: int
    verdict: str


class ExcludeQuestion(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    name: str
    uid: str
    reason: str = ""
    is_excluded: bool = True


class Decisions:
    """The decisions on the items of a library. Files are opened when they are first needed."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._files: dict[Path, Any] = {}

    def vote(self, asked: dict[str, Any], pairs: PairQueries) -> dict[str, Any]:
        """Save a vote; the side that was shown first is `a`."""
        vote = _convert(asked, VoteQuestion)
        snapshot = pairs.rows.snapshot()
        number = pairs.rows.find("id", vote.id, snapshot)
        (sides,) = pairs.rows.take_frame([number], _SIDES, snapshot).iter_rows()
        first, second = sides[::-1] if vote.blind and _is_swapped(vote.voter, vote.id) else sides
        self._vote_file(vote.source).vote(vote.voter, first, second, vote.verdict)
        return {"saved": True}

    def undo_vote(self, asked: dict[str, Any], pairs: PairQueries) -> dict[str, Any]:
        """Revoke the last vote of a person; returns the id of its pair, to show it again."""
        undo = _convert(asked, UndoQuestion)
        vote = self._vote_file(undo.source).undo(undo.voter)
        if vote is None:
            raise PairwrightError(f"{undo.voter} has no vote to take back")
        rows = _rows_of(pairs.rows, pairs.rows.snapshot(), _SIDES, vote.key, ["id"])
        return {"verdict": vote.verdict, "id": rows["id"][0] if rows.height else None}

    def next_pair(
        self, pairs: PairQueries, source: str, *, voter: str, order: str, is_blind: bool, identity: str = ""
    ) -> dict[str, Any]:
        """Return the next pair without a vote of this person, or the pair with an id; and counts of pairs and votes."""
        votes = self._vote_file(source).votes()
        own = {vote.key for vote in votes if vote.voter == voter.strip()}
        rows, snapshot = pairs.rows, pairs.rows.snapshot()
        number: int | None
        if identity:
            number = rows.find("id", identity, snapshot)
        else:
            by_gap = rows.select(Query(sort="gap"), snapshot)
            assert by_gap is not None
            queue = _order_queue(rows, voter, order, by_gap, lambda: _disputed(rows, snapshot, votes))
            number = _first_open(rows, snapshot, queue, _SIDES, own)
        counts = {"total": snapshot.num_rows, "own": len(own), "votes": len(votes)}
        if number is None:
            return {"pair": None, **counts}
        (pair,) = pairs_of_batch(rows.batch_at(number, snapshot))
        view = pair_view(pair)
        # Data that would identify the sides is not sent.
        hidden = ("gap", "info", "weight") if is_blind else ()
        shown = {
            name: view[name] for name in view if name not in hidden and not name.startswith(("chosen", "rejected"))
        }
        sides = [("chosen", "a"), ("rejected", "b")]
        if is_blind and _is_swapped(voter, pair.id):
            sides = [("rejected", "a"), ("chosen", "b")]
        for side, letter in sides:
            shown |= {letter: view[side], f"{letter}_reward": None if is_blind else view[f"{side}_reward"]}
        return {"pair": shown, **counts}

    def summarize(self, pairs: PairQueries, source: str) -> dict[str, Any]:
        """Return the number of votes by person, and their agreement with each other and with the reward."""
        file = self._vote_file(source)
        votes = file.votes()
        uids = [uid for vote in votes for uid in vote.key]
        rewards: dict[str, float | None] = {}
        for side in ("chosen", "rejected"):
            columns = [f"{side}_uid", f"{side}_reward"]
            rows = _rows_of(pairs.rows, pairs.rows.snapshot(), _SIDES, uids, columns)
            rewards |= dict(rows.select(columns).iter_rows())
        tables = self._library.tables_of_pairs(self._library.get(source, "pairs"))
        table = str(tables[0].path) if tables else "EXPERIENCE"
        return {
            "file": str(file.path),
            "agreement": plain(vote_agreement(votes, rewards)),
            "skips": sum(vote.is_skip for vote in votes),
            "unfinished": file.unfinished,
            "next": f"pairwright pairs {table} -o DIR --votes {file.path}",
        }

    def rate(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Save a rating of an experience; None skips it."""
        rating = _convert(asked, RateQuestion)
        self._rating_file(rating.source).rate(rating.voter, rating.uid, rating.rating)
        return {"saved": True}

    def undo_rating(self, asked: dict[str, Any]) -> dict[str, Any]:
        undo = _convert(asked, UndoQuestion)
        rating = self._rating_file(undo.source).undo(undo.voter)
        if rating is None:
            raise PairwrightError(f"{undo.voter} has no rating to take back")
        return {"uid": rating.uid}

    def next_record(
        self, table: ExperienceQueries, source: str, *, voter: str, order: str, is_blind: bool, identity: str = ""
    ) -> dict[str, Any]:
        """Return the next experience without a rating of this person, or the one with an id; and counts."""
        ratings = self._rating_file(source).ratings()
        own = {(rating.uid,) for rating in ratings if rating.voter == voter.strip()}
        rows, snapshot = table.rows, table.rows.snapshot()

        def first() -> Numbers:
            # Runs that people disagree on, then those that `score --calibrate` proposes to label.
            proposed = _rows_of(rows, snapshot, ["uid"], table.proposed, ["uid"])
            places = {uid: place for place, uid in enumerate(table.proposed)}
            proposed = proposed.sort(pl.col("uid").replace_strict(places, return_dtype=pl.Int64))
            return np.concatenate([_disputed_ratings(rows, snapshot, ratings), proposed["row"].to_numpy()])

        number: int | None
        if identity:
            number = rows.find("uid", identity, snapshot)
        else:
            queue = _order_queue(rows, voter, order, table.list_by_gap(snapshot), first)
            number = _first_open(rows, snapshot, queue, ["uid"], own)
        counts = {"total": snapshot.num_rows, "own": len(own), "ratings": len(ratings)}
        if number is None:
            return {"record": None, **counts}
        (exp,) = from_batch(rows.batch_at(number, snapshot))
        view = experience_view(exp)
        if is_blind:
            view |= {"reward": None, "components": {}, "metrics": {}, "info": {}, "model": None}
        return {"record": {"row": number, **view, "siblings": [], "num_siblings": 0}, **counts}

    def summarize_ratings(self, table: ExperienceQueries, source: str) -> dict[str, Any]:
        file = self._rating_file(source)
        ratings = file.ratings()
        uids = [rating.uid for rating in ratings]
        rows = _rows_of(table.rows, table.rows.snapshot(), ["uid"], uids, ["uid", "reward"])
        rewards = dict(rows.select("uid", "reward").iter_rows())
        table_path = self._library.get(source, "experiences").path
        return {
            "file": str(file.path),
            "agreement": plain(rating_agreement(ratings, rewards)),
            "next": f"pairwright pairs {table_path} -o DIR --votes {file.path}",
        }

    def vote_on_turn(self, asked: dict[str, Any], table: ExperienceQueries) -> dict[str, Any]:
        vote = _convert(asked, TurnQuestion)
        item = self._library.get(vote.source, "experiences")
        table.rows.find("uid", vote.uid, table.rows.snapshot())  # raises for an id that is not in the table
        TurnVoteFile(item.path).vote(vote.voter, vote.uid, vote.turn, vote.verdict)
        return {"saved": True}

    def exclude(self, asked: dict[str, Any], table: ExperienceQueries) -> dict[str, Any]:
        """Exclude an experience with a reason, or include it again."""
        exclusion = _convert(asked, ExcludeQuestion)
        item = self._library.get(exclusion.source, "experiences")
        table.rows.find("uid", exclusion.uid, table.rows.snapshot())  # raises for an id that is not in the table
        file = self._opened(ExclusionFile, item.path)
        if exclusion.is_excluded:
            file.exclude(exclusion.name, exclusion.uid, exclusion.reason)
        else:
            file.include(exclusion.name, exclusion.uid)
        return {"saved": True}

    def list_exclusions(self, source: str) -> dict[str, Any]:
        item = self._library.get(source, "experiences")
        exclusions = self._opened(ExclusionFile, item.path).exclusions()
        rows = [
            {"uid": uid, "name": one.name, "reason": one.reason, "time": one.time} for uid, one in exclusions.items()
        ]
        listed = ", ".join(map(quote, list(exclusions)[:200]))
        return {"rows": rows, "where": f"uid IN ({listed})" if listed else ""}

    def _vote_file(self, source: str) -> VoteFile:
        return self._opened(VoteFile, _folder_of(self._library.get(source, "pairs")) / "votes.csv")

    def _rating_file(self, source: str) -> RatingFile:
        return self._opened(RatingFile, _folder_of(self._library.get(source, "experiences")) / "ratings.csv")

    def _opened(self, kind: Callable[[Path], _File], path: Path) -> _File:
        if path not in self._files:
            self._files[path] = kind(path)
        file: _File = self._files[path]
        return file


def _folder_of(item: Item) -> Path:
    """Return the folder of decisions: the parent of the table in a run, else the table's folder."""
    return item.path.parent if item.run else item.path


def _convert(asked: dict[str, Any], question: Any) -> Any:
    try:
        return msgspec.convert(asked, question)
    except msgspec.ValidationError as error:
        raise PairwrightError(f"a decision that cannot be read: {error}") from None


def _draw(voter: str, name: str) -> int:
    """Return a pseudorandom number that depends only on the person and the name."""
    digest = hashlib.sha256(f"{len(voter)}:{voter}{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _is_swapped(voter: str, identity: str) -> bool:
    """Return whether a blind voter sees the rejected side of a pair first; the page never gets this value."""
    return _draw(voter.strip(), identity) % 2 == 1


def _order_queue(rows: RowQueries, voter: str, order: str, by_gap: Numbers, first: Callable[[], Numbers]) -> Numbers:
    """Return row numbers by `order`: "random", "gap" (smallest gap first, where rewards are the least certain), or
    "disagreement" (the rows of `first`, then the others by gap)."""
    if order not in ORDERS:
        raise PairwrightError(f"order: got {order!r:.100}, expected {', '.join(ORDERS)}")
    if order == "random":
        return np.random.default_rng(_draw(voter, rows.name)).permutation(len(by_gap))
    if order == "gap":
        return by_gap
    begin = first()
    begin = begin[np.sort(np.unique(begin, return_index=True)[1])]  # each row once, in order
    return np.concatenate([begin, by_gap[~np.isin(by_gap, begin)]])


def _first_open(
    rows: RowQueries, snapshot: Snapshot, queue: Numbers, ids: Iterable[str], own: Collection[tuple[str, ...]]
) -> int | None:
    """Return the first row of a queue whose ids, sorted, are not in `own`."""
    for start in range(0, len(queue), _CHUNK):
        chunk = queue[start : start + _CHUNK].tolist()
        for number, key in zip(chunk, rows.take_frame(chunk, list(ids), snapshot).iter_rows(), strict=True):
            if tuple(sorted(key)) not in own:
                return int(number)
    return None


def _rows_of(
    rows: RowQueries, snapshot: Snapshot, ids: Iterable[str], uids: Collection[str], columns: list[str]
) -> pl.DataFrame:
    """Return `row` and `columns` of the rows in which every column of `ids` has one of `uids`."""
    known = pl.Series(list(uids), dtype=pl.String).unique().implode()
    return rows.collect(snapshot, columns, pl.all_horizontal(pl.col(name).is_in(known) for name in ids))


def _disputed(rows: RowQueries, snapshot: Snapshot, votes: list[Vote]) -> Numbers:
    """Return row numbers of pairs on which people disagree with each other or the reward, most disputed first."""
    by_key: dict[tuple[str, ...], list[str | None]] = {}
    for vote in votes:
        if not vote.is_skip:
            by_key.setdefault(vote.key, []).append(vote.winner)
    scores = []
    uids = [uid for vote in votes for uid in vote.key]
    for number, chosen, rejected in _rows_of(rows, snapshot, _SIDES, uids, list(_SIDES)).iter_rows():
        winners = by_key.get(tuple(sorted((chosen, rejected))), [])
        # Disagreement between people weighs more than disagreement with the reward.
        score = 2 * (len(set(winners)) - 1) + sum(winner != chosen for winner in winners) if winners else 0
        if score > 0:
            scores.append((-score, number))
    return np.array([number for _, number in sorted(scores)], np.int64)


def _disputed_ratings(rows: RowQueries, snapshot: Snapshot, ratings: list[Rating]) -> Numbers:
    """Return row numbers of experiences whose ratings differ from each other or the reward, most disputed first.

    Ratings and rewards have different scales, so ranks among the rated experiences, scaled to 0..1, are compared.
    """
    given = pl.DataFrame(
        [(rating.uid, rating.rating) for rating in ratings if rating.rating is not None],
        schema={"uid": pl.String, "rating": pl.Float64},
        orient="row",
    )
    rating = pl.col("rating")
    by_uid = given.group_by("uid").agg(mean=rating.mean(), spread=rating.max() - rating.min())
    rated = _rows_of(rows, snapshot, ["uid"], given["uid"], ["uid", "reward"]).join(by_uid, on="uid")
    scale = given.select(rating.max() - rating.min()).item() or 1.0
    last = max(1, rated.height - 1)
    distance = ((pl.col("mean").rank() - pl.col("reward").rank()).abs() / last).fill_null(0.0)
    # Disagreement between people weighs more than disagreement with the reward.
    scored = rated.select("row", score=2 * pl.col("spread") / scale + distance).filter(pl.col("score") > 0)
    return np.asarray(scored.sort("score", "row", descending=[True, False])["row"].to_numpy(), np.int64)
