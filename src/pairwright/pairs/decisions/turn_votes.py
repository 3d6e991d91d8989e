"""Votes of people on single turns: `turn_votes.csv` in the folder of the experience table.

    voter,uid,turn,verdict,time      verdict: ok, failed, unknown; skip revokes the voter's vote

`turn` is a position in the messages of the experience. The last vote of each voter on a turn is used; the majority
decides the verdict; a tie gives no verdict.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs.decisions.decision_log import Line, check_name, check_uid, open_log, read_lines
from pairwright.paths import Place

FILE_NAME = "turn_votes.csv"
COLUMNS = ("voter", "uid", "turn", "verdict", "time")
Verdict = Literal["ok", "failed", "unknown"]
WORDS = ("ok", "failed", "unknown", "skip")
TurnVotes = dict[str, dict[int, Verdict]]  # id of the experience -> turn -> verdict of the majority


class TurnVoteFile:
    """The votes on turns of an experience table, in its local folder; several processes may use one file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> votes = TurnVoteFile(Path(tempfile.mkdtemp()))
    >>> votes.vote("ada", "run-1", 3, "failed"), votes.votes()
    (None, {'run-1': {3: 'failed'}})
    """

    def __init__(self, folder: Place) -> None:
        self._log = open_log(folder, FILE_NAME, COLUMNS, what="votes on turns")
        self.path = self._log.path

    def vote(self, voter: str, uid: str, turn: int, verdict: str) -> None:
        """Append a person's vote on a turn: ok, failed or unknown; skip revokes it. On return, it is on disk."""
        if verdict not in WORDS or turn < 0:
            raise PairwrightError(f"got {verdict!r} on turn {turn}, expected one of {', '.join(WORDS)}")
        self._log.append(voter=check_name(voter), uid=check_uid(uid), turn=str(turn), verdict=verdict)

    def votes(self) -> TurnVotes:
        """Return the majority verdicts, including votes that other processes have added."""
        return _replay(self.path, self._log.read())


def read_turn_votes(folder: Place) -> TurnVotes:
    """Read the votes on turns of a local or remote table; empty if there is no file."""
    return _replay(folder / FILE_NAME, read_lines(folder / FILE_NAME, COLUMNS))


def _replay(path: Place, lines: Sequence[Line]) -> TurnVotes:
    last: dict[tuple[str, int], dict[str, str]] = {}
    for line in lines:
        cells = line.cells
        turn, verdict, uid = cells.get("turn", ""), cells.get("verdict", ""), cells.get("uid", "")
        if verdict not in WORDS or not turn.isdecimal() or not uid:
            raise SourceError(f"{path}:{line.number}: got {verdict!r} on turn {turn!r}, expected {', '.join(WORDS)}")
        last.setdefault((uid, int(turn)), {})[cells.get("voter", "")] = verdict
    votes: TurnVotes = {}
    for (uid, turn_number), by_voter in last.items():
        counts = Counter(verdict for verdict in by_voter.values() if verdict != "skip").most_common()
        # A tie gives no verdict.
        if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]):
            votes.setdefault(uid, {})[turn_number] = cast(Verdict, counts[0][0])
    return votes
