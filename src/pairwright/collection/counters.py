"""Progress counters of a collection and of one run, updated in constant time per candidate."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pairwright.collection.finished_runs import Entry
from pairwright.collection.policies import Completion
from pairwright.collection.run_failures import FailureKind
from pairwright.collection.sampled_tokens import WITHOUT_IDS
from pairwright.records.experience import Experience

_ENOUGH = 40  # scored candidates before equal rewards are reported


class PairCount:
    """Counts pairs of comparable candidates with different rewards: same group, finite scores."""

    def __init__(self) -> None:
        # (task, step, prompt hash) of a group -> counts of its rewards
        self._groups: dict[tuple[str, int, str], Counter[float]] = {}
        self.total = 0

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    def add(self, group: tuple[str, int, str], reward: float | None) -> None:
        """Count a candidate.

        >>> pairs = PairCount()
        >>> for reward in (1.0, 0.0, 1.0, None): pairs.add(("t", 0, "prompt"), reward)
        >>> pairs.total
        2
        """
        if reward is None or not math.isfinite(reward):
            return
        # the new candidate forms a pair with each earlier one of its group with a different reward
        rewards = self._groups.setdefault(group, Counter())
        self.total += rewards.total() - rewards[reward]
        rewards[reward] += 1


@dataclass
class Tally:
    """Counts of one run, or of a whole collection."""

    num_candidates: int = 0
    num_scored: int = 0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    reward_sum: float = 0.0
    reward_min: float | None = None
    reward_max: float | None = None
    without_ids: Counter[str] = field(default_factory=Counter)  # candidates without token ids, by reason
    pairs: PairCount = field(default_factory=PairCount)

    @property
    def num_pairs(self) -> int:
        return self.pairs.total

    def add(self, experience: Experience, prompt_hash: str) -> None:
        self.num_candidates += 1
        if experience.tokens is None:
            self.without_ids[str(experience.info.get("without_ids", "no_ids"))] += 1
        reward = experience.reward
        self.pairs.add((experience.eid.tid, experience.eid.step, prompt_hash), reward)
        if reward is not None and math.isfinite(reward):
            self._add_rewards(1, reward, reward, reward)

    def add_answers(self, answers: Sequence[Completion]) -> None:
        """Count the tokens of the answers to one request, whose prompt was read once."""
        self.num_tokens += sum(answer.num_tokens for answer in answers)
        self.num_prompt_tokens += max((answer.num_prompt_tokens for answer in answers), default=0)

    def add_run(self, entry: Entry) -> None:
        """Count a run of an earlier process, except its pairs and tokens."""
        self.num_candidates += entry.num_candidates
        self.without_ids.update(entry.without_ids)
        self._add_rewards(entry.num_scored, entry.reward_sum, entry.reward_min, entry.reward_max)

    def _add_rewards(self, count: int, total: float, low: float | None, high: float | None) -> None:
        self.num_scored += count
        self.reward_sum += total
        self.reward_min = min((value for value in (self.reward_min, low) if value is not None), default=None)
        self.reward_max = max((value for value in (self.reward_max, high) if value is not None), default=None)


@dataclass
class Status(Tally):
    """Live figures of a collection. Runs finished by an earlier process count as done."""

    num_tasks: int = 0
    num_runs: int = 0
    num_done: int = 0
    num_before: int = 0
    num_running: int = 0
    num_ended_tokens: int = 0  # prompt and answer tokens of the runs that this process ended
    num_asked: int = 0  # requests in flight
    load: Any = None  # requests by state (generate.batcher.Load), if the policy provides them
    phase: str = ""  # activity before the first run, such as loading the model
    warning: str = ""  # from the policy: what does not work with this model
    is_compared: bool = False  # whether tasks have several candidates to compare
    failures: dict[FailureKind, int] = field(default_factory=dict)
    retries: dict[str, int] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)  # parameters of agents' requests that had no effect, by runs
    num_silent: int = 0  # done runs without records
    temperature: float | None = None  # of the policy; used for advice if all rewards are equal
    started: float = field(default_factory=time.monotonic)

    def lines_without_ids(self) -> list[str]:
        """One line for each reason why candidates have no token ids."""
        which = f"of {self.num_candidates:,} candidates without token ids"
        return [
            f"{count:,} {which}: {reason}, {WITHOUT_IDS.get(reason, '')}"
            for reason, count in self.without_ids.most_common()
        ]

    def why_no_signal(self) -> str | None:
        """Return why all rewards so far are equal, and what to try; None if they differ or are few.

        >>> Status(num_scored=40, reward_min=0.0, reward_max=0.0, is_compared=True).why_no_signal()[:53]
        'of 40 candidates none has a reward above 0: there is '
        """
        is_over = self.num_done + self.num_failed >= self.num_runs
        if not self.is_compared or self.num_scored < (2 if is_over else _ENOUGH) or self.reward_min != self.reward_max:
            return None
        # suggest only changes that are not set already
        is_hot = self.temperature is not None and self.temperature >= 1
        is_cool = self.temperature is not None and self.temperature <= 0.8
        lower = "" if is_cool else "Lower policy.temperature (0.5 to 0.8 for a small model), "
        if self.reward_max is not None and self.reward_max <= 0:
            return (
                f"of {self.num_scored:,} candidates none has a reward above {self.reward_max:g}: there is nothing to "
                f"prefer. {lower}show examples in the prompt, or give partial credit"
            )
        return (
            f"all {self.num_scored:,} candidates have the reward {self.reward_max:g}: there is nothing to prefer. Take "
            f"harder tasks, {'' if is_hot else 'raise policy.temperature, '}or score more finely"
        )

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def mean_reward(self) -> float | None:
        return self.reward_sum / self.num_scored if self.num_scored else None

    @property
    def prompt_tokens_read(self) -> int:
        """Prompt tokens that the model has read, including those of unanswered requests."""
        return self.num_prompt_tokens + (self.load.num_prompt_tokens if self.load else 0)

    @property
    def tokens_written(self) -> int:
        """Answer tokens, including those of unfinished answers."""
        return self.num_tokens + (self.load.num_tokens if self.load else 0)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_written / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated time left, from the mean number of prompt and answer tokens of ended runs.

        None before the first run has ended. Falls back to the number of ended runs if there are no tokens, or if there
        are already more tokens than estimated: the first runs to end are the short ones.
        """
        # runs of an earlier process did not use time of this one
        ended = self.num_done - self.num_before + self.num_failed
        left = self.num_runs - self.num_done - self.num_failed
        if ended <= 0:
            return None
        num_tokens = self.prompt_tokens_read + self.tokens_written
        expected = self.num_ended_tokens / ended * (ended + left)
        if expected <= num_tokens:
            return self.seconds / ended * left
        return (expected - num_tokens) / max(num_tokens, 1) * self.seconds
