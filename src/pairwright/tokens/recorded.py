"""Ids first: where a rollout recorded its token ids, they are the sequence.

`encode_experience` takes an experience's own arrays if it has them. `encode_recorded` builds a sequence from the ids
that were sampled turn by turn: the template encodes only what the environment added between them.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

import msgspec
import numpy as np

from pairwright.arrays import Array
from pairwright.messages import Json
from pairwright.records import Experience, Kind
from pairwright.tokens.encode import Messages, painted, prepared
from pairwright.tokens.owned import CONTENT
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.regions import Located, Region, locate
from pairwright.tokens.sequence import Paint, Report, Sequence
from pairwright.tokens.spelling import Encoded, continuation, finished
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer
from pairwright.tokens.turns import encode_turns


class RecordedTurn(msgspec.Struct, frozen=True):
    """What the model sampled in one turn; the stop token is part of it unless the turn was cut short."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None


def encode_experience(tokenizer: Any, experience: Experience, **options: Any) -> list[Sequence]:
    """The sequences of an experience: its recorded ids as they are, else its messages. One, unless the template
    rewrites history; options are those of `encode_turns`."""
    if experience.kind is Kind.PREFERENCE:
        raise Refusal("not_generated", "a preference has two completions: use encode_pair")
    if experience.tokens is not None:
        return [sequence_of_arrays(experience)]
    tools = list(experience.tools) or None
    return encode_turns(tokenizer, experience.messages, tools, train_from=len(experience.prompt), **options)


def sequence_of_arrays(experience: Experience) -> Sequence:
    """An experience's own tokens; a message's index is known where masked spans and generated messages agree."""
    assert experience.tokens is not None
    assert experience.prompt_length is not None
    size, prompt = len(experience.tokens), experience.prompt_length
    mask = np.zeros(size, dtype=bool)
    mask[prompt:] = True if experience.action_mask is None else experience.action_mask.astype(bool)
    logprobs = None
    if experience.logprobs is not None:
        logprobs = np.zeros(size, dtype=np.float32)
        logprobs[prompt:] = experience.logprobs
    if not mask.any():
        raise Refusal("not_generated", "the recorded mask is empty")
    message_index = np.full(size, -1, dtype=np.int32)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))).reshape(-1, 2)
    generated = [
        len(experience.prompt) + number for number, turn in enumerate(experience.completion) if turn.is_generated
    ]
    if len(generated) == len(edges):
        for (start, stop), message in zip(edges, generated, strict=True):
            message_index[start:stop] = message
    paint = np.where(mask, Paint.GENERATED, Paint.TEMPLATE).astype(np.int8)
    report = Report(source="recorded", num_turns=len(edges))
    return Sequence(
        ids=experience.tokens.astype(np.int32), mask=mask, message_index=message_index, paint=paint,
        logprobs=logprobs, report=report,
    )  # fmt: skip


def encode_recorded(
    tokenizer: Any,
    messages: Messages,
    recorded: Mapping[int, RecordedTurn],
    tools: Items[Json] | None = None,
    *,
    added: Mapping[int, str] | None = None,
) -> Sequence:
    """A conversation whose generated turns were recorded as ids: message index -> what was sampled in it.

    `added` is text at the end of messages that is painted as a hint.
    """
    ready = chat_tokenizer(tokenizer)
    schemas = ready.schemas(tools)
    chat, generated = prepared(ready, messages, schemas)
    if not recorded or any(index not in generated for index in recorded):
        raise Refusal("recorded_ids", f"ids are recorded for {sorted(recorded)}, generated were {generated}")
    located = locate(ready, chat, schemas, sorted(recorded), require_stop=False)
    text = located.rendered.text
    parts, regions, position = _Parts(), [], 0
    for region in located.regions:
        between = text[position : region.start]
        ids, offsets = ready.encode(between) if position == 0 else continuation(ready, between)
        parts.context(ids, offsets + position)
        turn = recorded[region.message]
        position = _end_of_sample(ready, region, turn)
        parts.sampled(turn, region.message, region.start, position)
        regions.append(region._replace(end=position))
    if position < len(text):
        ids, offsets = continuation(ready, text[position:])
        parts.context(ids, offsets + position)
    encoded = finished(ready, np.concatenate(parts.ids), np.concatenate(parts.offsets), is_split=True)
    mask, message_index, paint = painted(encoded, located.rendered, regions, chat)
    for message, hint in (added or {}).items():
        _paint_hint(encoded, located, message, hint, paint)
    if not np.array_equal(mask, np.concatenate(parts.masks)):
        raise Refusal("recorded_ids", "a recorded turn is empty or does not fit its place")
    report = Report(source="recorded", template=ready.renderer(schemas).hash, num_turns=len(regions), split=True)
    logprobs = np.concatenate(parts.logprobs) if parts.has_logprobs else None
    return Sequence(
        ids=encoded.ids, mask=mask, message_index=message_index, paint=paint, logprobs=logprobs, report=report
    )


def _end_of_sample(tokenizer: ChatTokenizer, region: Region, turn: RecordedTurn) -> int:
    """Where the environment's text goes on: after the stop token, or with it where it was not sampled."""
    if region.stop is None or (turn.ids and turn.ids[-1] == tokenizer.added[region.stop]):
        return region.end
    return region.end - len(region.stop)


def _paint_hint(encoded: Encoded, located: Located, message: int, hint: str, paint: Array) -> None:
    pieces = [piece for piece in located.rendered.pieces if piece.message == message and piece.field == CONTENT]
    if pieces:
        end = pieces[-1].end
        start = max(pieces[-1].start, end - len(hint.strip()))
        paint[(encoded.starts >= start) & (encoded.ends <= end) & (encoded.ends > start)] = Paint.HINT


class _Parts:
    """Ids that are put together, with what they are."""

    def __init__(self) -> None:
        self.ids: list[Array] = []
        self.offsets: list[Array] = []
        self.masks: list[Array] = []
        self.logprobs: list[Array] = []
        self.has_logprobs = True

    def context(self, ids: Array, offsets: Array) -> None:
        self._add(ids, offsets, np.zeros(len(ids), dtype=np.float32), is_sampled=False)

    def sampled(self, turn: RecordedTurn, message: int, start: int, end: int) -> None:
        """Sampled ids cover the turn's text together: which id spells which part of it does not matter."""
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.ids):
            detail = f"{len(turn.logprobs)} log-probabilities for {len(turn.ids)} ids"
            raise Refusal("recorded_ids", detail, message=message)
        self.has_logprobs &= turn.logprobs is not None
        logprobs = np.array(turn.logprobs or [0.0] * len(turn.ids), dtype=np.float32)
        offsets = np.tile(np.array([[start, max(end, start + 1)]], dtype=np.int32), (len(turn.ids), 1))
        self._add(np.array(turn.ids, dtype=np.int32), offsets, logprobs, is_sampled=True)

    def _add(self, ids: Array, offsets: Array, logprobs: Array, *, is_sampled: bool) -> None:
        self.ids.append(ids)
        self.offsets.append(offsets)
        self.masks.append(np.full(len(ids), is_sampled))
        self.logprobs.append(logprobs)
