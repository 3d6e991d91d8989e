"""Outcomes of a build: the number of pairs of each experience, or why it has no pair."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import PairwrightError, TableError
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME
from pairwright.pairs.row_groups import ROWS_PER_GROUP
from pairwright.paths import Place
from pairwright.paths.parquet_files import scan_parquet

FILE_NAME = "outcomes.parquet"
_SCHEMA = pa.schema(
    [("uid", pa.string()), ("reason", pa.string()), ("num_chosen", pa.int64()), ("num_rejected", pa.int64())]
)


def outcomes(experiences: pl.DataFrame, drafts: pl.DataFrame, dropped: pl.DataFrame) -> pl.DataFrame:
    """Return one row per experience: uid, reason (null if it is in a pair), num_chosen, num_rejected.

    `dropped` are the drafts dropped by selection: `why` is the reason, `number` the position of that reason in REASONS.
    """
    # A repeated record has the same id as the first one, which already has a row.
    rows = experiences.filter(pl.col("reason").ne_missing(pl.lit(Reason.REPEATED_RECORD.value)))
    for side in ("chosen", "rejected"):
        counts = drafts.group_by(pl.col(f"{side}_row").alias("row")).agg(pl.len().cast(pl.Int64).alias(f"num_{side}"))
        rows = rows.join(counts, on="row", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("num_chosen", "num_rejected").fill_null(0))
    in_no_pair = pl.col("reason").is_null() & (pl.col("num_chosen") + pl.col("num_rejected") == 0)
    late = pl.lit(None, pl.String)
    if dropped.height:
        # A row may lose several drafts, on either side: the reason applied last is what kept it out.
        gone = [dropped.select("number", "why", row=f"{side}_row") for side in ("chosen", "rejected")]
        last = pl.concat(gone).sort("number").group_by("row").agg(pl.col("why").last())
        rows, late = rows.join(last, on="row", how="left", maintain_order="left"), pl.col("why")
    # In order of precedence: dropped among all drafts, dropped in its partition, never part of a draft.
    lost = pl.coalesce(late, "lost", pl.lit(Reason.NOT_PICKED.value))
    return rows.select(
        "uid", pl.when(in_no_pair).then(lost).otherwise("reason").alias("reason"), "num_chosen", "num_rejected"
    )


class OutcomesWriter:
    """Writes outcomes to a Parquet file, in row groups that do not depend on how experiences were partitioned."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _SCHEMA, compression="lz4", use_dictionary=["reason"])
        self._pending = _SCHEMA.empty_table()

    def write(self, frame: pl.DataFrame) -> None:
        """Add the outcomes of a partition."""
        rows = pa.concat_tables([self._pending, frame.to_arrow().cast(_SCHEMA)])
        num_whole = rows.num_rows - rows.num_rows % ROWS_PER_GROUP
        if num_whole:
            self._writer.write_table(rows.slice(0, num_whole).combine_chunks(), row_group_size=ROWS_PER_GROUP)
        self._pending = rows.slice(num_whole)

    def close(self) -> None:
        if self._pending.num_rows:
            self._writer.write_table(self._pending.combine_chunks())
        self._writer.close()


def explain(folder: Place, identity: str) -> dict[str, Any]:
    """Return the fate of an experience (a part of its id) or the sources of a pair (a prefix of its id)."""
    if not (folder / FILE_NAME).exists():
        raise TableError(
            f"{folder / FILE_NAME}: no such file; make one with: pairwright pairs build EXPERIENCE -o {folder}"
        )
    rows = scan_parquet(folder / FILE_NAME)
    pairs = scan_parquet(folder / PAIRS_NAME).select(
        "id", "split", "gap", "chosen_reward", "rejected_reward", "chosen_uid", "rejected_uid", "strategy", "weight"
    )
    matches = rows.filter(pl.col("uid").str.contains(identity, literal=True)).head(6).collect()
    exact = matches.filter(pl.col("uid") == identity)
    matches = exact.head(1) if exact.height else matches
    if matches.height > 1:
        raise PairwrightError(f"{identity!r} is part of several ids: {', '.join(matches['uid'].head(5))}")
    if matches.height:
        (row,) = matches.to_dicts()
        own = (pl.col("chosen_uid") == row["uid"]) | (pl.col("rejected_uid") == row["uid"])
        return {"experience": row["uid"], **row, "pairs": pairs.filter(own).head(20).collect().to_dicts()}
    matching = pairs.filter(pl.col("id").str.starts_with(identity)).head(2).collect()
    if matching.height != 1:
        what = "no experience and no pair with that id" if not matching.height else "part of several pair ids"
        raise PairwrightError(f"{identity!r}: {what} in {folder}")
    return {"pair": matching["id"][0], **matching.to_dicts()[0]}
