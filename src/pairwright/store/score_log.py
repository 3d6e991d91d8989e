"""Scores beside the experiences: what a scorer said of each, which never replaces a recorded reward.

    DIR/scores/NAME.jsonl    one line for each experience and criterion of the scorer NAME, appended

A line is a `ScoreRow`. The criterion `score` is the scorer's overall score. The last line of an experience and
criterion counts; lines with another `hash` than the last line are of an older version of the scorer and do not count.
A line without a number is a failure, which the next run of the scorer repeats.
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

    score    None for a failure, whose cause is the reason
    cost     what the judge's tokens cost, in the currency of its prices
    hash     of the scorer: its code, or its rubric and model
    group    relative scores: hash of the experiences that were compared
    """

    uid: str
    criterion: str = OVERALL
    score: float | None = None
    reason: str = ""
    cost: float = 0.0
    hash: str = ""
    group: str = ""


def check_scorer_name(name: str) -> str:
    """Return the name of a scorer, which names its file; a criterion may follow it after a dot elsewhere."""
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
        """Add rows; on return they are on the disk."""
        if rows:
            lines = [msgspec.json.encode(row) for row in rows]
            append_lines(self.path, lines, header=_HEADER)

    def rows(self) -> Iterator[ScoreRow]:
        """All rows in the order of the file, older versions and failures included."""
        if self.path.exists():
            yield from _decode(self.path.read_bytes(), self.path)


def calibration_path(folder: Place, name: str) -> Place:
    """Where the calibration of a scorer is."""
    return folder / FOLDER / f"{check_scorer_name(name)}.calibration.json"


def read_slope(folder: Place, name: str) -> tuple[float, int]:
    """The calibrated slope of `SCORER` or `SCORER.CRITERION`, and from how many pairs it is.

    The side with the higher score is the better one with the probability 1 / (1 + exp(-slope · gap)).
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
    """Ids of the runs that calibrations of the table's scorers propose to label next, in their order."""
    uids: dict[str, None] = {}
    for name in list_scorers(folder):
        path = calibration_path(folder, name)
        if path.exists():
            uids |= dict.fromkeys(msgspec.json.decode(path.read_bytes())["next"])
    return list(uids)


def stored_scores(folder: Place, uid: str | None = None) -> dict[str, dict[str, float]]:
    """All stored scores by id: `judge` for the overall score, `judge.helpful` for a criterion; of one run if named."""
    found: dict[str, dict[str, float]] = {}
    for name in list_scorers(folder):
        rows = read_score_log(folder, name).select("uid", "criterion", "score")
        for run, criterion, score in (rows if uid is None else rows.filter(uid=uid)).iter_rows():
            found.setdefault(run, {})[name if criterion == OVERALL else f"{name}.{criterion}"] = score
    return found


def list_scorers(folder: Place) -> list[str]:
    """The names of the scorers of a table."""
    scores = folder / FOLDER
    names = list_names(scores) if scores.is_dir() else []
    return sorted(name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl") and "." not in name[:-6])


def read_score_log(folder: Place, name: str) -> "pl.DataFrame":
    """The scores of a scorer that count: uid, criterion, score, reason, cost, hash, group; failures are left out."""
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
    """Read a file; its size is part of the key of the cache, since the file only grows."""
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
    """Columns uid and score: the overall score of `NAME`, or a criterion of it as `NAME.CRITERION`."""
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
    """The mean score of each criterion."""
    # fsum: the mean does not depend on the order of addition
    groups = frame.group_by("criterion").agg("score").sort("criterion").iter_rows()
    return {criterion: math.fsum(scores) / len(scores) for criterion, scores in groups}
