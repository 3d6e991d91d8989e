"""What can be asked of pair building: one frozen record, checked when it is built. Its defaults are the safe ones."""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pairwright.errors import ConfigError
from pairwright.pairs.gaps import TIE_TOLERANCE
from pairwright.places import Place
from pairwright.store.where import parse_where

STRATEGY_NAMES = ("all", "best-worst", "stratified", "divergence", "teachers", "given")
_IN_RUNS = ("all", "best-worst", "stratified")
_CHOICES = {
    "strategy": STRATEGY_NAMES,
    "weight": ("one", "gap", "chosen"),
    "contradictions": ("drop", "majority", "keep"),
    "balance_by": ("drop", "reweight"),
    "curriculum": ("none", "easy-first", "hard-first"),
    "teacher_choice": ("majority", "best"),
}
_AT_LEAST = {
    "min_candidates": 2, "max_pairs_per_group": 1, "max_pairs_per_task": 1, "max_pairs": 1, "max_per_chosen": 1,
    "min_teachers": 1, "seed": 0, "memory_megabytes": 16, "curriculum_interval": 1,
}  # fmt: skip
_SHARES = ("validation", "near_duplicates", "curriculum_share", "curriculum_start", "curriculum_increment")


@dataclass(frozen=True)
class Threshold:
    """A reward, or a quantile of the rewards: `0.7`, `q0.8`."""

    value: float
    is_quantile: bool = False

    @classmethod
    def parse(cls, text: "str | float | Threshold", name: str) -> "Threshold":
        if isinstance(text, Threshold):
            return text
        match = re.fullmatch(r"(q?)([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)", str(text).strip().lower())
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value) or (match[1] and not 0 <= value <= 1):
            raise ConfigError(f"{name}: got {text!r}, expected a reward such as 0.7 or a quantile such as q0.8")
        return cls(value, bool(match[1]))

    def __str__(self) -> str:
        return f"{'q' if self.is_quantile else ''}{self.value!r}"


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """How pairs are built. None means: no limit."""

    strategy: str = "all"
    min_gap: float = 0.0
    """The least difference of rewards; a tie is never a pair, whatever this is."""
    max_gap: float | None = None
    tie_tolerance: float = TIE_TOLERANCE
    """Rewards tie that differ by no more than this share of the larger one: float noise is no preference."""
    within_run: bool = False
    """Compare only candidates of one run with each other, as NAT does; a group is then a step of one run."""
    min_candidates: int = 2
    max_pairs_per_group: int | None = None
    max_pairs_per_task: int | None = None
    max_pairs: int | None = None
    """Seeded sample of this many pairs."""
    weight: str = "one"
    high: Threshold = Threshold(0.7)
    low: Threshold = Threshold(0.4)
    across_groups: bool = False
    """Stratified only: allow different prompts in a pair; such pairs are marked."""
    max_per_chosen: int = 1
    dedupe: bool = True
    near_duplicates: float | None = None
    """Drop a pair whose text is at least this similar (estimated Jaccard) to one that was kept."""
    contradictions: str = "drop"
    drop_truncated: bool = False
    keep_masked: bool = False
    length_balance: float | None = None
    """Bound on the length effect size (mean over standard deviation of the differences of lengths)."""
    balance_by: str = "drop"
    validation: float = 0.0
    """Share of the groups that goes to the validation split."""
    curriculum: str = "none"
    curriculum_share: float | None = None
    """Keep the first of the tasks in curriculum order, as a share of them."""
    curriculum_start: float | None = None
    """Number the stages of the curriculum, of which the first has this share of the tasks."""
    curriculum_increment: float = 0.2
    """The share of the tasks that each further stage adds."""
    curriculum_interval: int = 5
    """For how many epochs a trainer stays at a stage."""
    tree: bool = False
    """Divergence only: compare sibling branches by the mean reward below them, not runs one by one."""
    environment_divergence: bool = False
    """Divergence only: also pair runs whose first difference the model did not write; such pairs are marked."""
    teachers: tuple[Place, ...] = ()
    min_teachers: int | None = None
    """How many teachers must agree; by default more than half of those that answered."""
    teacher_choice: str = "majority"
    votes: Path | None = None
    where: str | None = None
    """Condition of the experiences that may be paired, over the columns of their tables (store/where.py)."""
    seed: int = 0
    memory_megabytes: int = 1024
    """About how much memory a build takes: more is planned and written piece by piece."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}: got {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise ConfigError(f"{name}: got {value!r}, expected an integer of at least {least}")
        for name in _SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{name}: got {value!r}, expected a share from 0 to 1")
        if not (math.isfinite(self.min_gap) and self.min_gap >= 0):
            raise ConfigError(f"min_gap: got {self.min_gap!r}, expected a finite number of at least 0")
        if self.max_gap is not None and not self.max_gap >= max(self.min_gap, 0):
            raise ConfigError(f"max_gap: got {self.max_gap!r}, expected at least min_gap, {self.min_gap!r}")
        if not 0 <= self.tie_tolerance < 1:
            raise ConfigError(f"tie_tolerance: got {self.tie_tolerance!r}, expected a share from 0 to below 1")
        if self.length_balance is not None and not self.length_balance > 0:
            raise ConfigError(f"length_balance: got {self.length_balance!r}, expected a bound above 0")
        for name in ("curriculum_start", "curriculum_increment"):
            if getattr(self, name) == 0:
                raise ConfigError(f"{name}: got 0, expected a share above 0")
        if self.curriculum == "none" and self.curriculum_start is not None:
            raise ConfigError("curriculum_start: stages need an order: --curriculum easy-first or hard-first")
        if self.across_groups and self.strategy != "stratified":
            raise ConfigError("across_groups: only the strategy 'stratified' can compare different prompts")
        if self.where is not None:
            parse_where(self.where, option="where")
        if self.within_run and (self.strategy not in _IN_RUNS or self.across_groups or self.votes is not None):
            raise ConfigError(
                f"within_run: candidates of one run are compared by the strategies {', '.join(_IN_RUNS)}, without "
                f"across_groups and votes; leave it out with {self.strategy!r} here"
            )
        if self.strategy == "teachers" and not self.teachers:
            raise ConfigError("teachers: name the tables of the teachers' answers with --teachers DIR")

    @property
    def has_curriculum(self) -> bool:
        """Whether tasks are ranked by their mean reward."""
        return self.curriculum != "none" or self.curriculum_share is not None

    def as_json(self) -> dict[str, Any]:
        """What was asked for, for funnel.json; paths by name, since where they lie is no part of the result."""
        shown: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Threshold):
                value = str(value)
            elif isinstance(value, Path):
                value = value.name
            elif isinstance(value, tuple):
                value = [path.name for path in value]
            shown[field.name] = value
        return shown
