"""The funnel of a build: counts of inputs, outputs and dropped items by reason, for each stage.

Stages are experiences (which become candidates), groups (which give pairs or not) and pairs (which are kept or not);
some strategies have other stages. In each stage inputs equal outputs plus drops, as `Stage.close` asserts. Reasons are
shown to users.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from pairwright.errors import TableError
from pairwright.paths import Place

FILE_NAME = "funnel.json"
NUM_EXAMPLES = 5


class Reason(StrEnum):
    """Why an experience, a group or a pair was dropped."""

    # Reasons of experiences, in the first stage.
    EXCLUDED = "excluded by hand"
    FILTERED = "filtered by --where"
    REPEATED_RECORD = "the same record again"
    IS_A_PAIR = "already a pair (use the strategy imported)"
    IS_NO_PAIR = "not a pair (use another strategy)"
    FAILED = "failed or masked rollout"
    UNSCORED = "unscored: no reward, NaN or infinite"
    NO_PROMPT = "no prompt"
    EMPTY = "empty completion"
    TRUNCATED = "truncated"
    REPEATED_CANDIDATE = "the same completion with the same reward again"
    DIFFERENT_PROMPTS = "no other candidate with an equal prompt"
    SINGLE = "single candidate"
    # Reasons of groups that gave no pair, and of pairs that a strategy left out.
    TIED = "tied rewards"
    BELOW_GAP = "below the minimum gap"
    ABOVE_GAP = "above the maximum gap"
    IDENTICAL = "identical completions"
    NOT_PICKED = "not picked by the strategy"
    GROUP_CAP = "beyond the largest gaps of the group"
    NOT_HIGH = "no candidate above the high threshold"
    NOT_LOW = "no candidate below the low threshold"
    ENVIRONMENT = "first difference not written by the model"
    PREFIX = "one run is the beginning of the other"
    OPPOSITE = "rewards say the opposite of the given order"
    NO_VOTE = "no vote"
    SKIPPED = "skipped by everyone who saw it"
    UNUSABLE_VOTE = "vote on an experience that cannot be used"
    AGREES = "the student agrees with the teachers"
    NO_TEACHER = "no teacher answered at this prompt"
    NO_DECISION = "no message that the model wrote"
    TEACHERS_DISAGREE = "too few teachers agree"
    # Reasons of drafts: within a partition, or among the drafts of all partitions.
    DUPLICATE = "duplicate pair"
    NEAR_DUPLICATE = "near-duplicate pair"
    CONTRADICTION = "contradiction: the opposite was also seen"
    UNRELIABLE = "too unlikely that chosen is better, by the calibrated score"
    CURRICULUM = "beyond the share of the curriculum"
    TASK_CAP = "beyond the maximum of the task"
    LENGTH = "length balance"
    SAMPLED = "not in the sample"


@dataclass
class Drop:
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Stage:
    """One stage of the funnel; `unit` names what is counted. Reasons are in the order in which they were checked."""

    unit: str
    num_in: int
    reasons: dict[Reason, Drop] = field(default_factory=dict)
    num_out: int | None = None

    @property
    def drops(self) -> dict[Reason, Drop]:
        """The reasons with a count above 0."""
        return {reason: drop for reason, drop in self.reasons.items() if drop.count}

    def drop(self, reason: Reason, count: int, examples: Iterable[str] = ()) -> None:
        """Add a count to a reason, which may be 0; the smallest few ids are kept as examples."""
        drop = self.reasons.setdefault(reason, Drop())
        drop.count += count
        # The smallest ids, so that examples do not depend on the order of partitions.
        drop.examples = sorted([*drop.examples, *examples])[:NUM_EXAMPLES]

    def add(self, other: "Stage") -> None:
        """Add the counts of another partition's stage."""
        self.num_in += other.num_in
        for reason, drop in other.reasons.items():
            self.drop(reason, drop.count, drop.examples)
        if other.num_out is not None:
            self.num_out = (self.num_out or 0) + other.num_out

    def sort(self) -> None:
        """Sort the reasons by name, for a stage whose reasons are checked together."""
        self.reasons = dict(sorted(self.reasons.items()))

    def close(self, num_out: int) -> None:
        dropped = sum(drop.count for drop in self.reasons.values())
        assert self.num_in == dropped + num_out, f"{self.unit}: {self.num_in} in, {dropped} dropped, {num_out} out"
        self.num_out = num_out


@dataclass
class Funnel:
    """All stages of a build, in order, and a hint if there are no pairs."""

    stages: list[Stage] = field(default_factory=list)
    hint: str | None = None

    def stage(self, unit: str, num_in: int) -> Stage:
        stage = Stage(unit, num_in)
        self.stages.append(stage)
        return stage

    def add(self, other: "Funnel") -> None:
        """Add the counts of another partition's funnel, which has the same stages in the same order."""
        for number, stage in enumerate(other.stages):
            if number == len(self.stages):
                self.stage(stage.unit, 0)
            self.stages[number].add(stage)

    def as_json(self) -> dict[str, Any]:
        """Return the stages and the hint for funnel.json; reasons without drops are left out."""
        return {
            "stages": [
                {
                    "unit": stage.unit,
                    "in": stage.num_in,
                    "drops": [
                        {"reason": reason.value, "count": drop.count, "examples": drop.examples}
                        for reason, drop in stage.drops.items()
                    ],
                    "out": stage.num_out,
                }
                for stage in self.stages
            ],
            "hint": self.hint,
        }


def read_funnel(folder: Place) -> dict[str, Any]:
    """Read funnel.json of a pairs folder."""
    path = folder / FILE_NAME
    try:
        funnel: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise TableError(
            f"{path}: no such file; make one with: pairwright pairs build EXPERIENCE -o {folder}"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    return funnel


def funnel_rows(funnel: dict[str, Any]) -> Sequence[tuple[str, str, int]]:
    """Return rows (unit, "in" or reason or "out", count) to print; counts of reasons are negative."""
    rows: list[tuple[str, str, int]] = []
    for stage in funnel.get("stages", []):
        rows.append((stage["unit"], "in", stage["in"]))
        # Negative, so that the numbers of a stage add up from `in` to `out`.
        rows += [(stage["unit"], drop["reason"], -drop["count"]) for drop in stage["drops"]]
        rows.append((stage["unit"], "out", stage["out"]))
    return rows
