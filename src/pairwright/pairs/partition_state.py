"""State of a partition during planning, shared by strategies and filters, with a record of every drop."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.candidates.candidates import Candidates
from pairwright.pairs.funnel import NUM_EXAMPLES, Funnel, Reason, Stage
from pairwright.pairs.options import PairOptions
from pairwright.store.table import Table


@dataclass
class Work:
    """Rows with their reasons so far, the funnel, and the dropped drafts.

    `tables` are for strategies that read texts while planning; strategies in groups do not use them.
    """

    tables: Sequence[Table]
    options: PairOptions
    rows: pl.DataFrame
    funnel: Funnel = field(default_factory=Funnel)
    candidates: Candidates | None = None
    # One frame for each reason, in the order of dropping: chosen_row, rejected_row, reason.
    lost: list[pl.DataFrame] = field(default_factory=list)

    @property
    def stage(self) -> Stage:
        """The current stage of the funnel, which is its last one."""
        return self.funnel.stages[-1]

    def drop(self, drafts: pl.DataFrame, reason: Reason, bad: npt.NDArray[np.bool_] | pl.Series) -> pl.DataFrame:
        """Return drafts without those in the mask `bad`, and count these under `reason`."""
        mask = pl.Series(bad)
        num_bad = int(mask.sum())
        gone = drafts.filter(mask) if num_bad else drafts.clear()
        self.stage.drop(reason, num_bad, pair_examples(gone))
        # Most filters drop nothing: the frame is passed on without a copy.
        if not num_bad:
            return drafts
        self.lost.append(gone.select("chosen_row", "rejected_row").with_columns(reason=pl.lit(reason.value)))
        return drafts.filter(~mask)


def pair_examples(drafts: pl.DataFrame) -> list[str]:
    """Return a few drafts as text, "UID over UID"; independent of the order of drafts."""
    named = drafts.select(pl.concat_str("chosen_uid", pl.lit(" over "), "rejected_uid").alias("pair"))
    return named.to_series().bottom_k(NUM_EXAMPLES).sort().to_list()
