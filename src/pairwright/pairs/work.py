"""A build while it is under way: what strategies and filters share, and where every drop is written down."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.candidates import Candidates, count_reasons
from pairwright.pairs.funnel import Funnel, Reason, Stage
from pairwright.pairs.options import PairOptions
from pairwright.store.table import Table


@dataclass
class Work:
    """Tables and options, the rows with their reasons so far, the funnel, and what happened to drafts."""

    tables: Sequence[Table]
    options: PairOptions
    rows: pl.DataFrame
    funnel: Funnel = field(default_factory=Funnel)
    candidates: Candidates | None = None
    lost: list[pl.DataFrame] = field(default_factory=list)

    def close_experiences(self) -> None:
        """The stage of the experiences: every row has its reason, or is a candidate."""
        stage = self.funnel.stage("experiences", self.rows.height)
        count_reasons(self.rows, stage)
        stage.close(int(self.rows["reason"].null_count()))

    @property
    def stage(self) -> Stage:
        """The stage of the pairs, which is the last one."""
        return self.funnel.stages[-1]

    def drop(self, drafts: pl.DataFrame, reason: Reason, bad: npt.NDArray[np.bool_] | pl.Series) -> pl.DataFrame:
        """Drafts without the bad ones, which are counted."""
        mask = pl.Series(bad)
        num_bad = int(mask.sum())
        if not num_bad:
            return drafts
        gone = drafts.filter(mask).select("chosen_uid", "rejected_uid")
        examples = gone.sort("chosen_uid", "rejected_uid").head(5).iter_rows()
        self.stage.drop(reason, num_bad, (f"{chosen} over {rejected}" for chosen, rejected in examples))
        self.lost.append(gone.with_columns(reason=pl.lit(reason.value)))
        return drafts.filter(~mask)
