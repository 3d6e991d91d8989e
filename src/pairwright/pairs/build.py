"""Build pairs from experience tables: plan on narrow columns, fetch each text once, write the files.

    DIR/pairs.parquet      the pairs (pairs/pair_table.py)
    DIR/funnel.json        counts of inputs, outputs and dropped items by reason (pairs/funnel.py)
    DIR/lineage.json       the experience tables that the pairs were built from (pairs/outcomes.py)
    DIR/outcomes.parquet   number of pairs of each experience, or the reason why it is in none (pairs/outcomes.py)

    rows ─► buckets ─► plan of each (pairs/partition.py) ─► selection among all ─► texts, in slices ─► files

Output is deterministic: the same tables and options give the same bytes, regardless of the order in which experiences
were appended and of the number of buckets and slices.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.engines import Engine
from pairwright.errors import PairwrightError
from pairwright.pairs.build_plan import Plan, plan_pairs
from pairwright.pairs.candidates.candidates import count_reasons
from pairwright.pairs.funnel import FILE_NAME, Funnel, Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.outcomes import LINEAGE_FILE, outcomes, table_references, write_outcomes
from pairwright.pairs.pair_table import write_pairs
from pairwright.pairs.partition_state import pair_examples
from pairwright.pairs.selection import REASONS, length_effect, shares
from pairwright.pairs.spill import plain_memory
from pairwright.pairs.strategies.strategies import IN_GROUPS
from pairwright.pairs.texts import PairTexts, num_slices
from pairwright.pairs.why_empty import grouping_hint, hint_for
from pairwright.pairs.workers import PIECE_MEGABYTES, Progress, spread_rows
from pairwright.paths import Place, build_folder, write_json
from pairwright.store.table import Table


def build_pairs(
    tables: Sequence[Table],
    output: Place,
    options: PairOptions | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Build pairs from tables and write them to a folder; returns the content of funnel.json.

    With an engine, its workers run the tasks of pairs/workers.py, and `progress` is called with the number of tasks
    done and in total.
    """
    options = options or PairOptions()
    with plain_memory(), build_folder(output, shared=engine is not None) as folder:
        plan = plan_pairs(tables, options, folder, engine=engine, progress=progress)
        # Reason 0 stands for a draft that is kept.
        num_kept = int((plan.selection.reasons == 0).sum())
        memory = options.memory_megabytes if engine is None else min(PIECE_MEGABYTES, options.memory_megabytes)
        # A pair needs the texts of two rows at most: its chosen and its rejected one.
        slices = num_slices(plan.tables, 2 * num_kept, memory_megabytes=memory)
        texts, funnel = PairTexts(num_kept, slices, folder), _open_funnel(plan)
        # Writing the outcomes drives `_write_partitions`, which fills `texts` and counts into `funnel` on the way.
        write_outcomes(output, _write_partitions(plan, texts, funnel))
        if engine is None or slices == 1:
            rows = texts.rows(plan.tables)
        else:
            rows = spread_rows(texts, plan.tables, folder, engine, progress)
        num_pairs = write_pairs(output, rows)
    assert num_pairs == num_kept, "every draft that is kept is a pair"
    funnel.stages[0].sort()
    for stage, num_out in ((funnel.stages[0], funnel.stages[0].num_out or 0), (funnel.stages[-1], num_pairs)):
        stage.close(num_out)
    if not num_pairs:
        funnel.hint = hint_for(funnel, plan.clues, plan.options)
        if Reason.SINGLE in funnel.stages[0].drops and (grouping := grouping_hint(plan.tables)):
            funnel.hint += f". {grouping}"
    summary = {**_summary(plan, num_pairs), **funnel.as_json()}
    write_json(output / FILE_NAME, summary, error=PairwrightError)
    write_json(output / LINEAGE_FILE, {"tables": table_references(plan.tables, output)}, error=PairwrightError)
    return summary


def _open_funnel(plan: Plan) -> Funnel:
    """Return the funnel of a plan, preceded by the stage `experiences`, which has no counts yet."""
    funnel = Funnel()
    funnel.stage("experiences", 0).num_out = 0
    funnel.stages += plan.funnel.stages
    # Registered with a count of 0, so that funnel.json lists them in the order in which they were applied.
    for reason in REASONS:
        funnel.stages[-1].drop(reason, 0)
    return funnel


def _write_partitions(plan: Plan, texts: PairTexts, funnel: Funnel) -> Iterator[pl.DataFrame]:
    """Yield the outcomes of each partition; adds kept drafts to `texts` and counts dropped ones in `funnel`."""
    # `first` counts all drafts of the partitions before, `place` only those of them that were kept.
    selection, first, place = plan.selection, 0, 0
    for (drafts, experiences), size in zip(plan.partitions(), plan.sizes, strict=True):
        experiences = _with_others(experiences, plan)
        funnel.stages[0].num_in += experiences.height
        funnel.stages[0].num_out = (funnel.stages[0].num_out or 0) + experiences["reason"].null_count()
        count_reasons(experiences, funnel.stages[0])
        # One uint8 for each draft of this partition: 0 for kept, else 1 + the index in REASONS.
        reasons = selection.reasons[first : first + size]
        dropped = drafts.with_columns(number=pl.Series(reasons)).filter(pl.Series(reasons > 0))
        dropped = dropped.with_columns(
            why=pl.col("number").replace_strict(dict(enumerate(REASONS, 1)), return_dtype=pl.String)
        )
        for (why,), some in dropped.group_by("why"):
            funnel.stages[-1].drop(Reason(why), some.height, pair_examples(some))
        remaining = drafts.filter(pl.Series(reasons == 0)) if dropped.height else drafts
        places = np.arange(place, place + remaining.height)
        texts.add(
            _add_decisions(remaining, plan, places), places if selection.places is None else selection.places[places]
        )
        yield outcomes(experiences, remaining, dropped)
        first, place = first + size, place + remaining.height


def _with_others(experiences: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Set the reason DIFFERENT_PROMPTS on single candidates whose task and step have candidates at other prompts."""
    if plan.strategy not in IN_GROUPS or not plan.crowded.height:
        return experiences
    # These rows have the reason `single` so far, the only one with a mark to join on.
    crowded = plan.crowded.with_columns(other=pl.lit(Reason.DIFFERENT_PROMPTS.value))
    joined = experiences.join(crowded, on="mark", how="left", maintain_order="left")
    return joined.with_columns(reason=pl.coalesce("other", "reason")).drop("other")


def _add_decisions(drafts: pl.DataFrame, plan: Plan, places: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Add the results of selection to drafts: strategy, weight, split and curriculum stage."""
    selection = plan.selection
    # Weights, splits and stages are indexed by kept draft, in the order of planning.
    stages = None if selection.stages is None else selection.stages[places]
    return drafts.with_columns(
        pl.lit(plan.strategy).alias("strategy"),
        pl.Series("weight", selection.weights[places], pl.Float64),
        selection.splits.gather(places).alias("split"),
        pl.Series("curriculum_stage", stages, pl.Int64)
        if stages is not None
        else pl.lit(None, pl.Int64).alias("curriculum_stage"),
    )


def _summary(plan: Plan, num_pairs: int) -> dict[str, Any]:
    """Return the part of funnel.json that precedes the stages: counts, options, reward scales, curriculum."""
    selection, options = plan.selection, plan.options
    effect = length_effect(selection.differences)
    summary: dict[str, Any] = {
        "pairs": num_pairs,
        "train": int((selection.splits == "train").sum()),
        "validation": int((selection.splits == "validation").sum()),
        # JSON has no number for infinity.
        "length_effect": effect if abs(effect) != float("inf") else str(effect),
        "options": options.as_json(),
        "reward_scale": {name: scale.as_json() for name, scale in plan.scales.items()},
    }
    if selection.stages is not None:
        counts = np.bincount(selection.stages, minlength=len(shares(options))).tolist()
        summary["curriculum"] = [
            {"stage": stage, "from_epoch": stage * options.curriculum_interval, "share": float(share), "pairs": num}
            for stage, (share, num) in enumerate(zip(shares(options), counts, strict=True))
        ]
    return summary
