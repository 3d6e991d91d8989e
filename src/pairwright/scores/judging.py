"""Judge a table with concurrent requests; a unit of work is one run, or one group that is ranked or compared.

An answer is on disk before its score; a unit with stored scores is not judged again. If a unit fails, its runs stay
unscored, with the cause. After many consecutive failures (judge down, or invalid answers), the remaining units stay
unscored.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pairwright.collection.judge import Judge
from pairwright.collection.policies import Ask, Completion, Policy
from pairwright.collection.run_failures import CollectError
from pairwright.collection.run_policy import make_policy
from pairwright.config.collect_config import JudgeTerms
from pairwright.config.config_file import read_tree
from pairwright.config.model_config import JudgeConfig
from pairwright.config.problems import describe_problems
from pairwright.errors import ConfigError
from pairwright.records.experience import Experience
from pairwright.records.messages import content_hash
from pairwright.scorers.programs import Outcome
from pairwright.scores.judge_answers import AnswerFile, BatchPolicy, NotAnswered, append_comparisons, read_batch
from pairwright.store.score_log import ScoreLog, ScoreRow

_FAILURES_IN_A_ROW = 20
_DOWN = "not asked: the judge failed many times in a row"


def load_rubric(path: Path, judge: JudgeConfig) -> JudgeTerms:
    """Read a rubric from a YAML file with the keys of `JudgeTerms`; `judge` is used if the file has no key `judge`."""
    import pydantic

    tree = read_tree(path)
    own = tree.get("judge")
    if own is None:
        tree["judge"] = judge.model_dump()
    elif isinstance(own, dict):
        own.setdefault("temperature", 0.0)  # a judge should be deterministic; the default temperature is 1
    try:
        terms = JudgeTerms.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(describe_problems(error, JudgeTerms))}") from None
    if not terms.judge.model:
        raise ConfigError(f"{path}: expected judge.model, or set score.judge.model and score.judge.base_url")
    return terms


def terms_hash(terms: JudgeTerms) -> str:
    """Return the version of a judge: a hash of the settings that affect its scores, without address and prices."""
    judge = terms.judge.model_dump(
        mode="json", include={"model", "temperature", "max_tokens", "chat_template_kwargs", "extra_body"}
    )
    return content_hash(terms.model_dump(mode="json", exclude={"judge", "prompt_price", "completion_price"}), judge)


@dataclass(frozen=True)
class JudgeJob:
    """A judge's rubric, its limits, and the origin of its answers.

    batch_out   requests are written to this file instead of being sent
    batch_in    the results of a batch file are read first; nothing is sent
    """

    name: str
    terms: JudgeTerms
    max_requests: int | None = None
    max_concurrency: int = 32
    batch_out: Path | None = None
    batch_in: Path | None = None
    base: Path | None = None

    def open_policy(self) -> Policy:
        if self.batch_out is not None or self.batch_in is not None:
            return BatchPolicy(self.terms.judge.as_policy(), self.batch_out)
        policy = make_policy(self.terms.judge.as_policy(), base=self.base)
        return policy if self.max_requests is None else _LimitedPolicy(policy, self.max_requests)


class _LimitedPolicy:
    """A policy that answers a limited number of requests."""

    def __init__(self, policy: Policy, most: int) -> None:
        self.name, self.close = policy.name, policy.close
        self._policy, self._most, self._num_sent = policy, most, 0

    async def complete(self, ask: Ask) -> list[Completion]:
        if self._num_sent >= self._most:
            raise NotAnswered(f"not asked: the limit of {self._most:,} requests was reached")
        self._num_sent += 1
        return await self._policy.complete(ask)


@dataclass(frozen=True)
class Unit:
    """Runs that are judged together, and the hash of their ids ("" for a single run)."""

    runs: Sequence[Experience]
    group: str = ""


Take = Callable[[Outcome], None]  # called with the outcome of each run


async def judge_table(
    units: Iterator[Unit], log: ScoreLog, job: JudgeJob, take: Take, watch: Callable[[Judge], None]
) -> tuple[Judge, int]:
    """Judge units; stores each outcome and calls `take`. Returns the judge and the number of batched requests."""
    answers = AnswerFile(log.path.with_suffix(".answers.jsonl"))
    if job.batch_in is not None:
        read_batch(job.batch_in, answers)
    policy = job.open_policy()
    judge = Judge(policy, job.terms, answers)
    version = terms_hash(job.terms)
    # A unit asks its questions sequentially, so each running unit has one open request. Units are generated lazily.
    running: set[asyncio.Task[list[ScoreRow]]] = set()
    num_failed_in_a_row = 0

    async def handle(unit: Unit) -> list[ScoreRow]:
        nonlocal num_failed_in_a_row
        if num_failed_in_a_row >= max(_FAILURES_IN_A_ROW, job.max_concurrency):
            _finish(unit, [Outcome(failure=_DOWN)] * len(unit.runs), version, take)
            return []
        try:
            outcomes, comparisons = await judge.judge(unit.runs)
            append_comparisons(log.path.with_suffix(".compared.jsonl"), comparisons)
            num_failed_in_a_row = 0
        except NotAnswered as error:  # no score and no failure of the judge: nothing is stored
            _finish(unit, [Outcome(failure=str(error))] * len(unit.runs), version, take)
            return []
        except CollectError as error:
            num_failed_in_a_row += 1
            outcomes = [Outcome(failure=str(error))] * len(unit.runs)
        return _finish(unit, outcomes, version, take)

    try:
        is_left = True
        while is_left or running:
            while is_left and len(running) < job.max_concurrency:
                unit = next(units, None)
                is_left = unit is not None
                if unit is not None:
                    running.add(asyncio.create_task(handle(unit)))
            if running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                log.append([row for task in done for row in task.result()])
                watch(judge)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await judge.close()
    return judge, policy.num_written if isinstance(policy, BatchPolicy) else 0


def _finish(unit: Unit, outcomes: Sequence[Outcome], version: str, take: Take) -> list[ScoreRow]:
    rows: list[ScoreRow] = []
    for run, outcome in zip(unit.runs, outcomes, strict=True):
        take(outcome)
        rows += outcome.rows(run.eid.uid, version, group=unit.group)
    return rows
