"""The combined collator: traces with pairs to one batch for GRPO, SDPO and replayed DPO, as the Composer collator does.

Each channel has its own cap on length and can be switched off. What does not fit, has no hint or cannot be encoded is
left out of its channel and counted; nothing else changes for it.
"""

from collections import Counter
from collections.abc import Sequence as Items
from typing import Any

import msgspec

from pairwright.errors import RecordError
from pairwright.messages import Json
from pairwright.records import Experience, Pair
from pairwright.tokens.batches import as_torch
from pairwright.tokens.collate import (
    CombinedBatch,
    collate_distill,
    collate_policy,
    collate_preference,
)
from pairwright.tokens.distill import Distillation, encode_distillation
from pairwright.tokens.hints import HINTS, Hint, Judge, hints_for
from pairwright.tokens.pairs import EncodedPair, Truncation, encode_pair
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.truncate import truncate


class Trace(msgspec.Struct, frozen=True):
    """An experience with the pairs that are replayed along with it."""

    experience: Experience
    pairs: tuple[Pair, ...] = ()


class CombineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`reward_key` names a reward component to use instead of the reward."""

    max_length: int = 4096
    max_pair_length: int = 2048
    truncation: Truncation = "keep_end"
    reward_key: str | None = None
    use_policy: bool = True
    use_distill: bool = True
    use_preference: bool = True
    hint_templates: dict[str, str] = msgspec.field(default_factory=lambda: dict(HINTS))


class Collator:
    """Callable on a list of traces; `counts` says what was left out of which channel, and why."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        pad_id: int,
        options: CombineOptions | None = None,
        judge: Judge | None = None,
        tensors: str = "numpy",
    ) -> None:
        self.tokenizer = tokenizer
        self.pad_id = pad_id
        self.options = CombineOptions() if options is None else options
        self.judge = judge
        self.tensors = tensors
        self.counts: Counter[str] = Counter()

    def __call__(self, traces: Items[Trace]) -> CombinedBatch | dict[str, Any]:
        options, pad = self.options, self.pad_id
        sequences, rewards = self._policy(traces) if options.use_policy else ([], [])
        distillations = self._distill(traces) if options.use_distill else []
        pairs = self._preference(traces) if options.use_preference else []
        batch = CombinedBatch(
            policy=collate_policy(sequences, rewards, pad_id=pad) if sequences else None,
            distill=collate_distill(distillations, pad_id=pad) if distillations else None,
            preference=collate_preference(pairs, pad_id=pad) if pairs else None,
        )
        return as_torch(batch) if self.tensors == "torch" else batch

    def _policy(self, traces: Items[Trace]) -> tuple[list[Sequence], list[float]]:
        sequences: list[Sequence] = []
        rewards: list[float] = []
        for trace in traces:
            reward = reward_of(trace.experience, self.options.reward_key)
            if reward is None:
                self.counts["policy: unscored"] += 1
                continue
            try:
                for sequence in encode_experience(self.tokenizer, trace.experience):
                    cut = truncate(sequence, self.options.max_length, self.options.truncation)
                    self.counts["policy: truncated"] += cut is not sequence
                    sequences.append(cut)
                    rewards.append(reward)
            except Refusal as refusal:
                self.counts[f"policy: {refusal.reason}"] += 1
        return sequences, rewards

    def _distill(self, traces: Items[Trace]) -> list[Distillation]:
        items = []
        for trace in traces:
            experience = trace.experience
            hints, counted = hints_for(
                experience.messages, experience.errors, templates=self.options.hint_templates, judge=self.judge
            )
            self.counts["distill: without_hint"] += counted.without_hint
            self.counts["distill: without_recovery"] += counted.without_recovery
            hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
            if not hints:
                continue
            try:
                item = self._distillation(experience, hints)
            except Refusal as refusal:
                self.counts[f"distill: {refusal.reason}"] += 1
                continue
            items.append(item)
        return items

    def _distillation(self, experience: Experience, hints: list[Hint]) -> Distillation:
        tools: list[Json] | None = list(experience.tools) or None
        item = encode_distillation(self.tokenizer, experience.messages, hints, tools, train_from=len(experience.prompt))
        longest = max(len(item.student), len(item.teacher))
        if longest > self.options.max_length:
            raise Refusal("too_long", f"{longest} tokens of at most {self.options.max_length}")
        return item

    def _preference(self, traces: Items[Trace]) -> list[EncodedPair]:
        encoded = []
        for pair in (pair for trace in traces for pair in trace.pairs):
            try:
                item = encode_pair(
                    self.tokenizer, pair.prompt, pair.chosen, pair.rejected, list(pair.tools) or None,
                    max_length=self.options.max_pair_length, truncation=self.options.truncation,
                )  # fmt: skip
            except Refusal as refusal:
                self.counts[f"preference: {refusal.reason}"] += 1
                continue
            self.counts["preference: truncated"] += bool(item.chosen.report.truncated)
            encoded.append(item)
        return encoded


def reward_of(experience: Experience, key: str | None) -> float | None:
    """The reward, or one of its components; None where there is none or it is not finite."""
    if key is None:
        return experience.reward if experience.is_scored else None
    value = experience.reward_components.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RecordError(f"reward_components.{key}", value, "a number")
    return None if value is None else float(value)
