"""A model as judge: asks the questions of `scorers/judge_questions.py` through a policy, and checks the answers.

A question with an invalid answer is asked again with another seed, and fails after the last try: no score is guessed.
Equal candidates are judged once and get equal scores.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pairwright.collection.policies import Ask, Completion, Policy
from pairwright.collection.run_failures import ScorerError
from pairwright.config.collect_config import JudgeTerms
from pairwright.records.experience import Experience
from pairwright.records.messages import Message, canonical_messages, content_hash
from pairwright.scorers.judge_questions import MAX_ANSWER, Question, compare_question, grade_question, rank_question
from pairwright.scorers.programs import Outcome, with_overall
from pairwright.store.score_log import OVERALL

TRIES = 3
RETRY_TEMPERATURE = 0.7


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer of a judge, under the hash of its request."""

    key: str
    text: str
    prompt_tokens: int = 0
    tokens: int = 0


class Answers(Protocol):
    """A store of answers, so that no request is sent twice."""

    def get(self, key: str) -> Answer | None: ...

    def put(self, answer: Answer) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """Verdicts of the judge on two runs, with `a` shown first and with `b` shown first: "a", "b" or "tie"."""

    a: str
    b: str
    first: str
    second: str
    cost: float = 0.0

    @property
    def winner(self) -> str | None:
        """The better run; None for a tie, or if the two orders disagree."""
        return {"a": self.a, "b": self.b}.get(self.first) if self.first == self.second else None


class Judge:
    """Judges runs through a separate policy. `num_requests` counts sent requests, `num_cut` shortened results."""

    def __init__(self, policy: Policy, terms: JudgeTerms, answers: Answers | None = None) -> None:
        self._policy, self._terms = policy, terms
        self._answers = answers  # None in a collection, which has its own log
        self._pending: dict[str, asyncio.Future[Answer]] = {}  # requests in flight, by key
        self.num_requests = self.num_cut = self.num_invalid = 0
        self.spent = 0.0

    async def judge(self, runs: Sequence[Experience]) -> tuple[list[Outcome], list[Comparison]]:
        """Judge runs of one prompt by the mode of the terms; equal answers are judged once and get equal scores."""
        keys = [content_hash(canonical_messages(run.completion), run.response_text) for run in runs]
        by_key: dict[str, Experience] = {}
        for key, run in zip(keys, runs, strict=True):
            by_key.setdefault(key, run)
        distinct = list(by_key.values())
        comparisons: list[Comparison] = []
        if self._terms.mode == "absolute":
            outcomes = [await self._grade(run) for run in distinct]
        elif self._terms.mode == "relative":
            outcomes = await self._rank(distinct)
        else:
            outcomes, comparisons = await self._compare(distinct)
        found = dict(zip(by_key, outcomes, strict=True))
        return [found[key] for key in keys], comparisons

    async def close(self) -> None:
        await self._policy.close()

    async def _grade(self, run: Experience) -> Outcome:
        """Grade one run by itself; several votes are averaged."""
        verdicts = [await self.ask(grade_question(self._terms, run, vote)) for vote in range(self._terms.votes)]
        sums: dict[str, float] = {}
        for (scores, _), _ in verdicts:
            for name, score in scores.items():
                sums[name] = sums.get(name, 0.0) + score / len(verdicts)
        (_, rationale), _ = verdicts[0]
        return Outcome(with_overall(sums), {OVERALL: rationale}, cost=sum(cost for _, cost in verdicts))

    async def _rank(self, runs: Sequence[Experience]) -> list[Outcome]:
        """Rank runs of one prompt together; a single run has no counterpart and stays unscored."""
        if len(runs) < 2:
            return [Outcome() for _ in runs]
        verdicts = [await self.ask(rank_question(self._terms, runs, vote)) for vote in range(self._terms.votes)]
        cost = sum(cost for _, cost in verdicts) / len(runs)
        means = [sum(scores) / len(verdicts) for scores in zip(*(ranking for ranking, _ in verdicts), strict=True)]
        return [Outcome({OVERALL: mean}, cost=cost) for mean in means]

    async def _compare(self, runs: Sequence[Experience]) -> tuple[list[Outcome], list[Comparison]]:
        """Compare every two runs of one prompt in both orders; a score is the share of comparisons won."""
        if len(runs) < 2:
            return [Outcome() for _ in runs], []
        comparisons = []
        for a, b in itertools.combinations(runs, 2):
            verdicts = [await self.ask(compare_question(self._terms, *sides)) for sides in ((a, b), (b, a))]
            first = {"first": "a", "second": "b", "tie": "tie"}[verdicts[0][0]]
            second = {"first": "b", "second": "a", "tie": "tie"}[verdicts[1][0]]
            cost = sum(cost for _, cost in verdicts)
            comparisons.append(Comparison(a.eid.uid, b.eid.uid, first, second, cost))
        points = {run.eid.uid: 0.0 for run in runs}
        for comparison in comparisons:
            for uid in (comparison.a, comparison.b):
                won = 0.5 if comparison.winner is None else float(comparison.winner == uid)
                points[uid] += won / (len(runs) - 1)
        cost = sum(comparison.cost for comparison in comparisons) / len(runs)
        return [Outcome({OVERALL: points[run.eid.uid]}, cost=cost) for run in runs], comparisons

    async def ask(self, question: Question) -> tuple[Any, float]:
        """Ask until an answer is valid, and return it with its cost; raises ScorerError after the last try."""
        config, answer, cost = self._terms.judge, None, 0.0
        self.num_cut += question.num_cut
        for attempt in range(TRIES):
            ask = Ask(
                messages=(Message("user", question.text),),
                # greedy decoding would repeat the invalid answer
                temperature=config.temperature if attempt == 0 else max(config.temperature, RETRY_TEMPERATURE),
                max_tokens=config.max_tokens,
                seed=question.seed + attempt,  # a retry with the same seed might get the same answer
                chat_template_kwargs=config.chat_template_kwargs,
            )
            answer = await self._answer(ask)
            cost += self._cost(answer)
            verdict = question.read(answer.text)
            if verdict is not None:
                return verdict, cost
            self.num_invalid += 1
        assert answer is not None
        raise ScorerError(
            f"the judge gave no verdict in {TRIES} answers; the last one ends with {answer.text[-200:]!r}"
        )

    async def _answer(self, ask: Ask) -> Answer:
        """Return the stored answer to a request, or a new one; concurrent equal requests are sent once."""
        key = request_key(ask, self._terms.judge.model)
        if key in self._pending:
            return await asyncio.shield(self._pending[key])
        known = None if self._answers is None else self._answers.get(key)
        if known is not None:
            return known
        future = self._pending[key] = asyncio.get_running_loop().create_future()
        try:
            (completion,) = await self._policy.complete(ask)
            self.num_requests += 1
            answer = answer_of(key, completion)
            if self._answers is not None:
                self._answers.put(answer)
            self.spent += self._cost(answer)
            future.set_result(answer)
            return answer
        except BaseException as error:
            future.set_exception(error)
            future.exception()  # mark as retrieved, or asyncio warns if nobody waits
            raise
        finally:
            del self._pending[key]

    def _cost(self, answer: Answer) -> float:
        terms = self._terms
        return (answer.prompt_tokens * terms.prompt_price + answer.tokens * terms.completion_price) / 1e6


def request_key(ask: Ask, model: str | None) -> str:
    """Return the hash of a request to a model, under which its answer is stored."""
    return content_hash(ask.key(), ask.seed, model)


def answer_of(key: str, completion: Completion) -> Answer:
    return Answer(key, completion.text[-MAX_ANSWER:], completion.num_prompt_tokens, completion.num_tokens)
