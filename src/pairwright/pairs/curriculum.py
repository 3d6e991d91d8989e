"""Curriculum: tasks ranked by mean reward, easy or hard first."""

from pathlib import Path

import polars as pl

from pairwright.errors import TableError
from pairwright.pairs.funnel import FILE_NAME, read_funnel
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pair_table import pair_batches


def read_curriculum(pairs: Path) -> str | None:
    """Return the curriculum in whose order the pairs of a table are: easy-first or hard-first; None if there is none.

    It is read from the funnel.json beside the pairs. Raises TableError if earlier versions divided the pairs into
    stages, which are not trained any more.
    """
    folder = pairs if pairs.is_dir() else pairs.parent
    if any(batch.column(0).null_count < batch.num_rows for batch in pair_batches(pairs, ["curriculum_stage"])):
        raise TableError(
            f"{folder}: the pairs have the stages of a curriculum, which only earlier versions train: build them again "
            f"with: pairwright pairs EXPERIENCE -o {folder} --curriculum easy-first"
        )
    funnel = read_funnel(folder) if (folder / FILE_NAME).is_file() else {}
    name = (funnel.get("options") or {}).get("curriculum", "none")
    return None if name == "none" else str(name)


def task_ranks(tasks: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Rank tasks by the mean reward of their candidates: easy (high) first, or hard first; ties by task id."""
    # Sorted first: the mean of floats depends on the order of summation.
    sums = tasks.sort("tid", "reward").group_by("tid", maintain_order=True).agg(pl.col("reward").mean())
    order = sums.sort("reward", "tid", descending=[options.curriculum == "easy-first", False])
    return order.select("tid").with_row_index("rank")
