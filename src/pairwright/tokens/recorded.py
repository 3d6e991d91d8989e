"""Build sequences from recorded ids: if a rollout recorded its token ids, they are the sequence.

`encode_experience` uses an experience's recorded arrays if it has them. `encode_recorded` builds a sequence from the
ids sampled in each turn: the template renders only the text that the environment added between turns.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from pairwright.records.arrays import Array
from pairwright.records.experience import Experience, Kind, Side
from pairwright.records.grouping import Conversation, conversation_of
from pairwright.records.messages import Json, Message, canonical_messages
from pairwright.records.tool_texts import write_tools_as_text
from pairwright.tokens.clock import time_of
from pairwright.tokens.encode import Messages, Prepared, encode_turns, find_spans, paint_tokens, prepare_chat
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Report, Sequence, weigh_turns
from pairwright.tokens.spans.dropped import count_media, refuse_media_inputs
from pairwright.tokens.spans.law import Terms
from pairwright.tokens.spans.regions import Located, Region, locate_groups, only_group
from pairwright.tokens.spans.spelling import Encoded, encode_continuation, index_tokens
from pairwright.tokens.template.tracked_str import CONTENT, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer, record_variables
from pairwright.tokens.train_turns import (
    TurnFacts,
    as_context,
    facts_of,
    keep_turns,
    refuse_empty,
    report_turns,
    select_turns,
)


class RecordedTurn(msgspec.Struct, frozen=True):
    """The ids sampled in one turn, including the stop token unless the turn was cut short."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None


# Recorded ids are exempt from the law: only the positions of their turns are needed.
RECORDED = Terms(require_stop=False, is_recorded=True)


def encode_experience(
    tokenizer: Any, experience: Experience, options: EncodeOptions = DEFAULT, facts: TurnFacts | None = None
) -> list[Sequence]:
    """Encode an experience: its recorded ids unchanged, else its messages. Returns one sequence, or several if the
    template rewrites history. An answer that was cut short has no stop token. `facts` are the error sites and the
    credit of its turns, by default computed from the experience."""
    if experience.kind is Kind.PREFERENCE:
        raise Refusal("not_generated", "a preference has two completions: use encode_pair")
    refuse_media_inputs(experience, allow=options.allow_images)
    prompt, completion = conversation_of(experience)
    messages = [*prompt, *completion]
    turns = [index for index in range(len(prompt), len(messages)) if messages[index].is_generated]
    facts = facts_of(experience, options.train_turns, options.credit) if facts is None else facts
    selected = select_turns(messages, turns, options.train_turns, facts)
    refuse_empty(selected, turns, options.train_turns)
    left_out = [turn for turn in turns if turn not in selected]
    ready = chat_tokenizer(tokenizer)
    if experience.tokens is not None and options.recorded == "use":
        sequence = build_from_arrays(ready, experience)
        sequences = [keep_turns(sequence, selected) if left_out else sequence]
    else:
        tools = list(experience.tools) or None
        if options.record_kwargs == "use":
            ready = ready.with_variables(record_variables(experience.info))
        ready = ready.at(time_of(experience.info))
        messages = as_context(messages, left_out)
        if options.tools_as_text == "off":
            sequences = encode_turns(ready, messages, tools, options, train_from=len(prompt))
        else:
            sequences = _encode_tool_texts(ready, messages, tools or (), len(prompt), options)
        if is_cut(experience) and selected and selected[-1] == turns[-1]:  # only the last turn can be cut
            sequences = [*sequences[:-1], drop_stop(sequences[-1])]
    sequences = report_turns(sequences, left_out, options.train_turns, facts)
    known: dict[str, Any] = {"uid": experience.eid.uid}
    if num_images := count_media(experience):
        known["images"] = num_images
    return [weigh_turns(sequence.with_report(**known), experience.messages) for sequence in sequences]


def _encode_tool_texts(
    tokenizer: ChatTokenizer,
    messages: Items[Message],
    tools: Items[Json],
    num_prompt: int,
    options: EncodeOptions,
) -> list[Sequence]:
    """Encode a conversation with tools written as text; message indices refer to the original messages."""
    chat = write_tools_as_text(messages, tools)
    start = next((n for n, origin in enumerate(chat.origins) if origin >= num_prompt), len(chat.origins))
    try:
        sequences = encode_turns(tokenizer, chat.messages, None, options, train_from=start)
    except Refusal as refusal:
        message = None if refusal.message is None else chat.origins[refusal.message]
        raise Refusal(refusal.reason, refusal.detail, message=message) from None
    return [sequence.renumber(chat.origins) for sequence in sequences]


def is_cut(answer: Experience | Side) -> bool:
    """Return whether a token limit cut the last answer short: the model sampled no stop token."""
    return answer.truncate_status == "response_truncated"


def drop_stop(sequence: Sequence) -> Sequence:
    """Remove the stop token of the last turn, which was cut short, and everything after it."""
    trained = np.flatnonzero(sequence.mask)  # the last one is the stop of the last turn, if it has one
    if not len(trained) or sequence.paint[trained[-1]] != Paint.STOP:
        return sequence
    end, turn = int(trained[-1]), int(sequence.message_index[trained[-1]])
    report = msgspec.structs.replace(sequence.report, unstopped=(*sequence.report.unstopped, turn))
    return msgspec.structs.replace(sequence.take(np.arange(end)), report=report)


def split_turns(sequence: Sequence) -> dict[int, RecordedTurn]:
    """Split a recorded sequence into the ids sampled in each turn, by message."""
    turns = {}
    for start, end in find_mask_spans(sequence.mask).tolist():
        turn = int(sequence.message_index[start])
        if turn < 0:
            raise Refusal("recorded_ids", "not exactly one sampled span for each turn, so no turn has ids of its own")
        logprobs = None if sequence.logprobs is None else tuple(sequence.logprobs[start:end].tolist())
        turns[turn] = RecordedTurn(tuple(sequence.ids[start:end].tolist()), logprobs)
    return turns


def build_from_arrays(tokenizer: ChatTokenizer, experience: Experience) -> Sequence:
    """Build a sequence from the recorded ids of an experience."""
    assert experience.tokens is not None
    assert experience.prompt_length is not None
    arrays = experience.tokens.astype(np.int32), experience.prompt_length, experience.action_mask, experience.logprobs
    return build_sequence(tokenizer, *arrays, *conversation_of(experience))


def build_sequence(
    tokenizer: ChatTokenizer,
    ids: Array,
    prompt_length: int,
    action_mask: Array | None,
    response_logprobs: Array | None,
    prompt: Items[Message],
    completion: Items[Message],
) -> Sequence:
    """Build a sequence from recorded ids; messages are known if each generated one has its masked span."""
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(tokenizer.is_control):
        detail = f"ids up to {int(ids.max())} were recorded with another tokenizer: this one has fewer"
        raise Refusal("recorded_ids", detail)
    # Recorded arrays cover only the response: extend them to the whole sequence.
    mask = np.zeros(len(ids), dtype=bool)
    mask[prompt_length:] = response_mask(len(ids) - prompt_length, action_mask)
    if not mask.any():
        raise Refusal("not_generated", "the recorded mask is empty")
    logprobs = None
    if response_logprobs is not None:
        logprobs = np.zeros(len(ids), dtype=np.float32)
        logprobs[prompt_length:] = response_logprobs
    message_index = np.full(len(ids), -1, dtype=np.int32)
    spans = find_mask_spans(mask)
    generated = [len(prompt) + number for number, message in enumerate(completion) if message.is_generated]
    if len(generated) == len(spans):
        for (start, stop), message in zip(spans, generated, strict=True):
            message_index[start:stop] = message
    paint = np.where(mask, Paint.GENERATED, Paint.TEMPLATE).astype(np.int8)
    differs = _find_edited_turns(tokenizer, ids[mask], len(prompt), completion)
    report = Report(source="recorded", num_turns=len(spans), text_differs=differs)
    return Sequence(ids=ids, mask=mask, message_index=message_index, paint=paint, logprobs=logprobs, report=report)


def response_mask(length: int, action_mask: Array | None) -> Array:
    """Return the mask of sampled tokens of a response; without an action mask, all of them."""
    return np.ones(length, bool) if action_mask is None else action_mask.astype(bool)


def find_mask_spans(mask: Array) -> Array:
    """Return the runs of trained tokens as (start, stop), (N, 2)."""
    # Padded with a 0 at both ends, the mask changes alternately at a start and a stop.
    edges: Array = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return edges.reshape(-1, 2)


def _find_edited_turns(
    tokenizer: ChatTokenizer, generated: Array, num_prompt: int, completion: Items[Message]
) -> tuple[int, ...]:
    """Return the turns whose text the ids do not spell; refuse ids that spell none: another tokenizer's."""
    texts = {
        num_prompt + number: message.content.strip()
        for number, message in enumerate(completion)
        if message.is_generated and isinstance(message.content, str) and message.content.strip()
    }
    differing = tuple(texts)
    for skip_control in (False, True) if texts else ():
        spelling = tokenizer.decode(generated, skip_control=skip_control)
        differing = tuple(turn for turn in differing if texts[turn] not in spelling)
        if not differing:
            break
    if texts and len(differing) == len(texts):
        detail = "the ids spell none of the generated messages: they were recorded with another tokenizer"
        raise Refusal("recorded_ids", detail, message=differing[0])
    return differing


def encode_recorded(
    tokenizer: Any,
    messages: Messages,
    recorded: Mapping[int, RecordedTurn],
    tools: Items[Json] | None = None,
    *,
    added: Mapping[int, str] | None = None,
    allow_images: bool = False,
) -> Sequence:
    """Encode a conversation whose generated turns have recorded ids: message index -> sampled ids.

    `added` maps messages to the text at their end that is painted as a hint.
    """
    prepared = prepare_chat(chat_tokenizer(tokenizer), messages, tools, allow_images=allow_images)
    if not recorded or any(index not in prepared.generated for index in recorded):
        raise Refusal("recorded_ids", f"ids are recorded for {sorted(recorded)}, generated were {prepared.generated}")
    groups = locate_groups(prepared.tokenizer, prepared.chat, prepared.tools, sorted(recorded), RECORDED)
    return build_from_turns(prepared, prepared.chat, only_group(groups), recorded, added=added)


def build_from_turns(
    prepared: Prepared,
    chat: Chat,
    located: Located,
    recorded: Mapping[int, RecordedTurn],
    *,
    added: Mapping[int, str] | None = None,
) -> Sequence:
    """Build a sequence of a located conversation, with the recorded ids in place of its turns."""
    tokenizer, text = prepared.tokenizer, located.rendered.text
    # Encode the text between turns, copy the turns' ids; a region shrinks if its stop was not sampled.
    parts: list[_Part] = []
    regions, position, stop = [], 0, None
    for region in located.regions:
        between = text[position : region.prompt]
        ids, offsets = tokenizer.encode(between) if position == 0 else encode_continuation(tokenizer, between, stop)
        parts.append(_Part(ids, offsets + position))
        turn = recorded[region.message]
        # The sampled text ends after the stop token, or before it if it was not sampled.
        position = region.end
        if region.stop is not None and not (turn.ids and turn.ids[-1] == tokenizer.added[region.stop]):
            position -= len(region.stop)
        parts.append(_sampled_part(turn, region, position))
        regions.append(region._replace(start=region.prompt, end=position))
        stop = region.stop if position == region.end else None
    if position < len(text):
        ids, offsets = encode_continuation(tokenizer, text[position:], stop)
        parts.append(_Part(ids, offsets + position))
    ids, offsets = np.concatenate([part.ids for part in parts]), np.concatenate([part.offsets for part in parts])
    encoded = index_tokens(tokenizer, ids, offsets, is_split=True)
    mask, message_index, paint = paint_tokens(encoded, located.rendered, regions, chat, find_spans(encoded, regions))
    for message, hint in (added or {}).items():
        _paint_hint(encoded, located, message, hint, paint)
    # The mask by provenance must equal the sampled tokens.
    if not np.array_equal(mask, np.concatenate([np.full(len(part.ids), part.is_sampled) for part in parts])):
        raise Refusal("recorded_ids", "a recorded turn is empty or does not fit its place")
    report = Report(
        source="recorded",
        template=tokenizer.renderer(prepared.tools).hash,
        mode=prepared.mode,
        num_turns=len(regions),
        split=True,
        prompt_dropped=located.prompt_dropped,
        images=located.num_images,
    )
    logprobs = None
    if all(turn.logprobs is not None for turn in recorded.values()):
        known = [np.zeros(len(part.ids)) if part.logprobs is None else part.logprobs for part in parts]
        logprobs = np.concatenate(known).astype(np.float32)
    return Sequence(
        ids=encoded.ids, mask=mask, message_index=message_index, paint=paint, logprobs=logprobs, report=report
    )


def _paint_hint(encoded: Encoded, located: Located, message: int, hint: str, paint: Array) -> None:
    pieces = [piece for piece in located.rendered.pieces if piece.message == message and piece.field == CONTENT]
    if pieces:
        end = pieces[-1].end
        # The hint ends the message's content; the template may have stripped white space there.
        start = max(pieces[-1].start, end - len(hint.strip()))
        paint[(encoded.starts >= start) & (encoded.ends <= end) & (encoded.ends > start)] = Paint.HINT


class _Part(NamedTuple):
    """Ids (N,) with their offsets (N, 2)."""

    ids: Array
    offsets: Array
    logprobs: tuple[float, ...] | None = None
    is_sampled: bool = False


def _sampled_part(turn: RecordedTurn, region: Region, end: int) -> _Part:
    """Each sampled id gets the offsets of the whole turn: their exact spelling does not matter."""
    if turn.logprobs is not None and len(turn.logprobs) != len(turn.ids):
        detail = f"{len(turn.logprobs)} log-probabilities for {len(turn.ids)} ids"
        raise Refusal("recorded_ids", detail, message=region.message)
    span = np.array([[region.prompt, max(end, region.prompt + 1)]], dtype=np.int32)
    offsets = np.tile(span, (len(turn.ids), 1))
    return _Part(np.array(turn.ids, dtype=np.int32), offsets, turn.logprobs, is_sampled=True)


class EncodedSide(NamedTuple):
    """A side's sequence; tokens before `start` are its prompt."""

    sequence: Sequence
    start: int


def encode_recorded_side(
    tokenizer: ChatTokenizer,
    prompt: Items[Message],
    completion: Items[Message],
    source: Experience,
    side: Literal["chosen", "rejected"],
) -> EncodedSide:
    """Encode one side from recorded ids. `source` is the side's experience, or the preference that contains it."""
    answer = source.chosen if side == "chosen" else source.rejected
    own = conversation_of(source, answer)
    # A pair may be a prefix of a longer run: compare its messages with the run's first ones.
    messages, size = (*own.prompt, *own.completion), len(prompt) + len(completion)
    if canonical_messages(messages[:size]) != canonical_messages([*prompt, *completion]):
        raise Refusal("recorded_ids", f"{source.eid.uid} recorded ids of other messages")
    if answer is None:
        return _build_from_experience(tokenizer, source, own, len(prompt), size)
    if len(prompt) != len(own.prompt) or size != len(messages):
        raise Refusal("recorded_ids", f"the ids of {source.eid.uid} do not end where the prompt and this side end")
    assert source.tokens is not None
    assert answer.tokens is not None
    # The preference has the prompt's ids, each side the ids of its answer.
    ids = np.concatenate([source.tokens, answer.tokens]).astype(np.int32)
    start = len(source.tokens)
    return EncodedSide(build_sequence(tokenizer, ids, start, answer.action_mask, answer.logprobs, *own), start)


def count_shared_prompt(tokenizer: ChatTokenizer, chosen: EncodedSide, rejected: EncodedSide) -> int:
    """Count the ids that the prompts of the two sides share.

    Both prompts must spell the same text. Their ids may differ if the prompt contains turns that the two runs sampled
    as different tokens: each side then keeps the recorded ids of its run.
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
    """Return whether the answer of this side was cut short."""
    answer = source.chosen if side == "chosen" else source.rejected
    return is_cut(source if answer is None else answer)


def _build_from_experience(
    tokenizer: ChatTokenizer, source: Experience, own: Conversation, num_prompt: int, size: int
) -> EncodedSide:
    """Encode the first `size` messages of an experience; turns before message `num_prompt` are context."""
    assert source.prompt_length is not None
    whole = build_from_arrays(tokenizer, source)
    messages = (*own.prompt, *own.completion)
    if num_prompt == len(own.prompt) and size == len(messages):
        return EncodedSide(whole, source.prompt_length)
    spans = find_mask_spans(whole.mask)
    turns = [number for number in range(len(own.prompt), len(messages)) if messages[number].is_generated]
    if num_prompt < len(own.prompt):
        raise Refusal("recorded_ids", f"{source.eid.uid} recorded a longer prompt: its turns have no ids of their own")
    if len(turns) != len(spans) or num_prompt not in turns:
        raise Refusal("recorded_ids", f"{source.eid.uid} has {len(spans)} sampled spans for {len(turns)} turns")
    start = int(spans[turns.index(num_prompt)][0])
    end = int(spans[max(place for place, turn in enumerate(turns) if turn < size)][1])
    logprobs = None if whole.logprobs is None else whole.logprobs[start:end]
    parts = messages[:num_prompt], messages[num_prompt:size]
    return EncodedSide(
        build_sequence(tokenizer, whole.ids[:end], start, whole.mask[start:end], logprobs, *parts), start
    )
