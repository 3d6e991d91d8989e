"""What became of each experience: in how many pairs it is, and on which side, or the reason why in none."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.errors import PairwrightError, TableError
from pairwright.pairs.funnel import Reason
from pairwright.pairs.gaps import reward_gaps
from pairwright.pairs.table import FILE_NAME as PAIRS_NAME
from pairwright.pairs.work import Work

FILE_NAME = "outcomes.parquet"


def outcomes(work: Work, drafts: pl.DataFrame) -> pl.DataFrame:
    """One row an experience, sorted by id: reason (null where it is in a pair), num_chosen, num_rejected."""
    rows = (
        work.rows.select("uid", "reason")
        .sort("uid", "reason", nulls_last=True)
        .unique("uid", keep="last", maintain_order=True)
    )
    for side in ("chosen", "rejected"):
        origin = pl.coalesce("row_uid", f"{side}_uid").alias("uid")
        counts = drafts.group_by(origin).agg(pl.len().cast(pl.Int64).alias(f"num_{side}"))
        rows = rows.join(counts, on="uid", how="left")
    rows = rows.with_columns(pl.col("num_chosen", "num_rejected").fill_null(0))
    in_no_pair = pl.col("reason").is_null() & (pl.col("num_chosen") + pl.col("num_rejected") == 0)
    rows = rows.join(_last_reasons(work), on="uid", how="left")
    rows = rows.with_columns(
        reason=pl.when(in_no_pair).then(pl.col("lost").fill_null(Reason.NOT_PICKED.value)).otherwise("reason")
    )
    return rows.select("uid", "reason", "num_chosen", "num_rejected").sort("uid")


def write_outcomes(folder: Path, frame: pl.DataFrame) -> None:
    hidden = folder / f".{FILE_NAME}.{os.getpid()}.tmp"
    try:
        frame.write_parquet(hidden, compression="zstd")
        with open(hidden, "rb") as file:
            os.fsync(file.fileno())
        hidden.replace(folder / FILE_NAME)
    except OSError as error:
        raise PairwrightError(f"{folder / FILE_NAME}: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


def explain(folder: Path, identity: str) -> dict[str, Any]:
    """Where an experience went, or where a pair came from. Ids may be shortened to what is unique."""
    if not (folder / FILE_NAME).exists():
        raise TableError(
            f"{folder / FILE_NAME}: no such file; make one with: pairwright pairs build EXPERIENCE -o {folder}"
        )
    rows = pl.scan_parquet(folder / FILE_NAME)
    pairs = pl.scan_parquet(folder / PAIRS_NAME).select(
        "id", "split", "gap", "chosen_reward", "rejected_reward", "chosen_uid", "rejected_uid", "strategy", "weight"
    )
    found = rows.filter(pl.col("uid").str.contains(identity, literal=True)).head(6).collect()
    exact = found.filter(pl.col("uid") == identity)
    found = exact if exact.height else found
    if found.height > 1:
        raise PairwrightError(f"{identity!r} is part of several ids: {', '.join(found['uid'].head(5))}")
    if found.height:
        (row,) = found.to_dicts()
        own = (pl.col("chosen_uid") == row["uid"]) | (pl.col("rejected_uid") == row["uid"])
        return {"experience": row["uid"], **row, "pairs": pairs.filter(own).head(20).collect().to_dicts()}
    matching = pairs.filter(pl.col("id").str.starts_with(identity)).head(2).collect()
    if matching.height != 1:
        what = "no experience and no pair with that id" if not matching.height else "part of several pair ids"
        raise PairwrightError(f"{identity!r}: {what} in {folder}")
    return {"pair": matching["id"][0], **matching.to_dicts()[0]}


def _last_reasons(work: Work) -> pl.DataFrame:
    """For candidates in no pair: why the last of their pairs went, or why there never was one."""
    frames = [
        lost.select(pl.col(side).alias("uid"), pl.lit(number).alias("place"), "reason")
        for number, lost in enumerate(work.lost)
        for side in ("chosen_uid", "rejected_uid")
    ]
    empty = pl.DataFrame(schema={"uid": pl.String, "lost": pl.String})
    late = empty
    if frames:
        late = pl.concat(frames).sort("place").group_by("uid").agg(pl.col("reason").last().alias("lost"))
    early = _never_paired(work) if work.candidates is not None else empty
    return pl.concat([late, early.join(late, on="uid", how="anti")])


def _never_paired(work: Work) -> pl.DataFrame:
    candidates = work.candidates
    assert candidates is not None
    if not candidates.frame.height:
        return pl.DataFrame(schema={"uid": pl.String, "lost": pl.String})
    rewards, groups = candidates.rewards, candidates.groups
    best, worst = rewards[candidates.starts[:-1]][groups], rewards[candidates.starts[1:] - 1][groups]
    bound = work.options.min_gap
    largest = np.maximum(reward_gaps(best, rewards, near=[bound]), reward_gaps(rewards, worst, near=[bound]))
    picked = Reason.GROUP_CAP if work.options.strategy == "all" else Reason.NOT_PICKED
    reason = np.where(best == worst, Reason.TIED.value, np.where(largest < bound, Reason.BELOW_GAP.value, picked.value))
    return pl.DataFrame({"uid": candidates.frame["uid"], "lost": pl.Series(reason.tolist(), dtype=pl.String)})
