"""Preferences whose ids were recorded: where both sides continue the same recorded prompt, they are the pair.

A preference keeps the prompt's ids once and each side's own. Two experiences keep their whole sequences; they make a
pair of ids if they are of these messages and the ids before the first turn that is compared are equal. Otherwise the
reason is told, and the messages are rendered.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from pairwright.arrays import Array
from pairwright.canonical import canonical_messages
from pairwright.grouping import Conversation, conversation_of
from pairwright.messages import Message
from pairwright.records import Experience, Side
from pairwright.tokens.recorded import sequence_of, spans_of_mask
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.tokenizer import ChatTokenizer


class RecordedPair(NamedTuple):
    chosen: Sequence
    rejected: Sequence
    prompt_length: int


def recorded_pair(
    tokenizer: ChatTokenizer,
    prompt: Items[Message],
    chosen: Items[Message],
    rejected: Items[Message],
    sources: tuple[Experience, Experience],
) -> RecordedPair | str:
    """The recorded ids of a pair, or why they are not used. `sources` are the experiences of the two sides; a
    preference is the source of both."""
    if any(source.tokens is None for source in sources):
        return "no ids on one side"
    sides = []
    for name, completion, source in zip(("chosen", "rejected"), (chosen, rejected), sources, strict=True):
        found = _side(tokenizer, prompt, completion, source, name)
        if isinstance(found, str):
            return found
        sides.append(found)
    (left, start), (right, other_start) = sides
    if start != other_start or not np.array_equal(left.ids[:start], right.ids[:start]):
        return "the sides were given different ids for the prompt"
    return RecordedPair(left, right, start)


def _side(
    tokenizer: ChatTokenizer, prompt: Items[Message], completion: Items[Message], source: Experience, name: str
) -> tuple[Sequence, int] | str:
    """The ids of one side, and where its completion starts."""
    side = source.chosen if name == "chosen" else source.rejected
    own = conversation_of(source, side)
    if canonical_messages([*own.prompt, *own.completion]) != canonical_messages([*prompt, *completion]):
        return "the recorded ids are of other messages"
    if side is None:
        return _of_experience(tokenizer, source, own, len(prompt))
    if len(prompt) != len(own.prompt):
        return "the recorded prompt ends elsewhere"
    return _of_preference(tokenizer, source, side, own), len(_ids(source))


def _of_preference(tokenizer: ChatTokenizer, source: Experience, side: Side, own: Conversation) -> Sequence:
    assert side.tokens is not None
    ids = np.concatenate([_ids(source), side.tokens]).astype(np.int32)
    arrays = (len(_ids(source)), side.action_mask, side.logprobs)
    return sequence_of(tokenizer, ids, *arrays, *own)


def _of_experience(
    tokenizer: ChatTokenizer, source: Experience, own: Conversation, num_prompt: int
) -> tuple[Sequence, int] | str:
    """An experience whose completion is compared from message `num_prompt` on: turns before it are context."""
    assert source.prompt_length is not None
    ids = _ids(source).astype(np.int32)
    arrays = (source.prompt_length, source.action_mask, source.logprobs)
    whole = sequence_of(tokenizer, ids, *arrays, *own)
    if num_prompt == len(own.prompt):
        return whole, source.prompt_length
    if num_prompt < len(own.prompt):
        return "the recorded prompt is longer"
    spans = spans_of_mask(whole.mask)
    generated = [number for number, message in enumerate(source.messages) if message.is_generated]
    turns = [number for number in generated if number >= len(source.prompt)]
    if len(turns) != len(spans) or num_prompt not in turns:
        return "the recorded turns cannot be told apart"
    start = int(spans[turns.index(num_prompt)][0])
    logprobs = None if whole.logprobs is None else whole.logprobs[start:]
    messages = source.messages[:num_prompt], source.messages[num_prompt:]
    return sequence_of(tokenizer, ids, start, whole.mask[start:], logprobs, *messages), start


def _ids(source: Experience) -> Array:
    assert source.tokens is not None
    return source.tokens
