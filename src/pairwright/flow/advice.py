"""`pairwright advise`: recommends a recipe for an experience table, by rules that cite their evidence.

`measure` reads figures from the table, `advise` turns them into advice. A rule whose condition does not hold gives no
advice; the first advice with a snippet that needs no check by a person is recommended. The evidence is from small
models on a CPU (docs/explanation/evidence.md); `pairwright compare` measures your own data.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl

from pairwright.config import Config
from pairwright.config.plain_yaml import merge_trees
from pairwright.config.sections import CREDIT_KINDS, CreditConfig
from pairwright.pairs.turn_credit import count_credit
from pairwright.records.messages import ERROR_KINDS, Json
from pairwright.store.table import Table

SOLVED = 1.0  # reward of a solved run, if no reward is higher
MAX_CHOSEN = 1000  # maximum number of best runs whose turns are counted
GROUP = ("tid", "step", "prompt_hash")  # key of comparable runs


@dataclass(frozen=True)
class Figures:
    """Input of the rules. Numbers of solved runs are None if a reward exceeds 1 and `measure` got no `solved`."""

    runs: int
    scored: int
    tasks: int
    groups: int
    groups_with_spread: int
    pairs: int
    """Pairs of runs of one group with different rewards: strategy `all`, before its filters."""
    solved_from: float | None
    solved_runs: int | None
    tasks_with_solved: int | None
    spread_within: float
    """Mean of the standard deviations of the rewards of a group."""
    spread_between: float
    """Standard deviation of the mean rewards of tasks."""
    chosen_turns: int
    """Generated turns of the best run of each group with spread, of at most 1,000 groups."""
    chosen_failed: int
    """Turns of `chosen_turns` that failed, by votes and error sites of any kind."""
    failed_by_kind: dict[str, int] = field(default_factory=dict)

    @property
    def share_solved_tasks(self) -> float | None:
        return None if self.tasks_with_solved is None or not self.tasks else self.tasks_with_solved / self.tasks

    @property
    def share_failed_turns(self) -> float:
        return self.chosen_failed / self.chosen_turns if self.chosen_turns else 0.0


def measure(table: Table, *, solved: float | None = None) -> Figures:
    """Read the figures of a table; `solved` is the reward of a solved run, by default 1 if no reward is higher."""
    frame = table.lazy().select("uid", "reward", *GROUP)
    runs = int(frame.select(pl.len()).collect().item())
    scored = frame.filter(pl.col("reward").is_not_null() & pl.col("reward").is_finite()).collect()
    groups = scored.group_by(GROUP).agg(
        num=pl.len(),
        spread=pl.col("reward").std(ddof=0),
        mean=pl.col("reward").mean(),
        # pairs of different rewards = all pairs of runs minus pairs of equal rewards
        ties=(pl.col("reward").value_counts().struct.field("count").cast(pl.Int64) ** 2).sum(),
        best=pl.col("uid").sort_by("reward", "uid", descending=[True, False]).first(),
    )
    spread = groups.filter(pl.col("spread") > 0)
    means = scored.group_by("tid").agg(pl.col("reward").mean())["reward"]
    highest = scored["reward"].max()
    if solved is None and isinstance(highest, int | float) and highest <= SOLVED:
        solved = SOLVED
    reached = None if solved is None else scored.filter(pl.col("reward") >= solved)
    chosen = spread.sort(GROUP)["best"].head(MAX_CHOSEN).to_list()
    options = CreditConfig(sources=("votes", "errors"), kinds=tuple(sorted(ERROR_KINDS)))
    credit = count_credit(table, options, pl.col("uid").is_in(chosen))
    return Figures(
        runs=runs,
        scored=len(scored),
        tasks=scored["tid"].n_unique(),
        groups=len(groups),
        groups_with_spread=len(spread),
        pairs=int((groups["num"].cast(pl.Int64) ** 2 - groups["ties"]).sum()) // 2,
        solved_from=solved,
        solved_runs=None if reached is None else len(reached),
        tasks_with_solved=None if reached is None else reached["tid"].n_unique(),
        spread_within=_number(groups["spread"].mean()),
        spread_between=_number(means.std(ddof=0)),
        chosen_turns=credit["turns"],
        chosen_failed=credit["failed"],
        failed_by_kind={source.removeprefix("errors: "): num for source, num in credit["failed_by"].items()},
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True)
class Advice:
    """Advice of one rule. Advice without a `snippet` of a configuration is about the data. `needs_look`: a person must
    check the data before using the snippet."""

    rule: str
    advice: str
    evidence: str
    snippet: Json | None = None
    needs_look: bool = False


_SFT = {"channels": {"dpo": 0.0, "sft": 1.0}}
FEW_SOLVED = 5  # fewer solved runs are too few to train on alone
MUCH_FAILED = 0.1  # share of failed turns in chosen sides

CREDIT_EVIDENCE = (
    "stockroom, five seeds: 100% of held-out orders with failed turns masked, 89% by SFT on solved runs, 31% by SFT on "
    "the same best runs; late verdicts, a fifth of them wrong: masking 90%, SFT on solved runs 63%; at "
    "temperature 1 54% and 61%"
)
SOLVED_EVIDENCE = (
    "stockroom, five seeds: SFT on 7 to 14 solved runs of 960 solves 89% of held-out orders, and 86% at temperature 1, "
    "where pairs stay below 40%; exact tool calls of SmolLM2: SFT on exact calls 91%, pairs with the SFT term 86%"
)
PAIRS_EVIDENCE = (
    "stockroom, five seeds: all pairs with the SFT term solve 74% of held-out orders (24% at temperature 1), SFT on "
    "the best runs 31%; SmolLM2: DPO without the SFT term fell from 58% to 41%"
)
TASKS_EVIDENCE = "a comparison of runs of different tasks says which task is easier"


def advise(figures: Figures) -> list[Advice]:
    return list(_advise(figures))


def _advise(figures: Figures) -> Iterator[Advice]:
    has_spread = bool(figures.groups_with_spread)
    if not figures.scored:
        yield Advice(
            "no rewards",
            f"none of {figures.runs:,} runs has a reward: score them (pairwright score), or import votes",
            "every recipe needs to know which runs are better",
        )
    if figures.scored and figures.solved_runs == 0:
        yield Advice(
            "0 solved runs",
            "no run is solved: change the prompt, the tools or the temperature before the weights",
            "two examples of each tool in the prompt and temperature 0.6 took SmolLM2 from no exact tool call to 31% "
            "before any training",
        )
    if figures.scored and not has_spread:
        yield Advice(
            "no spread",
            "no two runs of one prompt have different rewards, so that there are no pairs: collect several runs of "
            "each task (collect.num_runs), sample at a higher temperature, or give partial credit",
            TASKS_EVIDENCE,
        )
    if figures.share_failed_turns >= MUCH_FAILED:
        yield _mask_failed_turns(figures)
    if figures.solved_runs is not None and figures.solved_runs >= FEW_SOLVED:
        share = figures.share_solved_tasks or 0.0
        yield Advice(
            "solved runs",
            f"{figures.solved_runs:,} runs are solved, in {share:.0%} of the tasks: SFT on them is the recipe to beat",
            SOLVED_EVIDENCE,
            {"train": {**_SFT, "where": f"reward >= {figures.solved_from:g}"}},
        )
    if has_spread:
        yield Advice(
            "pairs",
            f"{figures.pairs:,} pairs in {figures.groups_with_spread:,} groups: train on them with the SFT term, which "
            "holds the chosen side while the rejected one is pushed away; then check how the model reports failures",
            PAIRS_EVIDENCE,
            {
                "pairs": {"strategy": "all"},
                "train": {"dpo": {"contrast": "all", "sft_loss_weight": 1.0, "sft_average_log_probs": True}},
            },
        )
    if has_spread and figures.spread_between > 2 * figures.spread_within:
        yield Advice(
            "tasks differ more than runs",
            f"rewards differ by {figures.spread_between:.2g} between tasks and {figures.spread_within:.2g} in a group: "
            "compare runs of one task only (no pairs.across_groups)",
            TASKS_EVIDENCE,
        )


def _mask_failed_turns(figures: Figures) -> Advice:
    kinds = sorted(figures.failed_by_kind, key=lambda kind: -figures.failed_by_kind[kind])
    counts = ", ".join(f"{kind} {figures.failed_by_kind[kind]:,}" for kind in kinds)
    # kinds that do not mark a turn as failed by default, since they often follow a correct step
    more = [kind for kind in kinds if kind not in CREDIT_KINDS and kind in ERROR_KINDS]
    credit = {"credit": {"kinds": [*CREDIT_KINDS, *more]}} if more else {}
    look = f"; look at some of kind {', '.join(more)} first: they often follow the right step" if more else ""
    return Advice(
        "failed turns in chosen sides",
        f"{figures.share_failed_turns:.0%} of the turns you are about to imitate failed ({counts}): train only the "
        f"other turns, if these failures are wrong decisions{look}",
        CREDIT_EVIDENCE,
        {
            "pairs": {"strategy": "best-worst"},
            "train": _SFT,
            "tokens": {"train_turns": "accepted", **credit},
        },
        needs_look=bool(more),
    )


def recommended(advice: list[Advice]) -> Advice | None:
    """Return the first advice with a snippet that needs no check by a person."""
    return next((item for item in advice if item.snippet is not None and not item.needs_look), None)


def is_followed(advice: Advice, config: Config) -> bool:
    """Whether a configuration has every value of the advice's snippet; advice without a snippet is never followed."""
    if advice.snippet is None:
        return False
    values = config.model_dump(mode="json")
    return merge_trees(values, advice.snippet) == values


def figures_json(figures: Figures) -> Json:
    shares = {"share_solved_tasks": figures.share_solved_tasks, "share_failed_turns": figures.share_failed_turns}
    return {**msgspec.to_builtins(figures), **shares}
