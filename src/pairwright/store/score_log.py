"""Scores of experiences by scorers, stored next to the table; they never replace a recorded reward.

    DIR/scores/NAME.jsonl    one line for each experience and criterion of the scorer NAME, appended

A line is a `ScoreRow`. The criterion `score` is the scorer's overall score. Only lines with the `hash` of the
last line in the file are used: the others belong to an older version of the scorer. Of these, the last line of an
experience and criterion counts. A line without a number is a failure, which the next run of the scorer retries.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pairwright.errors import ConfigError, TableError
from pairwright.paths import Place, append_lines, list_names, local_path, place, repair_tail

if TYPE_CHECKING:
    import polars as pl

FOLDER = "scores"
OVERALL = "score"
MAX_REASON = 2_000
_HEADER = b'{"pairwright.scores":1}'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class ScoreRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One score of one experience.

    score    None for a failure; `reason` is then its cause
    cost     cost of the judge's tokens, in the currency of its prices
    hash     of the scorer: its code, or its rubric and model
    group    relative scores: hash of the compared experiences
    """

    uid: str
    criterion: str = OVERALL
    score: float | None = None
    reason: str = ""
    cost: float = 0.0
    hash: str = ""
    group: str = ""


def check_scorer_name(name: str) -> str:
    """Check and return the name of a scorer, which is also the name of its file."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"scorer: got the name {name!r}, expected letters, digits, _ and -: it names a file")
    return name


class ScoreLog:
    """The scores of one scorer for one table; several processes may append."""

    def __init__(self, folder: Place, name: str) -> None:
        local = local_path(folder)
        if local is None:
            raise TableError(f"{folder}: scores are written on this machine only: copy the table here")
        self.path: Path = local / FOLDER / f"{check_scorer_name(name)}.jsonl"
        repair_tail(self.path, header=_HEADER)

    def append(self, rows: Sequence[ScoreRow]) -> None:
        """Append rows; durable on return."""
        if rows:
            lines = [msgspec.json.encode(row) for row in rows]
            append_lines(self.path, lines, header=_HEADER)

    def rows(self) -> Iterator[ScoreRow]:
        """Yield all rows in file order, including older versions and failures."""
        if self.path.exists():
            yield from _decode(self.path.read_bytes(), self.path)


def calibration_path(folder: Place, name: str) -> Place:
    """Return the path of a scorer's calibration."""
    return folder / FOLDER / f"{check_scorer_name(name)}.calibration.json"


def read_slope(folder: Place, name: str) -> tuple[float, int]:
    """Return the calibrated slope of `SCORER` or `SCORER.CRITERION`, and the number of pairs it is based on.

    The side with the higher score is better with probability 1 / (1 + exp(-slope · gap)).
    """
    scorer, _, criterion = name.partition(".")
    path = calibration_path(folder, scorer)
    if not path.exists():
        raise TableError(f"{scorer} is not calibrated: pairwright score {folder} --calibrate {scorer} --labels reward")
    report = msgspec.json.decode(path.read_bytes())
    if report["hash"] != read_score_log(folder, scorer)["hash"].last():
        raise TableError(f"{scorer} has changed since it was calibrated: calibrate it again")
    found = report["criteria"][criterion or OVERALL]
    return float(found["slope"]), int(found["slope_pairs"])


def proposed_runs(folder: Place) -> list[str]:
    """Return the ids of the runs that calibrations of the table's scorers propose to label next, in order."""
    uids: dict[str, None] = {}
    for name in list_scorers(folder):
        path = calibration_path(folder, name)
        if path.exists():
            uids |= dict.fromkeys(msgspec.json.decode(path.read_bytes())["next"])
    return list(uids)


def stored_scores(folder: Place, uid: str | None = None) -> dict[str, dict[str, float]]:
    """Return all stored scores by id (or those of `uid`): `judge` is the overall score, `judge.helpful` a criterion."""
    found: dict[str, dict[str, float]] = {}
    for name in list_scorers(folder):
        rows = read_score_log(folder, name).select("uid", "criterion", "score")
        for run, criterion, score in (rows if uid is None else rows.filter(uid=uid)).iter_rows():
            found.setdefault(run, {})[name if criterion == OVERALL else f"{name}.{criterion}"] = score
    return found


def list_scorers(folder: Place) -> list[str]:
    """Return the names of a table's scorers."""
    scores = folder / FOLDER
    names = list_names(scores) if scores.is_dir() else []
    return sorted(name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl") and "." not in name[:-6])


def read_score_log(folder: Place, name: str) -> "pl.DataFrame":
    """Return a scorer's valid scores (uid, criterion, score, reason, cost, hash, group), without failures."""
    path = folder / FOLDER / f"{check_scorer_name(name)}.jsonl"
    if not path.exists():
        known = ", ".join(list_scorers(folder)) or "none"
        raise TableError(
            f"{folder}: no scores of {name!r}; there are: {known}. Make them with: "
            f"pairwright score {folder} --with programs"
        )
    return _read(str(path), path.stat().st_size if isinstance(path, Path) else None)


@lru_cache(maxsize=4)
def _read(path: str, size: int | None) -> "pl.DataFrame":
    """Read a file, cached by path and size, since the file only grows."""
    import polars as pl

    content = place(path).read_bytes()
    schema = dict.fromkeys(ScoreRow.__struct_fields__, pl.String) | {"score": pl.Float64, "cost": pl.Float64}
    whole = content[: content.rfind(b"\n") + 1]
    try:
        frame = pl.read_ndjson(io.BytesIO(whole), schema=schema) if whole else pl.DataFrame(schema=schema)
    except pl.exceptions.PolarsError as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    frame = frame.filter(pl.col("uid").is_not_null()).with_columns(pl.col("criterion").fill_null(OVERALL))
    frame = frame.filter(pl.col("hash") == frame["hash"].last()) if frame.height else frame
    frame = frame.unique(["uid", "criterion"], keep="last", maintain_order=True)
    return frame.filter(pl.col("score").is_not_null())


def read_one_score(folder: Place, name: str) -> "pl.DataFrame":
    """Return columns uid and score: the overall score of `NAME`, or a criterion as `NAME.CRITERION`."""
    import polars as pl

    scorer, _, criterion = name.partition(".")
    frame = read_score_log(folder, scorer)
    chosen = frame.filter(pl.col("criterion") == (criterion or OVERALL))
    if not chosen.height:
        known = ", ".join(sorted(frame["criterion"].unique())) or "none"
        raise TableError(f"{folder}: {scorer} has no score named {criterion or OVERALL!r}; it has {known}")
    return chosen.select("uid", "score")


def _decode(content: bytes, path: Place) -> Iterator[ScoreRow]:
    decoder = msgspec.json.Decoder(ScoreRow)
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines()[1:], 2):
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TableError(f"{path}:{number}: cannot be read: {error}") from error


def mean_scores(frame: "pl.DataFrame") -> dict[str, float]:
    """Return the mean score of each criterion."""
    # fsum makes the mean independent of the order of addition.
    groups = frame.group_by("criterion").agg("score").sort("criterion").iter_rows()
    return {criterion: math.fsum(scores) / len(scores) for criterion, scores in groups}
