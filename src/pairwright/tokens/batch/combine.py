"""The combined collator: traces with pairs to one batch for GRPO, SDPO and replayed DPO, as the Composer collator does.

Each channel has its own cap on length and can be switched off. What does not fit, has no hint or cannot be encoded is
left out of its channel and counted; nothing else changes for it.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from pairwright.config.problems import CheckedSection
from pairwright.config.sections import SequenceTerms
from pairwright.errors import RecordError
from pairwright.records.experience import Experience, Pair
from pairwright.records.messages import ErrorSite, Message
from pairwright.tokens.batch.collate import (
    IGNORE_INDEX,
    CombinedBatch,
    as_torch,
    collate_distill,
    collate_policy,
    collate_preference,
)
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.hints import HINTS, Hint, HintCounts, Judge, find_hints
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence, Truncation, name_record, truncate
from pairwright.tokens.teacher_sequences import Distillation, distill_experience, truncate_distillation
from pairwright.tokens.tokenizer import chat_tokenizer

# Messages and error sites of a conversation -> its hints, and how many sites have none.
HintGenerator = Callable[[Items[Message], Items[ErrorSite]], tuple[list[Hint], HintCounts]]


class Trace(msgspec.Struct, frozen=True):
    """An experience with the pairs that are replayed along with it."""

    experience: Experience
    pairs: tuple[Pair, ...] = ()


class CombineOptions(CheckedSection, SequenceTerms):
    """Options of the collator. `max_length` caps the policy and distill channels, `max_pair_length` the preference
    channel; `SequenceTerms` has the defaults and bounds of what is not declared here."""

    max_length: Annotated[int, Field(ge=1)] = 4096
    max_pair_length: Annotated[int, Field(ge=1)] = 2048
    ignore_index: int = IGNORE_INDEX
    """Label of tokens that are not trained."""
    reward_key: str | None = None
    """Reward component to use instead of the reward."""
    use_policy: bool = True
    use_distill: bool = True
    use_preference: bool = True
    hint_templates: dict[str, str] = HINTS
    """Hints by error kind."""


class Collator:
    """Callable on a list of traces; `counts` says what was left out of which channel, and why.

    `hints` makes the hints of a conversation's error sites; by default `find_hints`, with a judge if there is one.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        pad_id: int,
        options: CombineOptions | None = None,
        judge: Judge | None = None,
        hints: HintGenerator | None = None,
        tensors: Literal["numpy", "torch"] = "numpy",
    ) -> None:
        self.tokenizer = tokenizer
        self.pad_id = pad_id
        self.options = CombineOptions() if options is None else options
        self.hints = hints or partial(find_hints, templates=self.options.hint_templates, judge=judge)
        self.tensors = tensors
        terms = self.options
        # `max_length` of the encoding is that of pairs; the other channels cut their sequences themselves.
        self._encoding = EncodeOptions(
            missing_reasoning=terms.missing_reasoning,
            allow_dropped=terms.allow_dropped,
            allow_images=terms.allow_images,
            max_length=terms.max_pair_length,
            truncation=terms.truncation,
            keep_first=terms.keep_first,
        )
        self.counts: Counter[str] = Counter()  # "<channel>: <reason>" -> number, over all batches

    def __call__(self, traces: Items[Trace]) -> CombinedBatch | dict[str, Any]:
        options, pad = self.options, self.pad_id
        # Every channel encodes the traces by itself: what one refuses may fit another.
        sequences, rewards = self._policy(traces) if options.use_policy else ([], [])
        distillations = self._distill(traces) if options.use_distill else []
        pairs = self._preference(traces) if options.use_preference else []
        # A channel without rows is None: arrays of no rows would have no width.
        batch = CombinedBatch(
            policy=collate_policy(sequences, rewards, pad_id=pad, ignore_index=options.ignore_index)
            if sequences
            else None,
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
                # Several sequences where the template rewrites history; each has the reward of the run.
                for sequence in encode_experience(self.tokenizer, trace.experience, self._encoding):
                    self.counts["policy: dropped_prompt_content"] += bool(sequence.report.prompt_dropped)
                    cut = truncate(sequence, *self._caps(), keep_first=self.options.keep_first)
                    # `truncate` returns the same object where nothing is cut.
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
            hints, counted = self.hints(experience.messages, experience.errors)
            self.counts["distill: without_hint"] += counted.without_hint
            self.counts["distill: without_recovery"] += counted.without_recovery
            # Turns of the prompt are context: a hint for one of them trains nothing.
            hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
            if not hints:
                continue
            try:
                hinted = distill_experience(chat_tokenizer(self.tokenizer), experience, hints, self._encoding)
            except Refusal as refusal:
                self.counts[f"distill: {refusal.reason}"] += 1
                continue
            self.counts["distill: dropped_prompt_content"] += sum(bool(i.student.report.prompt_dropped) for i in hinted)
            items += [item for item in map(self._cut, hinted) if item is not None]
        return items

    def _cut(self, item: Distillation) -> Distillation | None:
        """The item within its cap, or None; what was cut is counted."""
        try:
            cut = truncate_distillation(item, *self._caps(), keep_first=self.options.keep_first)
        except Refusal as refusal:
            self.counts[f"distill: {refusal.reason}"] += 1
            return None
        self.counts["distill: truncated"] += cut is not item
        # Hinted turns that were cut away.
        self.counts["distill: hints_cut"] += len(item.targets) - len(cut.targets)
        return cut

    def _preference(self, traces: Items[Trace]) -> list[EncodedPair]:
        pairs = [pair for trace in traces for pair in trace.pairs]
        # A generator: `encode_pairs` takes a few dozen pairs at a time.
        compared = (PairMessages(pair.prompt, pair.chosen, pair.rejected, list(pair.tools) or None) for pair in pairs)
        encoded = []
        results = encode_pairs(self.tokenizer, compared, self._encoding)
        for pair, item in zip(pairs, results, strict=True):
            if isinstance(item, TokensError):
                self.counts[f"preference: {item.reason if isinstance(item, Refusal) else 'template_error'}"] += 1
                continue
            self.counts["preference: truncated"] += bool(item.chosen.report.truncated)
            self.counts["preference: dropped_prompt_content"] += bool(item.chosen.report.prompt_dropped)
            chosen = name_record(item.chosen, pair.chosen_eid.uid)
            rejected = name_record(item.rejected, pair.rejected_eid.uid)
            encoded.append(msgspec.structs.replace(item, chosen=chosen, rejected=rejected))
        return encoded

    def _caps(self) -> tuple[int, Truncation]:
        return self.options.max_length, self.options.truncation


def reward_of(experience: Experience, key: str | None) -> float | None:
    """The reward, or one of its components; None where there is none or it is not finite."""
    if key is None:
        return experience.reward if experience.is_scored else None
    value = experience.reward_components.get(key)
    # A bool is an int to Python, but no reward.
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RecordError(f"reward_components.{key}", value, "a number")
    return None if value is None else float(value)
