"""Build pairs from experience tables: plan on narrow columns, fetch each text once, write the files.

    DIR/pairs.parquet      the pairs (pairs/pair_table.py)
    DIR/funnel.json        counts of inputs, outputs and dropped items by reason (pairs/funnel.py)
    DIR/lineage.json       the experience tables that the pairs were built from (pairs/outcomes.py)
    DIR/outcomes.parquet   number of pairs of each experience, or why it has no pair (pairs/outcomes.py)

    rows ─► buckets ─► plan of each (pairs/partition.py) ─► selection among all ─► texts, in slices ─► files

Output is deterministic: the same tables and options give the same bytes, regardless of the order in which experiences
were appended and of the number of buckets and slices.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.engines import Engine, Pool
from pairwright.errors import PairwrightError, TableError
from pairwright.pairs.buckets import find_bounds, is_parted, num_buckets, split_rows
from pairwright.pairs.candidates.candidates import (
    Floats,
    Scale,
    add_scales,
    count_reasons,
    narrower_keys,
    read_candidate_rows,
)
from pairwright.pairs.crossing import check_within, count_crossings
from pairwright.pairs.decisions.exclusions import check_exclusions
from pairwright.pairs.fetch_texts import PairTexts, num_slices
from pairwright.pairs.funnel import FILE_NAME, Funnel, Reason, Stage
from pairwright.pairs.lineage import LINEAGE_FILE, table_references
from pairwright.pairs.memory_pool import plain_memory
from pairwright.pairs.options import PairOptions
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES_FILE
from pairwright.pairs.outcomes import OutcomesWriter, outcomes
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_FILE
from pairwright.pairs.pair_table import write_pair_file
from pairwright.pairs.partition import candidate_rewards, plan_partition
from pairwright.pairs.partition_state import Clues, grouping_hint, hint_for, pair_examples
from pairwright.pairs.selection import REASONS, Selection, length_effect, select_drafts
from pairwright.pairs.shuffle_files import Stored, take_rows
from pairwright.pairs.strategies.strategies import compares_groups, with_thresholds
from pairwright.pairs.strategies.votes import Votes, read_votes, with_ratings
from pairwright.pairs.workers import (
    PIECE_MEGABYTES,
    BucketPlan,
    Progress,
    bucket_rewards,
    plan_bucket,
    report_progress,
    shuffle_rows,
    spread_rows,
)
from pairwright.paths import Place, build_folder, claim_folder, write_json, write_together
from pairwright.store.score_log import read_score_log, read_slope
from pairwright.store.table import Table

MAX_NOISE = 0.45  # largest label noise ε of a pair: robust DPO divides by 1 - 2ε, which must not be near 0


@dataclass
class _Planned:
    """The partitions planned so far: drafts and experiences are stored, the input of selection and counts is kept."""

    stored: deque[tuple[int, Stored, Stored]] = field(default_factory=deque)
    """Of each partition: number of drafts, drafts, experiences."""
    funnel: Funnel = field(default_factory=Funnel)
    scales: dict[str, Scale] = field(default_factory=dict)
    clues: list[Clues] = field(default_factory=list)
    narrow: list[pl.DataFrame] = field(default_factory=list)
    steps: list[pl.DataFrame] = field(default_factory=list)
    tasks: list[pl.DataFrame] = field(default_factory=list)

    def add(self, bucket: BucketPlan) -> None:
        """Add a partition, whose drafts and experiences are stored."""
        plan = bucket.plan
        self.stored.append((bucket.num_drafts, bucket.drafts, bucket.experiences))
        self.funnel.add(plan.funnel)
        self.scales = add_scales(self.scales, plan.scales)
        self.clues.append(plan.clues)
        self.narrow.append(bucket.narrow)
        self.steps.append(plan.steps)
        self.tasks.append(plan.tasks)


def build_pairs(
    tables: Sequence[Table],
    output: Place,
    options: PairOptions | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Build pairs from tables and write them to a folder; returns the content of funnel.json.

    With an engine, its workers run the tasks of pairs/workers.py; without one, this process runs them if the rows or
    texts do not fit in memory. `progress` is called with the number of tasks done and in total.
    """
    options, runner = options or PairOptions(), engine or Pool()
    with (
        claim_folder(output, "pairs.parquet", work="pairs"),
        plain_memory(),
        build_folder(output, shared=engine is not None) as folder,
        write_together(output, (PAIRS_FILE, OUTCOMES_FILE, FILE_NAME, LINEAGE_FILE), error=TableError) as files,
    ):
        pairs_file, outcomes_file, funnel_file, lineage_file = files
        if options.score is not None:
            tables = _with_score(tables, options.score)
        # Tables of teachers come last: a pair may contain their texts.
        everything = (*tables, *(Table(path, create=False) for path in options.teachers))
        check_exclusions(everything)
        if options.within is not None:
            check_within(tables, options.within)

        votes: Votes | None = None
        number = num_buckets(tables, options)
        in_pieces = is_parted(options) and any(table.count() for table in tables)
        if in_pieces and (engine is not None or number > 1):
            planned, resolved = _plan_in_pieces(tables, options, folder, runner, progress, number=number)
        else:
            planned, resolved, votes = _plan_in_memory(tables, everything, options, folder)
        slope = None
        if options.reliability != "off" or options.min_probability > 0.5:
            slope = _calibrated_slope(tables, str(options.score))
        selection = select_drafts(pl.concat(planned.narrow), pl.concat(planned.tasks), resolved, everything, slope)

        # Outcomes of all experiences; drafts that are kept wait for their texts.
        num_kept = int((selection.reasons == 0).sum())
        memory = options.memory_megabytes if engine is None else min(PIECE_MEGABYTES, options.memory_megabytes)
        slices = num_slices(everything, 2 * num_kept, memory_megabytes=memory)
        texts = PairTexts(num_kept, slices, folder)
        # Ratings replace the rewards and work with any strategy; votes on pairs replace the strategy.
        strategy = options.strategy if votes is None or votes.ratings is not None else "votes"
        funnel = Funnel([Stage("experiences", 0, num_out=0), *planned.funnel.stages])
        experience_stage, pair_stage = funnel.stages[0], funnel.stages[-1]
        # Registered with a count of 0, so that funnel.json lists them in the order in which they were applied.
        for reason in REASONS:
            pair_stage.drop(reason, 0)
        steps = pl.concat(planned.steps)
        # `steps` has one mark for each group: a mark that occurs twice has groups at different prompts.
        crowded = steps.filter(steps["mark"].is_duplicated()).unique()
        compares_steps = strategy != "votes" and compares_groups(strategy) and crowded.height
        writer = OutcomesWriter(outcomes_file)
        # `first` counts all drafts of earlier partitions, `place` only the kept ones.
        first = place = 0
        while planned.stored:
            # Taken from the queue and deleted, so that memory and disk use fall while pairs are written.
            size, *stored = planned.stored.popleft()
            drafts, experiences = map(take_rows, stored)
            if compares_steps:
                experiences = _name_other_prompts(experiences, crowded)
            experience_stage.num_in += experiences.height
            experience_stage.num_out = (experience_stage.num_out or 0) + experiences["reason"].null_count()
            count_reasons(experiences, experience_stage)
            # One uint8 for each draft of this partition: 0 for kept, else 1 + the index in REASONS.
            reasons = selection.reasons[first : first + size]
            dropped = drafts.with_columns(number=pl.Series(reasons)).filter(pl.Series(reasons > 0))
            dropped = dropped.with_columns(
                why=pl.col("number").replace_strict(dict(enumerate(REASONS, 1)), return_dtype=pl.String)
            )
            for (why,), some in dropped.group_by("why"):
                pair_stage.drop(Reason(why), some.height, pair_examples(some))
            remaining = drafts.filter(pl.Series(reasons == 0)) if dropped.height else drafts
            places = np.arange(place, place + remaining.height)
            decided = _add_decisions(remaining, selection, places, strategy, options)
            texts.add(decided, places if selection.places is None else selection.places[places])
            writer.write(outcomes(experiences, remaining, dropped))
            first, place = first + size, place + remaining.height
        writer.close()

        is_whole = slices == 1
        pairs = texts.rows(everything) if is_whole else spread_rows(texts, everything, folder, runner, progress)
        num_pairs = write_pair_file(pairs_file, pairs)
        assert num_pairs == num_kept, "every draft that is kept is a pair"
        experience_stage.sort()
        experience_stage.close(experience_stage.num_out or 0)
        pair_stage.close(num_pairs)
        if not num_pairs:
            funnel.hint = hint_for(funnel, planned.clues, options)
            if Reason.SINGLE in experience_stage.drops and (grouping := grouping_hint(everything)):
                funnel.hint += f". {grouping}"
        compares_prompts = options.across_groups or not compares_groups(options.strategy)
        crossing = count_crossings(pairs_file, everything, compares_prompts=compares_prompts)
        summary = _summary(selection, options, planned.scales, votes, slope)
        summary |= {**({"crossing": crossing} if crossing else {}), **funnel.as_json()}
        write_json(funnel_file, summary, durable=False)
        write_json(lineage_file, {"tables": table_references(everything, output)}, durable=False)
    return summary


def _plan_in_pieces(
    tables: Sequence[Table], options: PairOptions, folder: Place, engine: Engine, progress: Progress, *, number: int
) -> tuple[_Planned, PairOptions]:
    """Plan rows in at least `number` buckets; returns the plans, and the options with thresholds as rewards."""
    buckets = shuffle_rows(tables, options, folder, engine, progress, number=number)
    rewards = engine.map(partial(bucket_rewards, options=options), buckets)  # lazy: computed only for quantiles
    resolved = _resolve_thresholds(rewards, options)
    planned = _Planned()
    plans = engine.map(partial(plan_bucket, options=resolved, folder=folder), buckets)
    for several in report_progress(plans, len(buckets), progress):
        for bucket in several:
            planned.add(bucket)
    return planned, resolved


def _plan_in_memory(
    tables: Sequence[Table], everything: Sequence[Table], options: PairOptions, folder: Place
) -> tuple[_Planned, PairOptions, Votes | None]:
    """Plan all rows, which fit in memory; returns the plans, the options with thresholds as rewards, and the votes."""
    rows = read_candidate_rows(tables, where=options.where, keys=narrower_keys(options))
    votes: Votes | None = None
    if options.votes is not None:
        votes = read_votes(Path(options.votes), rows)
        if votes.ratings is not None:
            rows = with_ratings(rows, votes.ratings)
    resolved = _resolve_thresholds(map(partial(candidate_rewards, options=options), [rows]), options)
    bounds = find_bounds(rows, options)
    aside = folder if bounds else None
    planned = _Planned()
    on_pairs = votes if votes is not None and votes.ratings is None else None
    for some in split_rows(rows, bounds):
        plan = plan_partition(some, resolved, tables=everything, votes=on_pairs)
        planned.add(BucketPlan.of(plan, resolved, aside))
    return planned, resolved, votes


def _calibrated_slope(tables: Sequence[Table], name: str) -> float:
    """Return the slope of a score; for several tables their mean, weighted by the number of calibration pairs."""
    slopes = [read_slope(table.path, name) for table in tables]
    slope = sum(value * num for value, num in slopes) / max(1, sum(num for _, num in slopes))
    if slope <= 0:
        raise PairwrightError(f"score: by its calibration, {name} says nothing about which run is better: label more")
    return slope


def _with_score(tables: Sequence[Table], name: str) -> list[Table]:
    """Return views of the tables with a stored score as reward; the tables must be scored by the same version."""
    versions = {read_score_log(table.path, name.partition(".")[0])["hash"].last() for table in tables}
    if len(versions) > 1:
        raise PairwrightError(f"score: {name} scored the tables in different versions: score all of them again")
    return [table.with_score(name) for table in tables]


def _resolve_thresholds(candidates: Iterable[Floats], options: PairOptions) -> PairOptions:
    """Replace quantile thresholds in the options by rewards; `candidates` is consumed only if there are quantiles."""
    if options.strategy != "stratified":
        return options
    rewards: Floats = np.zeros(0)
    if options.high.is_quantile or options.low.is_quantile:
        rewards = np.concatenate([rewards, *candidates])
    return with_thresholds(options, rewards)


def _name_other_prompts(experiences: pl.DataFrame, crowded: pl.DataFrame) -> pl.DataFrame:
    """Set the reason DIFFERENT_PROMPTS on single candidates whose task and step have candidates at other prompts."""
    # Only rows with the reason SINGLE have a mark to join on.
    crowded = crowded.with_columns(other=pl.lit(Reason.DIFFERENT_PROMPTS.value))
    joined = experiences.join(crowded, on="mark", how="left", maintain_order="left")
    return joined.with_columns(reason=pl.coalesce("other", "reason")).drop("other")


def _add_decisions(
    drafts: pl.DataFrame, selection: Selection, places: npt.NDArray[np.int64], strategy: str, options: PairOptions
) -> pl.DataFrame:
    """Add strategy, weight, split and label noise to drafts; `places` are their indices among all kept drafts."""
    noise = None
    if selection.probabilities is not None and options.reliability == "noise":
        noise = np.minimum(1 - selection.probabilities[places], MAX_NOISE)
    nothing = pl.repeat(None, drafts.height, eager=True)
    return drafts.with_columns(
        pl.lit(strategy).alias("strategy"),
        pl.Series("weight", selection.weights[places], pl.Float64),
        selection.splits.gather(places).alias("split"),
        pl.lit(None, pl.Int64).alias("curriculum_stage"),  # a column of earlier versions
        pl.Series("label_noise", nothing if noise is None else noise, pl.Float64),
    )


def _summary(
    selection: Selection, options: PairOptions, scales: dict[str, Scale], votes: Votes | None, slope: float | None
) -> dict[str, Any]:
    """Return the part of funnel.json that precedes the stages: counts, options, reward scales."""
    num_pairs, effect = len(selection.splits), length_effect(selection.differences)
    summary: dict[str, Any] = {
        "pairs": num_pairs,
        "train": int((selection.splits == "train").sum()),
        "validation": int((selection.splits == "validation").sum()),
        # JSON has no number for infinity.
        "length_effect": effect if abs(effect) != float("inf") else str(effect),
        "options": options.as_json(),
        "reward_scale": {name: scale.as_json() for name, scale in scales.items()},
    }
    if selection.probabilities is not None:
        summary["reliability"] = {
            "score": options.score,
            "mode": options.reliability,
            "slope": slope,
            "min_probability": options.min_probability,
            "mean_probability": float(selection.probabilities.mean()) if num_pairs else None,
        }
    if votes is not None:
        summary["votes"] = votes.summary
    return summary
