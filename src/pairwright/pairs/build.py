"""Build pairs from experience tables: plan on narrow columns, fetch each text once, write the files.

    DIR/pairs.parquet      the pairs (pairs/pair_table.py)
    DIR/funnel.json        counts of inputs, outputs and dropped items by reason (pairs/funnel.py)
    DIR/lineage.json       the experience tables that the pairs were built from (pairs/outcomes.py)
    DIR/outcomes.parquet   number of pairs of each experience, or the reason why it is in none (pairs/outcomes.py)

    rows ─► buckets ─► plan of each (pairs/partition.py) ─► selection among all ─► texts, in slices ─► files

Output is deterministic: the same tables and options give the same bytes, regardless of the order in which experiences
were appended and of the number of buckets and slices.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.engines import Engine
from pairwright.errors import PairwrightError
from pairwright.pairs.buckets import Buckets, is_parted, num_buckets
from pairwright.pairs.candidates.candidates import Floats, Scale, add_scales, count_reasons
from pairwright.pairs.crossing import check_within, count_crossings
from pairwright.pairs.curriculum import shares
from pairwright.pairs.decisions.exclusions import check_exclusions
from pairwright.pairs.fetch_texts import PairTexts, num_slices
from pairwright.pairs.funnel import FILE_NAME, Funnel, Reason
from pairwright.pairs.length_balance import length_effect
from pairwright.pairs.lineage import LINEAGE_FILE, table_references
from pairwright.pairs.memory_pool import plain_memory
from pairwright.pairs.options import PairOptions
from pairwright.pairs.outcomes import OutcomesWriter, outcomes
from pairwright.pairs.pair_table import write_pairs
from pairwright.pairs.partition import PartitionPlan, candidate_rewards, plan_partition
from pairwright.pairs.partition_state import Clues, grouping_hint, hint_for, pair_examples
from pairwright.pairs.selection import REASONS, Selection, narrow_columns, select_drafts
from pairwright.pairs.spill import Spill
from pairwright.pairs.strategies.strategies import compares_groups, with_thresholds
from pairwright.pairs.strategies.votes import Votes, read_votes, with_ratings
from pairwright.pairs.workers import PIECE_MEGABYTES, BucketPlan, Progress, SpreadRows, spread_rows
from pairwright.paths import Place, build_folder, claim_folder, write_json
from pairwright.store.score_log import read_score_log, read_slope
from pairwright.store.table import Table

MAX_NOISE = 0.45  # of a pair: robust divides by 1 - 2ε, which must stay away from 0

# Planning: plan and spill each partition, then select among the drafts of all partitions.


@dataclass(frozen=True)
class Plan:
    """Spilled drafts and experiences of all partitions, and which drafts are kept.

    tables    the experience tables, followed by the tables of teachers
    sizes     number of drafts in each partition
    crowded   marks of the tasks and steps that have candidates at more than one prompt
    votes     votes or ratings of people that replaced the rewards
    slope     of a calibrated score
    """

    tables: tuple[Table, ...]
    options: PairOptions
    strategy: str
    drafts: Spill[pl.DataFrame]
    experiences: Spill[pl.DataFrame]
    sizes: list[int]
    funnel: Funnel
    scales: dict[str, Scale]
    clues: Clues
    crowded: pl.DataFrame
    selection: Selection
    votes: Votes | None = None
    slope: float | None = None

    def partitions(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield drafts and experiences of each partition and delete their files; can be iterated only once."""
        for number in range(len(self.sizes)):
            # `take` also deletes the file, so that disk use falls while pairs are written.
            drafts, experiences = self.drafts.take(number), self.experiences.take(number)
            assert drafts is not None, "every partition was put aside"
            assert experiences is not None, "every partition was put aside"
            yield drafts, experiences


@dataclass
class _Gathered:
    """Accumulated results of the partitions planned so far."""

    drafts: Spill[pl.DataFrame]
    experiences: Spill[pl.DataFrame]
    sizes: list[int] = field(default_factory=list)
    funnel: Funnel = field(default_factory=Funnel)
    scales: dict[str, Scale] = field(default_factory=dict)
    clues: Clues = field(default_factory=Clues)
    # The narrow columns of all drafts stay in memory; whole drafts are spilled.
    narrow: list[pl.DataFrame] = field(default_factory=list)
    steps: list[pl.DataFrame] = field(default_factory=list)
    tasks: list[pl.DataFrame] = field(default_factory=list)

    def add(self, plan: PartitionPlan, options: PairOptions) -> None:
        number = len(self.sizes)
        self.drafts.add(number, plan.drafts)
        self.experiences.add(number, plan.experiences)
        self._count(plan, narrow_columns(plan.drafts, options), plan.drafts.height)

    def adopt(self, bucket: BucketPlan) -> None:
        """Add a partition that a worker has planned and spilled to files."""
        number = len(self.sizes)
        self.drafts.adopt(number, bucket.drafts)
        self.experiences.adopt(number, bucket.experiences)
        self._count(bucket.plan, bucket.narrow, bucket.num_drafts)

    def _count(self, plan: PartitionPlan, narrow: pl.DataFrame, num_drafts: int) -> None:
        self.sizes.append(num_drafts)
        self.funnel.add(plan.funnel)
        self.scales = add_scales(self.scales, plan.scales)
        self.clues = self.clues.merged(plan.clues)
        self.narrow.append(narrow)
        self.steps.append(plan.steps)
        self.tasks.append(plan.tasks)


def plan_pairs(
    tables: Sequence[Table],
    options: PairOptions,
    folder: Place | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> Plan:
    """Decide which pairs to build.

    Args:
        tables: Experience tables.
        options: Options of the build.
        folder: Folder for spill files; None keeps everything in memory.
        engine: Its workers plan the partitions, if there is a folder and the strategy allows partitions.
        progress: Called with the number of tasks done and in total.
    """
    if options.score is not None:
        tables = _with_score(tables, options.score)
    everything = (*tables, *(Table(path, create=False) for path in options.teachers))
    check_exclusions(everything)
    if options.within is not None:
        check_within(tables, options.within)
    votes: Votes | None = None
    # Workers hand rows over in files, so they need a folder; empty tables would leave no bucket to plan.
    if engine is not None and folder is not None and is_parted(options) and any(table.count() for table in tables):
        spread = SpreadRows(tables, options, folder, engine, progress)
        options_with_thresholds = _resolve_thresholds(spread.rewards(options), options)
        gathered = _Gathered(Spill(folder, "plans", kind=pl.DataFrame), Spill(folder, "experiences", kind=pl.DataFrame))
        for planned in spread.plans(options_with_thresholds):
            gathered.adopt(planned)
    else:
        gathered, options_with_thresholds, votes = _plan_in_process(tables, everything, options, folder)
    steps = pl.concat(gathered.steps)
    slope = None
    if options.reliability != "off" or options.min_probability > 0.5:
        slope = _calibrated_slope(tables, str(options.score))
    selection = select_drafts(
        pl.concat(gathered.narrow), pl.concat(gathered.tasks), options_with_thresholds, everything, slope
    )
    return Plan(
        tables=everything,
        options=options,
        # Ratings replace the rewards, and any strategy goes on from there; votes on pairs replace the strategy.
        strategy=options.strategy if votes is None or votes.ratings is not None else "votes",
        drafts=gathered.drafts,
        experiences=gathered.experiences,
        sizes=gathered.sizes,
        funnel=gathered.funnel,
        scales=gathered.scales,
        clues=gathered.clues,
        selection=selection,
        # `steps` has one mark for each group: a mark that occurs twice has groups at different prompts.
        crowded=steps.filter(steps["mark"].is_duplicated()).unique(),
        votes=votes,
        slope=slope,
    )


def _calibrated_slope(tables: Sequence[Table], name: str) -> float:
    """Return the slope of a score; of several tables the mean by the number of pairs that each is from."""
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


def _plan_in_process(
    tables: Sequence[Table], everything: Sequence[Table], options: PairOptions, folder: Place | None
) -> tuple[_Gathered, PairOptions, Votes | None]:
    """Plan all partitions in this process; returns the plans, the options with thresholds as rewards, and the votes."""
    number = 1 if folder is None else num_buckets(tables, options)
    buckets = Buckets(tables, options, number, folder)
    rows: Iterable[pl.DataFrame] = buckets
    votes: Votes | None = None
    if options.votes is not None:
        # With votes, rows are never split (`is_parted`), so there is exactly one piece.
        (only,) = rows
        votes = read_votes(Path(options.votes), only)
        if votes.ratings is not None:
            rows = [with_ratings(only, votes.ratings)]
    # A pass of its own where quantiles need all rewards; `Buckets` can be iterated again for the plans.
    resolved = _resolve_thresholds((candidate_rewards(some, options) for some in rows), options)
    aside = None if buckets.fits else folder
    gathered = _Gathered(Spill(aside, "plans", kind=pl.DataFrame), Spill(aside, "experiences", kind=pl.DataFrame))
    on_pairs = votes if votes is not None and votes.ratings is None else None
    for some in rows:
        gathered.add(plan_partition(some, resolved, tables=everything, votes=on_pairs), resolved)
    return gathered, resolved, votes


def _resolve_thresholds(candidates: Iterable[Floats], options: PairOptions) -> PairOptions:
    """Replace quantile thresholds in the options by rewards; `candidates` is consumed only if there are quantiles."""
    if options.strategy != "stratified":
        return options
    rewards: Floats = np.zeros(0)
    if options.high.is_quantile or options.low.is_quantile:
        rewards = np.concatenate([rewards, *candidates])
    return with_thresholds(options, rewards)


# Building: texts of the drafts that were selected, and the files.


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
    with claim_folder(output, "pairs.parquet", work="pairs"):
        return _build_pairs(tables, output, options or PairOptions(), engine, progress)


def _build_pairs(
    tables: Sequence[Table], output: Place, options: PairOptions, engine: Engine | None, progress: Progress
) -> dict[str, Any]:
    with plain_memory(), build_folder(output, shared=engine is not None) as folder:
        plan = plan_pairs(tables, options, folder, engine=engine, progress=progress)
        # Reason 0 stands for a draft that is kept.
        num_kept = int((plan.selection.reasons == 0).sum())
        memory = options.memory_megabytes if engine is None else min(PIECE_MEGABYTES, options.memory_megabytes)
        # A pair needs the texts of two rows at most: its chosen and its rejected one.
        slices = num_slices(plan.tables, 2 * num_kept, memory_megabytes=memory)
        texts, funnel = PairTexts(num_kept, slices, folder), _open_funnel(plan)
        with OutcomesWriter(output) as writer:
            _add_drafts(plan, texts, funnel, writer)
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
    compares_prompts = options.across_groups or not compares_groups(options.strategy)
    crossing = count_crossings(output, plan.tables, compares_prompts=compares_prompts)
    summary = {**_summary(plan, num_pairs), **({"crossing": crossing} if crossing else {}), **funnel.as_json()}
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


def _add_drafts(plan: Plan, texts: PairTexts, funnel: Funnel, writer: OutcomesWriter) -> None:
    """Add the kept drafts of each partition to `texts`, count dropped ones in `funnel`, and write the outcomes."""
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
        writer.write(outcomes(experiences, remaining, dropped))
        first, place = first + size, place + remaining.height


def _with_others(experiences: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Set the reason DIFFERENT_PROMPTS on single candidates whose task and step have candidates at other prompts."""
    if plan.strategy == "votes" or not compares_groups(plan.strategy) or not plan.crowded.height:
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
        pl.lit(None, pl.Float64).alias("label_noise")
        if selection.probabilities is None or plan.options.reliability != "noise"
        else pl.Series("label_noise", np.minimum(1 - selection.probabilities[places], MAX_NOISE)),
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
    if selection.probabilities is not None:
        summary["reliability"] = {
            "score": options.score,
            "mode": options.reliability,
            "slope": plan.slope,
            "min_probability": options.min_probability,
            "mean_probability": float(selection.probabilities.mean()) if num_pairs else None,
        }
    if plan.votes is not None:
        summary["votes"] = plan.votes.summary
    if selection.stages is not None:
        counts = np.bincount(selection.stages, minlength=len(shares(options))).tolist()
        summary["curriculum"] = [
            {"stage": stage, "from_epoch": stage * options.curriculum_interval, "share": float(share), "pairs": num}
            for stage, (share, num) in enumerate(zip(shares(options), counts, strict=True))
        ]
    return summary
