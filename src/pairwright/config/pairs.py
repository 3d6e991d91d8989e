"""`pairs`: which candidates are paired, in our names or those of NAT's trajectory builder and NeMo Gym's script."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pairwright.config.pair_names import own_names
from pairwright.config.section import Section

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Threshold = str | float


class PairsConfig(Section):
    """How pairs are built. null means: no limit. docs/pairs.md says what each does."""

    strategy: Literal["all", "best-worst", "stratified", "divergence", "teachers", "given"] = "all"
    """Which candidates of a group are paired."""
    min_gap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Least difference of rewards; a tie is never a pair."""
    max_gap: float | None = None
    """Largest difference of rewards."""
    tie_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-9
    """Rewards tie that differ by no more than this share of the larger one."""
    within_run: bool = False
    """Compare only candidates of one run, as NAT does; false compares those of all runs of a task."""
    min_candidates: Annotated[int, Field(ge=2)] = 2
    """Least number of candidates in a group."""
    max_pairs_per_group: Count | None = None
    """Largest gaps to keep of a group."""
    max_pairs_per_task: Count | None = None
    """Largest gaps to keep of a task."""
    max_pairs: Count | None = None
    """Seeded sample of this many."""
    weight: Literal["one", "gap", "chosen"] = "one"
    """Weight of a pair: 1, its gap, or the chosen reward."""
    high: Threshold = 0.7
    """stratified: chosen at least this, a reward or a quantile such as q0.8."""
    low: Threshold = 0.4
    """stratified: rejected at most this."""
    across_groups: bool = False
    """stratified: allow different prompts; marked."""
    max_per_chosen: Count = 1
    """Across groups: rejected ones for each chosen one."""
    dedupe: bool = True
    """Keep equal pairs once."""
    near_duplicates: Share | None = None
    """Drop pairs at least this similar."""
    contradictions: Literal["drop", "majority", "keep"] = "drop"
    """A over B and B over A."""
    drop_truncated: bool = False
    """Leave truncated runs out."""
    keep_masked: bool = False
    """Keep failed and masked runs."""
    length_balance: Annotated[float, Field(gt=0)] | None = None
    """Bound on the length effect size."""
    balance_by: Literal["drop", "reweight"] = "drop"
    """How lengths are balanced."""
    validation: Share = 0.0
    """Share of groups for the validation split."""
    curriculum: Literal["none", "easy-first", "hard-first"] = "none"
    """Order of tasks by mean reward."""
    curriculum_share: Share | None = None
    """Keep the first share of tasks."""
    curriculum_start: Share | None = None
    """Number the stages of the curriculum; the first has this share of the tasks."""
    curriculum_increment: Share = 0.2
    """Share of the tasks that each further stage adds."""
    curriculum_interval: Count = 5
    """Epochs for which a trainer stays at a stage."""
    tree: bool = False
    """divergence: compare branches by their mean reward."""
    environment_divergence: bool = False
    """divergence: also where a user or tool differed; marked."""
    teachers: tuple[str, ...] = ()
    """teachers: tables of the teachers' answers."""
    min_teachers: Count | None = None
    """teachers: how many must agree; null is more than half."""
    teacher_choice: Literal["majority", "best"] = "majority"
    """teachers: the answer of most, or the best-scored."""
    votes: str | None = None
    """A CSV file of votes instead of rewards."""
    where: str | None = None
    """SQL condition of the experiences that may be paired, such as "reward IS NOT NULL AND task != 'x'"."""
    memory_megabytes: Annotated[int, Field(ge=16)] = 1024
    """About how much memory a build takes."""

    @model_validator(mode="before")
    @classmethod
    def _own_names(cls, data: Any) -> Any:
        return own_names(data) if isinstance(data, dict) else data
