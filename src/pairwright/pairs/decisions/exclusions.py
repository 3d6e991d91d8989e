"""Experiences that a person has excluded, with a reason: `exclusions.csv` in the folder of their table.

    name,action,uid,reason,time      action: exclude, include

The last line on an experience decides, regardless of its author. `pairs` and training skip and count excluded
experiences; the table itself does not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from pairwright.errors import PairwrightError, SourceError
from pairwright.pairs.decisions.decision_log import Line, check_name, check_reason, check_uid, open_log, read_lines
from pairwright.paths import Place
from pairwright.store.table import Table

FILE_NAME = "exclusions.csv"
COLUMNS = ("name", "action", "uid", "reason", "time")
EXCLUDE, INCLUDE = "exclude", "include"


@dataclass(frozen=True)
class Exclusion:
    """An excluded experience: who excluded it, why and when."""

    uid: str
    name: str
    reason: str
    time: str
    line: int


class ExclusionFile:
    """The exclusions of an experience table, in its local folder; several processes may use one file."""

    def __init__(self, folder: Place) -> None:
        self._log = open_log(folder, FILE_NAME, COLUMNS, what="exclusions")
        self.path = self._log.path

    def exclude(self, name: str, uid: str, reason: str) -> None:
        """Exclude an experience in a person's name, for a reason; the decision is on disk when the call returns."""
        self._log.append(name=check_name(name), action=EXCLUDE, uid=check_uid(uid), reason=check_reason(reason))

    def include(self, name: str, uid: str, reason: str = "included again") -> None:
        """Revoke an exclusion."""
        if uid not in self.exclusions():
            raise PairwrightError(f"{uid} is not excluded in {self.path}")
        self._log.append(name=check_name(name), action=INCLUDE, uid=check_uid(uid), reason=check_reason(reason))

    def exclusions(self) -> dict[str, Exclusion]:
        """Return the current exclusions by id, including those that other processes have added."""
        return _replay(self.path, self._log.read())


def read_exclusions(folder: Place) -> dict[str, Exclusion]:
    """Read the exclusions of a local or remote table; empty if there is no file."""
    return _replay(folder / FILE_NAME, read_lines(folder / FILE_NAME, COLUMNS))


def check_exclusions(tables: Sequence[Table]) -> None:
    """Raise SourceError if an excluded id is not in its table: the exclusion would have no effect."""
    for table in tables:
        exclusions = read_exclusions(table.path)
        if not exclusions:
            continue
        ids = pl.Series(list(exclusions), dtype=pl.String)
        present = set(table.lazy().select("uid").filter(pl.col("uid").is_in(ids.implode())).collect()["uid"])
        for uid, exclusion in exclusions.items():
            if uid not in present:
                raise SourceError(
                    f"{table.path / FILE_NAME}:{exclusion.line}: {uid!r} is excluded, but the table has no such "
                    "experience: remove the line"
                )


def _replay(path: Place, lines: Sequence[Line]) -> dict[str, Exclusion]:
    exclusions: dict[str, Exclusion] = {}
    for line in lines:
        cells = line.cells
        action, uid = cells.get("action", ""), cells.get("uid", "")
        if action not in (EXCLUDE, INCLUDE) or not uid:
            raise SourceError(f"{path}:{line.number}: got action {action!r} on {uid!r}, expected exclude or include")
        exclusions.pop(uid, None)
        if action == EXCLUDE:
            time, reason = cells.get("time", ""), cells.get("reason", "")
            exclusions[uid] = Exclusion(uid, cells.get("name", ""), reason, time, line.number)
    return exclusions
