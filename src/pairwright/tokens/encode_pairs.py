"""Encode preferences: the prompt is encoded once, and both sides continue the same ids.

Invariants: the first `prompt_length` ids of both sides are equal and untrained. The completion follows: every generated
turn is trained, tool results are not. Truncation cuts both sides at the same place or not at all.

If a template rewrites history within a completion, no single sequence is exact for all of its turns. The pair is then
reduced to the first turns that differ, after the common context. Later turns have different contexts, so they are not
comparable; the report lists them (`left_out`).
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message, mark_generated
from pairwright.tokens.encode import Messages, Prepared, encode_raw_text, finish_sequence, is_raw_text, prepare_chat
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.recorded import EncodedSide, count_shared_prompt, drop_stop, encode_recorded_side
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence, Truncation
from pairwright.tokens.spans.dropped import refuse_dropped, refuse_media, refuse_media_inputs
from pairwright.tokens.spans.grammar import choose_mode, count_common
from pairwright.tokens.spans.regions import Located, locate_groups
from pairwright.tokens.spans.spelling import Part, encode_parts, find_escaped_controls, index_tokens
from pairwright.tokens.template.tracked_str import Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Offset, chat_tokenizer

Encodings = dict[Part, Offset]
_AT_ONCE = 64  # pairs that are rendered, encoded and masked together
_REWRITES = "the template rewrites history within the completion: no one sequence is exact"
Name = Literal["chosen", "rejected"]
SIDES: tuple[Name, Name] = ("chosen", "rejected")


class EncodedPair(msgspec.Struct, frozen=True, kw_only=True):
    chosen: Sequence
    rejected: Sequence
    prompt_length: int


Sources = tuple[Experience | None, Experience | None]


class PairMessages(NamedTuple):
    """The messages of a pair. `sources` are the experiences of the two sides: a side whose source has recorded ids uses
    them. A preference is the source of both its sides. A side that was `cut` short has no stop token. `recorded` are
    prompt, chosen and rejected side as they were recorded, if the messages to encode are written in another way."""

    prompt: Messages
    chosen: Messages
    rejected: Messages
    tools: Items[Json] | None = None
    sources: Sources = (None, None)
    cut: tuple[bool, bool] = (False, False)
    recorded: tuple[Messages, Messages, Messages] | None = None


def encode_pair(
    tokenizer: Any,
    prompt: Messages,
    chosen: Messages,
    rejected: Messages,
    tools: Items[Json] | None = None,
    options: EncodeOptions = DEFAULT,
    *,
    sources: Sources = (None, None),
    cut: tuple[bool, bool] = (False, False),
) -> EncodedPair:
    """Encode a prompt with two completions. Each side starts at the end of the inference prompt."""
    pair = PairMessages(prompt, chosen, rejected, tools, sources, cut)
    (encoded,) = encode_pairs(tokenizer, [pair], options)
    if isinstance(encoded, TokensError):
        raise encoded
    return encoded


def encode_pairs(
    tokenizer: Any, pairs: Iterable[PairMessages], options: EncodeOptions = DEFAULT
) -> Iterator[EncodedPair | TokensError]:
    """Yield the result of `encode_pair`, or its refusal, for each pair in order.

    Pairs are rendered, encoded and masked in groups of a few dozen, which is faster than one by one. A prompt or
    completion that several pairs of a group share is encoded once.
    """
    ready = chat_tokenizer(tokenizer)
    source = iter(pairs)
    while group := list(islice(source, _AT_ONCE)):
        drafts: list[_Draft | TokensError] = []
        for pair in group:
            try:
                drafts.append(_draft_or_cut(ready, pair, options))
            except TokensError as error:
                drafts.append(error)
        rendered = [side for draft in drafts if isinstance(draft, _Draft) for side in draft.rendered.values()]
        prompts = list(dict.fromkeys(side.prompt for side in rendered))
        tails = list(dict.fromkeys(side.tail for side in rendered))
        encodings = encode_parts(ready, prompts, continues=False), encode_parts(ready, tails, continues=True)
        for item in drafts:
            if isinstance(item, TokensError):
                yield item
                continue
            try:
                encoded = _encode_draft(ready, item, *encodings)
                if options.max_length is not None:
                    cut = options.max_length, options.truncation
                    encoded = truncate_pair(encoded, *cut, keep_first=options.keep_first)
            except TokensError as error:
                yield error
            else:
                yield encoded


def truncate_pair(
    pair: EncodedPair, max_length: int, truncation: Truncation = "keep_end", *, keep_first: int = 0
) -> EncodedPair:
    """Cut the shared prompt until the longer side fits; the completions stay whole.

    "keep_end" keeps the prompt's last tokens (and the first `keep_first`, such as a BOS token or the system prompt).
    "keep_start" would cut the generation prompt, which the completions continue, so it refuses like "drop". A
    completion that does not fit without its prompt is refused.
    """
    longest = max(len(pair.chosen), len(pair.rejected))
    if longest <= max_length:
        return pair
    room = max_length - (longest - pair.prompt_length)  # tokens of the prompt that fit before the longer completion
    # Keep at least one token of the prompt, to predict the first trained token.
    if truncation != "keep_end" or room < max(1, keep_first):
        completion = longest - pair.prompt_length
        raise Refusal("too_long", f"{longest} tokens, {completion} of them completion, of at most {max_length}")
    first = np.arange(keep_first)
    positions = np.concatenate([first, np.arange(pair.prompt_length - (room - keep_first), pair.prompt_length)])
    chosen, rejected = (
        side.take(np.concatenate([positions, np.arange(pair.prompt_length, len(side))]))
        for side in (pair.chosen, pair.rejected)
    )
    return EncodedPair(chosen=chosen, rejected=rejected, prompt_length=room)


class _Rendered(NamedTuple):
    """A side that is rendered and located but not encoded, split into `prompt` and `tail`."""

    prepared: Prepared
    chat: Chat
    located: Located
    prompt: Part
    tail: Part
    is_cut: bool


class _Draft(NamedTuple):
    """A pair whose sides are rendered, or already encoded; `left_out` are the untrained turns of a side."""

    rendered: dict[str, _Rendered]
    encoded: dict[str, EncodedSide]
    left_out: dict[str, tuple[int, ...]]


def _draft_or_cut(tokenizer: ChatTokenizer, pair: PairMessages, options: EncodeOptions) -> _Draft:
    """Draft the whole pair, or only the first turns that differ if a side has no single exact sequence."""
    try:
        return _draft_pair(tokenizer, pair, options)
    except Refusal as refusal:
        if refusal.detail != _REWRITES or pair.recorded is not None:
            raise
        step = _first_difference(pair)
        if step is None:
            raise
        draft = _draft_pair(tokenizer, step, options)
    first = len(step.prompt)
    for name, side in zip(SIDES, (pair.chosen, pair.rejected), strict=True):
        messages = [*pair.prompt, *side]
        draft.left_out[name] = tuple(n for n in range(first + 1, len(messages)) if _is_generated(messages[n]))
    return draft


def _first_difference(pair: PairMessages) -> PairMessages | None:
    """Reduce a pair to the first turns that differ; None if they were not generated, or are the whole pair."""
    shared = count_common(pair.chosen, pair.rejected)
    sides = pair.chosen[shared:], pair.rejected[shared:]
    if not all(sides) or not all(_is_generated(side[0]) for side in sides) or max(map(len, sides)) == 1:
        return None
    cut = tuple(is_cut and len(side) == 1 for is_cut, side in zip(pair.cut, sides, strict=True))
    prompt: Any = [*pair.prompt, *pair.chosen[:shared]]
    return pair._replace(prompt=prompt, chosen=sides[0][:1], rejected=sides[1][:1], cut=(cut[0], cut[1]))


def _is_generated(message: Message | Mapping[str, Any]) -> bool:
    return message.is_generated if isinstance(message, Message) else message.get("role") == "assistant"


def _draft_pair(tokenizer: ChatTokenizer, pair: PairMessages, options: EncodeOptions) -> _Draft:
    """Render and locate both sides of a pair. Sides with recorded ids and raw text are encoded immediately."""
    if not options.allow_images:
        _refuse_recorded_media(pair)
    is_text = is_raw_text([*pair.prompt, *pair.chosen, *pair.rejected])
    draft = _Draft({}, {}, {})
    mode: Json | None = None
    sides = zip(SIDES, (pair.chosen, pair.rejected), pair.sources, pair.cut, strict=True)
    for name, completion, source, is_cut in sides:
        if source is not None and source.tokens is not None and options.recorded == "use":
            prompt, *answers = pair.recorded or (pair.prompt, pair.chosen, pair.rejected)
            answer = _records(answers[SIDES.index(name)])
            draft.encoded[name] = encode_recorded_side(tokenizer, _records(prompt), answer, source, name)
            continue
        if is_text:
            messages = [*_records(pair.prompt), *mark_generated(tuple(_records(completion)))]
            sequence = encode_raw_text(tokenizer, messages, options, train_from=len(pair.prompt))
            start = int(np.argmax(sequence.mask))
            draft.encoded[name] = EncodedSide(drop_stop(sequence) if is_cut else sequence, start)
            continue
        if mode is None:
            mode = _choose_mode(tokenizer, pair)
        messages = [*pair.prompt, *completion]
        prepared = prepare_chat(tokenizer, messages, pair.tools, allow_images=options.allow_images, mode=mode)
        first = len(pair.prompt)
        turns = [index for index in prepared.generated if index >= first]
        if not turns or turns[0] != first:
            detail = "a completion starts with a message that the model generated"
            raise Refusal("not_generated", detail, message=first)
        where = prepared.tokenizer, prepared.chat, prepared.tools
        try:
            groups = locate_groups(*where, turns, options.terms, verify=options.verify)
        except Refusal as refusal:
            raise Refusal(refusal.reason, f"{name}: {refusal.detail}", message=refusal.message) from None
        if len(groups) > 1:
            raise Refusal("context_differs", _REWRITES, message=first)
        chat, located = groups[0]
        refuse_dropped(located.dropped, allow=options.allow_dropped, where=f"{name}: ")
        prompt_part, tail_part = _split_parts(prepared.tokenizer, located, options)
        draft.rendered[name] = _Rendered(prepared, chat, located, prompt_part, tail_part, is_cut)
    # A template may look ahead and render the same prompt differently.
    if len({side.prompt.text for side in draft.rendered.values()}) > 1:
        raise Refusal("prompts_differ", "the template renders the prompt differently before the two completions")
    return draft


def _choose_mode(tokenizer: ChatTokenizer, pair: PairMessages) -> Json:
    """Choose one mode for both sides, which share a prompt: thinking is on if a turn of either side has reasoning."""
    messages = [*pair.prompt, *pair.chosen, *pair.rejected]
    prepared = prepare_chat(tokenizer, messages, pair.tools, allow_images=True, mode={})
    generated = [prepared.chat[index] for index in prepared.generated]
    return choose_mode(tokenizer, tokenizer.renderer(prepared.tools), generated)


def _refuse_recorded_media(pair: PairMessages) -> None:
    """Refuse images of recorded sides, in the messages or beside the ids: recorded ids are not rendered."""
    for side, source in zip((pair.chosen, pair.rejected), pair.sources, strict=True):
        if source is not None:
            refuse_media_inputs(source, allow=False)
            messages = [*pair.prompt, *side]
            contents = [item.content if isinstance(item, Message) else item.get("content") for item in messages]
            refuse_media([{"content": content} for content in contents], allow=False)


def _records(messages: Messages) -> list[Message]:
    records = [message for message in messages if isinstance(message, Message)]
    if len(records) != len(messages):
        raise Refusal("recorded_ids", "recorded ids belong to messages that are records, not dicts")
    return records


def _split_parts(tokenizer: ChatTokenizer, located: Located, options: EncodeOptions) -> tuple[Part, Part]:
    """Split into prompt and tail, with control tokens to encode as text and edges that no token spans."""
    # The first region starts at the end of the prompt; positions in the tail count from there.
    text, cut = located.rendered.text, located.regions[0].prompt
    escaped = find_escaped_controls(tokenizer, located.rendered, located.regions, options.control_tokens)
    before = tuple((start, end) for start, end in escaped if start < cut)
    after = tuple((start - cut, end - cut) for start, end in escaped if start >= cut)
    edges: set[int] = set()
    if options.boundaries == "split" or located.is_joined:
        edges = {edge - cut for region in located.regions for edge in (region.start, region.end) if edge > cut}
    return Part(text[:cut], before), Part(text[cut:], after, tuple(sorted(edges)))


def _encode_draft(tokenizer: ChatTokenizer, draft: _Draft, prompts: Encodings, tails: Encodings) -> EncodedPair:
    """Join the ids of prompt and tail of each side, and mask them."""
    sides = dict(draft.encoded)
    for name, side in draft.rendered.items():
        located = side.located
        (prompt_ids, prompt_offsets), (tail_ids, tail_offsets) = prompts[side.prompt], tails[side.tail]
        # Offsets (N, 2) of the tail count from its start: shift them to positions in the whole text.
        start, size = located.regions[0].prompt, len(prompt_ids)
        encoded = index_tokens(
            tokenizer,
            np.concatenate([prompt_ids, tail_ids]),
            np.concatenate([prompt_offsets, tail_offsets + start]),
            is_split=True,
        )
        num_controls = len(side.prompt.escaped) + len(side.tail.escaped)
        sequence = finish_sequence(side.prepared, side.chat, located, encoded, num_controls)
        sides[name] = EncodedSide(drop_stop(sequence) if side.is_cut else sequence, size)
    for name, turns in draft.left_out.items():
        sides[name] = sides[name]._replace(sequence=sides[name].sequence.with_report(left_out=turns))
    chosen, rejected = sides["chosen"], sides["rejected"]
    # Two rendered sides have the same prompt ids; recorded prompts may differ.
    prompt_length = count_shared_prompt(tokenizer, chosen, rejected) if draft.encoded else chosen.start
    return EncodedPair(chosen=chosen.sequence, rejected=rejected.sequence, prompt_length=prompt_length)
