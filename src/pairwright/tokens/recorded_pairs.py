"""The recorded ids of the sides of a pair: each side is what its model was given and then sampled, id by id.

A side belongs to its source experience if the pair's prompt and completion are how that conversation begins; then its
ids are the recorded ones up to the end of its last turn. A preference keeps the prompt's ids once and each side's own.
Ids that do not fit are a Refusal: encoding the text instead would train tokens that nobody sampled.
"""

from collections.abc import Sequence as Items
from typing import Literal, NamedTuple

import numpy as np

from pairwright.arrays import Array
from pairwright.canonical import canonical_messages
from pairwright.grouping import Conversation, conversation_of
from pairwright.messages import Message
from pairwright.records import Experience, Side
from pairwright.tokens.recorded import sequence_of, spans_of_mask
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.tokenizer import ChatTokenizer


class EncodedSide(NamedTuple):
    """A side's sequence; tokens before `start` are its prompt."""

    sequence: Sequence
    start: int


def recorded_side(
    tokenizer: ChatTokenizer,
    prompt: Items[Message],
    completion: Items[Message],
    source: Experience,
    side: Literal["chosen", "rejected"],
) -> EncodedSide:
    """The recorded ids of one side. `source` is its experience, or the preference that it is a side of."""
    answer = source.chosen if side == "chosen" else source.rejected
    own = conversation_of(source, answer)
    messages, size = (*own.prompt, *own.completion), len(prompt) + len(completion)
    if canonical_messages(messages[:size]) != canonical_messages([*prompt, *completion]):
        raise Refusal("recorded_ids", f"{source.eid.uid} recorded ids of other messages")
    if answer is None:
        return _of_experience(tokenizer, source, own, len(prompt), size)
    if len(prompt) != len(own.prompt) or size != len(messages):
        raise Refusal("recorded_ids", f"the ids of {source.eid.uid} end elsewhere than the prompt and this side")
    return EncodedSide(_of_preference(tokenizer, source, answer, own), len(_ids(source)))


def shared_prompt(tokenizer: ChatTokenizer, chosen: EncodedSide, rejected: EncodedSide) -> int:
    """How many ids the two sides share before what is trained.

    The prompts of both must spell the same text. Their ids may differ, where turns that both runs sampled are part of
    the prompt and were sampled as other tokens: each side then keeps the ids that its own run had.
    """
    left, right = (side.sequence.ids[: side.start] for side in (chosen, rejected))
    if np.array_equal(left, right):
        return chosen.start
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    shared = int(differ[0]) if len(differ) else size
    if not shared or tokenizer.decode(left) != tokenizer.decode(right):
        raise Refusal("prompts_differ", "the recorded prompts of the two sides spell different texts")
    return shared


def is_cut_side(source: Experience, side: Literal["chosen", "rejected"]) -> bool:
    """Whether the answer of this side was cut short."""
    answer = source.chosen if side == "chosen" else source.rejected
    return (source if answer is None else answer).truncate_status == "response_truncated"


def _of_preference(tokenizer: ChatTokenizer, source: Experience, side: Side, own: Conversation) -> Sequence:
    assert side.tokens is not None
    ids = np.concatenate([_ids(source), side.tokens]).astype(np.int32)
    arrays = (len(_ids(source)), side.action_mask, side.logprobs)
    return sequence_of(tokenizer, ids, *arrays, *own)


def _of_experience(
    tokenizer: ChatTokenizer, source: Experience, own: Conversation, num_prompt: int, size: int
) -> EncodedSide:
    """The first `size` messages of an experience, compared from message `num_prompt` on: turns before are context."""
    assert source.prompt_length is not None
    ids = _ids(source).astype(np.int32)
    arrays = (source.prompt_length, source.action_mask, source.logprobs)
    whole = sequence_of(tokenizer, ids, *arrays, *own)
    messages = (*own.prompt, *own.completion)
    if num_prompt == len(own.prompt) and size == len(messages):
        return EncodedSide(whole, source.prompt_length)
    # One span of sampled tokens a generated message: only then is it known where a turn begins and ends.
    spans = spans_of_mask(whole.mask)
    turns = [number for number in range(len(own.prompt), len(messages)) if messages[number].is_generated]
    if num_prompt < len(own.prompt):
        raise Refusal("recorded_ids", f"{source.eid.uid} recorded a longer prompt: its turns have no ids of their own")
    if len(turns) != len(spans) or num_prompt not in turns:
        raise Refusal("recorded_ids", f"{source.eid.uid} has {len(spans)} sampled spans for {len(turns)} turns")
    start = int(spans[turns.index(num_prompt)][0])
    end = int(spans[max(place for place, turn in enumerate(turns) if turn < size)][1])
    logprobs = None if whole.logprobs is None else whole.logprobs[start:end]
    parts = messages[:num_prompt], messages[num_prompt:size]
    return EncodedSide(sequence_of(tokenizer, ids[:end], start, whole.mask[start:end], logprobs, *parts), start)


def _ids(source: Experience) -> Array:
    assert source.tokens is not None
    return source.tokens
