"""Votes and ratings of several people, in append-only files.

    votes.csv      voter,a,b,verdict,time      which of two experiences is better: a, b, tie, skip; or undo
    ratings.csv    voter,uid,rating,time       how good an experience is: a number, skip; or undo

Only the last decision of a voter on a pair (in either order) or on an experience is used. `undo` revokes the last
decision of a voter, so that the previous one on the same pair is used again. `pairs --votes` reads both files.

>>> import tempfile
>>> from pathlib import Path
>>> votes = VoteFile(Path(tempfile.mkdtemp()) / "votes.csv")
>>> _ = votes.vote("ada", "run-1", "run-2", "a"), votes.vote("ada", "run-2", "run-1", "tie")
>>> [(vote.voter, vote.verdict, vote.winner) for vote in votes.votes()]
[('ada', 'tie', None)]
>>> votes.undo("ada").verdict, [vote.winner for vote in votes.votes()]
('tie', ['run-1'])
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs.decisions.decision_log import DecisionLog, Line, check_name, check_uid

Verdict = Literal["a", "b", "tie", "skip"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
VOTE_COLUMNS = ("voter", "a", "b", "verdict", "time")
RATING_COLUMNS = ("voter", "uid", "rating", "time")
SKIP, UNDO = "skip", "undo"


@dataclass(frozen=True)
class Vote:
    """One person's verdict on two experiences; `a` was shown first."""

    voter: str
    a: str
    b: str
    verdict: str
    time: str = ""
    line: int = 0  # number in the file; 0 if it was not read from one

    @property
    def key(self) -> tuple[str, str]:
        """The two ids in sorted order."""
        return (self.a, self.b) if self.a < self.b else (self.b, self.a)

    @property
    def winner(self) -> str | None:
        """The id of the better experience; None for a tie or a skip."""
        return {"a": self.a, "b": self.b}.get(self.verdict)

    @property
    def is_skip(self) -> bool:
        return self.verdict == SKIP


@dataclass(frozen=True)
class Rating:
    """One person's rating of an experience; None for a skip."""

    voter: str
    uid: str
    rating: float | None
    time: str = ""
    line: int = 0  # number in the file; 0 if it was not read from one

    @property
    def key(self) -> str:
        return self.uid

    @property
    def is_skip(self) -> bool:
        return self.rating is None


D = TypeVar("D", Vote, Rating)


@dataclass(frozen=True)
class Replay(Generic[D]):
    """The result of applying all lines of a file in order.

    decisions       the current decisions, in file order: the last one of each voter on each key
    history         all decisions that were not undone
    num_undone      number of undone decisions
    """

    decisions: list[D]
    history: list[D]
    num_undone: int

    def count(self) -> dict[str, int]:
        """Count voters, and decisions by status: current, skipped, replaced, undone."""
        return {
            "voters": len({decision.voter for decision in self.decisions}),
            "decisions": len(self.decisions),
            "skips": sum(decision.is_skip for decision in self.decisions),
            "replaced": len(self.history) - len(self.decisions),
            "undone": self.num_undone,
        }


def replay(path: Path, lines: Sequence[Line], parse: Callable[[Path, Line], D], *, column: str) -> Replay[D]:
    """Apply the lines of a file in order; `column` is the one that contains "undo"."""
    # (voter, key) -> decisions that were not undone; the last one is current.
    stacks: dict[tuple[str, object], list[D]] = {}
    num_undone = 0
    for line in lines:
        is_undo = line.cells.get(column) == UNDO
        # An undo is parsed as well: it names the voter and the key whose last decision it revokes.
        decision = parse(path, line)
        stack = stacks.setdefault((decision.voter, decision.key), [])
        if not is_undo:
            stack.append(decision)
        # An undo without a decision has no effect: a voter may have sent it from two windows.
        elif stack:
            stack.pop()
            num_undone += 1
    standing = [stack[-1] for stack in stacks.values() if stack]
    history = [decision for stack in stacks.values() for decision in stack]
    return Replay(sorted(standing, key=lambda one: one.line), sorted(history, key=lambda one: one.line), num_undone)


class _DecisionFile(Generic[D]):
    """Votes or ratings in a CSV file; `column` is the one that contains "undo"."""

    def __init__(self, path: Path, columns: tuple[str, ...], column: str, parse: Callable[[Path, Line], D]) -> None:
        self.path = path
        self._log = DecisionLog(path, columns)
        self._columns, self._column = columns, column
        self._parse: Callable[[Path, Line], D] = parse

    @property
    def unfinished(self) -> str:
        """The unfinished last line that was removed when the file was opened; "" if there was none."""
        return self._log.unfinished

    def undo(self, voter: str) -> D | None:
        """Revoke the last decision of a person and return it; None if there is none."""
        # Replayed each time: another process may have added decisions.
        own = [decision for decision in self.replay().history if decision.voter == check_name(voter)]
        if not own:
            return None
        # Appended, not removed: the file is append-only, so that several processes can share it.
        cells = {name: str(getattr(own[-1], name)) for name in self._columns if name != "time"}
        self._log.append(**{**cells, self._column: UNDO})
        return own[-1]

    def replay(self) -> Replay[D]:
        """Read the file, including lines that other processes have added."""
        return replay(self.path, self._log.read(), self._parse, column=self._column)


class VoteFile(_DecisionFile[Vote]):
    """Votes on pairs of experiences, in a CSV file that several processes may share; created with the first vote."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, VOTE_COLUMNS, "verdict", parse_vote)

    def vote(self, voter: str, a: str, b: str, verdict: str) -> Vote:
        """Save a person's verdict ("a", "b", "tie", "skip") on two experiences, `a` shown first; on disk on return."""
        if verdict not in VERDICTS:
            raise PairwrightError(f"verdict: got {verdict!r}, expected {', '.join(VERDICTS)}")
        if a == b:
            raise PairwrightError(f"{a} is voted on against itself")
        vote = Vote(check_name(voter), check_uid(a), check_uid(b), verdict)
        # All values were checked, so every line in the file can be read back.
        self._log.append(voter=vote.voter, a=a, b=b, verdict=verdict)
        return vote

    def votes(self) -> list[Vote]:
        """Return the current votes, oldest first: the last of each person on each pair."""
        return self.replay().decisions


class RatingFile(_DecisionFile[Rating]):
    """Ratings of single experiences, in a CSV file that may be shared by several processes; see `VoteFile`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, RATING_COLUMNS, "rating", parse_rating)

    def rate(self, voter: str, uid: str, rating: float | None) -> Rating:
        """Save a rating, or a skip if it is None; it is on disk when the call returns."""
        if rating is not None and not math.isfinite(rating):
            raise PairwrightError(f"rating: got {rating!r}, expected a finite number")
        own = Rating(check_name(voter), check_uid(uid), rating)
        # repr of a float is the shortest text that reads back as the same number.
        self._log.append(voter=own.voter, uid=uid, rating=SKIP if rating is None else repr(float(rating)))
        return own

    def ratings(self) -> list[Rating]:
        """Return the current ratings, oldest first: the last of each person on each experience."""
        return self.replay().decisions


def parse_vote(path: Path, line: Line) -> Vote:
    """Read a line of votes.csv; raises SourceError that names the line."""
    cells = line.cells
    verdict = cells.get("verdict", "")
    if verdict not in (*VERDICTS, UNDO):
        raise SourceError(f"{path}:{line.number}: verdict: got {verdict!r}, expected {', '.join((*VERDICTS, UNDO))}")
    if not cells["voter"] or cells["a"] == cells["b"]:
        raise SourceError(f"{path}:{line.number}: expected a voter and two different ids")
    return Vote(cells["voter"], cells["a"], cells["b"], verdict, cells.get("time", ""), line.number)


def parse_rating(path: Path, line: Line) -> Rating:
    """Read a line of ratings.csv; raises SourceError that names the line."""
    cells, text = line.cells, line.cells.get("rating", "")
    if not cells.get("voter") or not cells.get("uid"):
        raise SourceError(f"{path}:{line.number}: expected a voter and an id")
    # An undo has no number: only its voter and id are used.
    rating = None if text in (SKIP, UNDO) else read_number(path, line.number, text)
    return Rating(cells["voter"], cells["uid"], rating, cells.get("time", ""), line.number)


def read_number(path: Path, number: int, text: str | None) -> float:
    """Read a rating; raises SourceError that names the line."""
    try:
        rating = float(text or "")
    except ValueError:
        rating = math.nan  # rejected below, like nan and inf in the file
    if not math.isfinite(rating):
        raise SourceError(f"{path}:{number}: rating: got {text!r}, expected a number")
    return rating
