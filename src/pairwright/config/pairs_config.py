"""`pairs`: which candidates are paired.

The only declaration of these options: `pairs.options.PairOptions` adds the seed, the command line derives its flags.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from pairwright.config.pairs_names import own_names
from pairwright.config.sections import Count, Section, Share
from pairwright.config.user_code import STRATEGIES, check_name
from pairwright.paths import Place, is_address

_UNITS = {"MB": 1, "GB": 1024}  # in megabytes
STRATEGY_NAMES = ("all", "best-worst", "stratified", "divergence", "teachers", "imported")  # as in pairs.STRATEGIES
# Strategies of ours that compare more than the candidates of a group
_BEYOND_GROUPS = ("divergence", "teachers", "imported")


@dataclass(frozen=True)
class Threshold:
    """A reward, or a quantile of the rewards: `0.7`, `q0.8`."""

    value: float
    is_quantile: bool = False
    text: str | float | None = field(default=None, compare=False, repr=False)
    """The value as written in the configuration."""

    @classmethod
    def parse(cls, text: "str | float | Threshold") -> "Threshold":
        if isinstance(text, Threshold):
            return text
        # an optional q for a quantile, then a number: 0.7, q0.8, 1e-3
        match = re.fullmatch(r"(q?)([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)", str(text).strip().lower())
        try:
            value = float(match[2]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value) or (match[1] and not 0 <= value <= 1):
            raise ValueError("expected a reward such as 0.7 or a quantile such as q0.8")
        return cls(value, bool(match[1]), text if isinstance(text, str) else value)

    def __str__(self) -> str:
        return f"{'q' if self.is_quantile else ''}{self.value!r}"


def _megabytes(size: Any) -> Any:
    # text such as "512MB" or "2 GB" becomes a number of megabytes; plain numbers are left to pydantic
    if not isinstance(size, str) or size.strip().isdigit():
        return size
    number, unit = size[:-2].strip(), size[-2:].upper()
    if unit not in _UNITS or not number.isdigit() or not int(number):
        raise ValueError("expected megabytes, or a size such as 512MB or 2GB")
    return int(number) * _UNITS[unit]


def _check_place(path: Any) -> str | Place:
    if not isinstance(path, str | Place):
        raise ValueError("expected a path")
    return path


PlaceText = Annotated[str | Place, PlainValidator(_check_place), WithJsonSchema({"type": "string"})]
# Thresholds are written back as they were read ("q0.8" or 0.7), so that a configuration survives a round trip
RewardThreshold = Annotated[
    Threshold,
    PlainValidator(Threshold.parse),
    PlainSerializer(lambda threshold: str(threshold) if threshold.text is None else threshold.text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
]


# Options that have an effect only with this value of another one
_NEEDS = {
    "high": ("strategy", "stratified"),
    "low": ("strategy", "stratified"),
    "teachers": ("strategy", "teachers"),
    "min_teachers": ("strategy", "teachers"),
    "max_per_chosen": ("across_groups", True),
}
# Options of older versions, with their defaults
_FORMER_KEYS = {
    "min_candidates": 2,
    "balance_by": "drop",
    "curriculum_start": None,
    "curriculum_increment": 0.2,
    "curriculum_interval": 5,
    "tree": False,
    "environment_divergence": False,
    "teacher_choice": "majority",
}
# Values of each preset; options that are set explicitly override them.
PRESETS: dict[str, dict[str, Any]] = {"gym-guide": {"strategy": "best-worst", "min_gap": 0.2}}


class PairsConfig(Section):
    """How pairs are built. null means no limit. docs/reference/pairs.md describes each option."""

    preset: Literal["gym-guide"] | None = None
    """Named set of defaults. gym-guide: as in NeMo Gym's guide, best against worst of one prompt, minimum gap 0.2."""
    # which candidates are paired, and by how much they must differ
    strategy: str = "all"
    """Which candidates of a group are paired: all, best-worst, stratified, divergence, teachers, imported, or your own
    as file.py:FUNCTION (docs/how-to/own-strategy.md)."""
    min_gap: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Smallest difference of rewards; a tie is never a pair."""
    max_gap: float | None = None
    """Largest difference of rewards."""
    tie_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-9
    """Relative tolerance: rewards that differ by at most this share of the larger one are a tie."""
    within_run: bool = False
    """Compare only candidates of the same run, as NAT does; false compares candidates of all runs of a task."""
    within: str | None = None
    """Compare only candidates with the same value of this: model, source (the file), or a field of info."""
    max_pairs_per_group: Count | None = None
    """Most pairs per group; the largest gaps are kept."""
    max_pairs_per_task: Count | None = None
    """Most pairs per task; the largest gaps are kept."""
    max_pairs: Count | None = None
    """Most pairs; more are reduced to a seeded sample."""
    weight: Literal["one", "gap", "chosen"] = "one"
    """Weight of a pair: 1, its gap, or the chosen reward."""
    # options of the strategy `stratified`
    high: RewardThreshold = Threshold(0.7, text=0.7)
    """stratified: lowest reward of a chosen side, as a number or a quantile such as q0.8."""
    low: RewardThreshold = Threshold(0.4, text=0.4)
    """stratified: highest reward of a rejected side, as a number or a quantile."""
    across_groups: bool = False
    """stratified: also compare different prompts; such pairs are marked."""
    max_per_chosen: Count = 1
    """across_groups: number of rejected sides per chosen side."""
    # filters of candidates and pairs
    dedupe: bool = True
    """Keep equal pairs once."""
    near_duplicates: Share | None = None
    """Drop pairs that are at least this similar (0 to 1, estimated Jaccard) to a pair that is kept."""
    contradictions: Literal["drop", "majority", "keep"] = "drop"
    """What to do with contradictions (A over B and B over A)."""
    verbatim: bool = False
    """imported: keep every preference, in the order of the tables, also repeated, contradicting and empty ones."""
    drop_truncated: bool = False
    """Leave out truncated runs."""
    keep_masked: bool = False
    """Keep failed and masked runs."""
    length_balance: Annotated[float, Field(gt=0)] | None = None
    """Drop pairs until the length effect size (mean over standard deviation of length differences) is within this."""
    # split and order
    validation: Share = 0.0
    """Share of the groups for the validation split."""
    curriculum: Literal["none", "easy-first", "hard-first"] = "none"
    """Order of tasks by mean reward."""
    curriculum_share: Share | None = None
    """Keep only this share of the tasks, the first in the curriculum's order."""
    # options of the strategy `teachers`
    teachers: tuple[PlaceText, ...] = ()
    """teachers: tables of the teachers' answers."""
    min_teachers: Count | None = None
    """teachers: how many must agree; by default more than half."""
    # input and memory
    score: str | None = None
    """The stored score that counts as the reward: a scorer, or SCORER.CRITERION (`pairwright score`)."""
    reliability: Literal["off", "weight", "noise"] = "off"
    """What a calibrated score does to a pair: weight multiplies its weight by 2p - 1, where p is the probability that
    chosen is better; noise stores 1 - p, the label smoothing of this pair in the losses sigmoid (cDPO) and robust."""
    min_probability: Annotated[float, Field(ge=0.5, lt=1)] = 0.5
    """Drop pairs whose chosen side is better with a probability below this, by a calibrated score."""
    votes: str | SkipJsonSchema[Path] | None = None
    """A CSV file of votes instead of rewards."""
    where: str | None = None
    """Condition of the experiences that may be paired, such as 'reward > 0 AND run < 9'."""
    memory_megabytes: Annotated[int, BeforeValidator(_megabytes), Field(ge=16)] = 1024
    """Approximate memory of a build, in megabytes or as 512MB or 2GB."""

    @model_validator(mode="before")
    @classmethod
    def _own_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # An unknown preset is reported by the check of its field.
        preset = data.get("preset")
        return (PRESETS.get(preset, {}) if isinstance(preset, str) else {}) | own_names(data)

    @field_validator("strategy")
    @classmethod
    def _strategy_exists(cls, name: str) -> str:
        return check_name(name, STRATEGY_NAMES, STRATEGIES)

    @field_validator("votes")
    @classmethod
    def _votes_are_local(cls, value: str | Path | None) -> str | Path | None:
        if value is not None and is_address(value):
            raise ValueError("an address, but votes are read on this machine only: copy the file here")
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> "PairsConfig":
        """Check several fields together. A message begins with the name of its field."""
        # `not >=` and not `<`: it also refuses NaN
        if self.max_gap is not None and not self.max_gap >= self.min_gap:
            raise ValueError(f"max_gap: got {self.max_gap!r}, expected at least min_gap, {self.min_gap!r}")
        if self.across_groups and self.strategy != "stratified":
            raise ValueError("across_groups: only the strategy 'stratified' can compare different prompts")
        if self.score is not None and (self.strategy == "imported" or self.votes is not None):
            other = "votes" if self.votes is not None else "the strategy 'imported', whose pairs have their order"
            raise ValueError(f"score: leave it out beside {other}")
        if self.score is None and (self.reliability != "off" or self.min_probability > 0.5):
            key = "reliability" if self.reliability != "off" else "min_probability"
            raise ValueError(f"{key}: needs a calibrated score: --score NAME")
        if self.verbatim and (self.strategy != "imported" or self.votes is not None):
            raise ValueError("verbatim: only preferences that were imported can be passed through: strategy 'imported'")
        narrower = "within_run" if self.within_run else "within" if self.within is not None else None
        if narrower and (self.strategy in _BEYOND_GROUPS or self.across_groups or self.votes is not None):
            raise ValueError(
                f"{narrower}: smaller groups are compared by the strategies all, best-worst, stratified and your own, "
                f"without across_groups and votes; leave it out with {self.strategy!r} here"
            )
        return self

    def list_unused(self) -> list[str]:
        """One line for each option that is set but has no effect with the other options.

        >>> PairsConfig(strategy="best-worst", high=0.9).list_unused()
        ["high has no effect: only the strategy 'stratified' reads it"]
        """
        lines = []
        for key, (other, value) in _NEEDS.items():
            if getattr(self, key) != type(self).model_fields[key].default and getattr(self, other) != value:
                reason = f": only the strategy {value!r} reads it" if other == "strategy" else f" without {other}"
                lines.append(f"{key} has no effect{reason}")
        return lines

    @property
    def has_curriculum(self) -> bool:
        """Whether tasks are sorted by their mean reward."""
        return self.curriculum != "none" or self.curriculum_share is not None

    def content(self) -> dict[str, Any]:
        """The options as part of a stage's cache key. Runs of older versions must resume: `imported` keeps its old
        name, and newer options are included only if they are set."""
        new = {name for name in ("verbatim", "within", "score") if not getattr(self, name)}
        if self.score is None:
            new |= {"reliability", "min_probability"}
        options = self.model_dump(mode="json", exclude={"preset", *new})
        options |= _FORMER_KEYS
        return {**options, "strategy": "given"} if self.strategy == "imported" else options
