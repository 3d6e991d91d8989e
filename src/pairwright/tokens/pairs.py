"""Preferences to sequences: the prompt is encoded once, and both sides continue the same ids.

Invariants: the first `prompt_length` ids of both sides are equal and untrained; what follows is each side's own
completion, every generated turn of it trained, tool results not. The two sides are cut alike or not at all.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from pairwright.arrays import Array
from pairwright.messages import Json, Message, mark_generated
from pairwright.records import Experience
from pairwright.tokens.encode import ControlTokens, Messages, checked_report, painted, prepared
from pairwright.tokens.marks import Chat
from pairwright.tokens.recorded_pairs import recorded_pair
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.regions import Located, Verify
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spelling import Part, encode_parts, escaped_controls, finished
from pairwright.tokens.text import encode_raw_text, is_raw_text
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer
from pairwright.tokens.truncate import Truncation
from pairwright.tokens.turns import located_groups

Encodings = dict[Part, tuple[Array, Array]]
Found = TypeVar("Found")
_AT_ONCE = 64


class EncodedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two sequences that start with the same prompt."""

    chosen: Sequence
    rejected: Sequence
    prompt_length: int


class PairMessages(NamedTuple):
    """What is compared. `recorded` are the experiences of the two sides, whose own ids are used where they fit."""

    prompt: Messages
    chosen: Messages
    rejected: Messages
    tools: Items[Json] | None = None
    recorded: tuple[Experience, Experience] | None = None


def encode_pair(
    tokenizer: Any,
    prompt: Messages,
    chosen: Messages,
    rejected: Messages,
    tools: Items[Json] | None = None,
    *,
    recorded: tuple[Experience, Experience] | None = None,
    max_length: int | None = None,
    truncation: Truncation = "keep_end",
    keep_first: int = 0,
    control_tokens: ControlTokens = "keep",
    require_stop: bool = True,
    verify: Verify = "quick",
) -> EncodedPair:
    """A prompt with its two completions. Each side starts at the end of what inference was given for the prompt."""
    pair = PairMessages(prompt, chosen, rejected, tools, recorded)
    (found,) = encode_pairs(
        tokenizer, [pair], max_length=max_length, truncation=truncation, keep_first=keep_first,
        control_tokens=control_tokens, require_stop=require_stop, verify=verify,
    )  # fmt: skip
    if isinstance(found, TokensError):
        raise found
    return found


def encode_pairs(
    tokenizer: Any,
    pairs: Iterable[PairMessages],
    *,
    max_length: int | None = None,
    truncation: Truncation = "keep_end",
    keep_first: int = 0,
    control_tokens: ControlTokens = "keep",
    require_stop: bool = True,
    verify: Verify = "quick",
) -> Iterator[EncodedPair | TokensError]:
    """Many pairs in their order, each as `encode_pair` gives it, or the refusal in its place.

    A few dozen are rendered, then encoded, then masked at a time, which is faster than one by one, and a prompt or
    completion that several of them share is encoded once.
    """
    ready = chat_tokenizer(tokenizer)
    source = iter(pairs)
    while group := list(islice(source, _AT_ONCE)):
        drafts = [_attempt(_drafted, ready, pair, control_tokens, require_stop, verify) for pair in group]
        known = [draft for draft in drafts if isinstance(draft, _Draft)]
        prompts = list(dict.fromkeys(draft.prompt for draft in known))
        tails = list(dict.fromkeys(tail for draft in known for tail in draft.tails))
        encodings = encode_parts(ready, prompts, continues=False), encode_parts(ready, tails, continues=True)
        for draft in drafts:
            found = _attempt(_encoded, ready, draft, *encodings) if isinstance(draft, _Draft) else draft
            if isinstance(found, EncodedPair) and max_length is not None:
                found = _attempt(partial(truncate_pair, keep_first=keep_first), found, max_length, truncation)
            yield found


def truncate_pair(
    pair: EncodedPair, max_length: int, truncation: Truncation = "keep_end", *, keep_first: int = 0
) -> EncodedPair:
    """Cut the shared prompt until the longer side fits; the completions stay whole.

    "keep_start" keeps the prompt's first tokens, "keep_end" its last ones (and the first `keep_first`, such as a BOS
    token or the system prompt), "drop" refuses. A completion that does not fit by itself is refused.
    """
    longest = max(len(pair.chosen), len(pair.rejected))
    if longest <= max_length:
        return pair
    room = max_length - (longest - pair.prompt_length)
    if truncation == "drop" or room < max(1, keep_first):
        completion = longest - pair.prompt_length
        raise Refusal("too_long", f"{longest} tokens, {completion} of them completion, of at most {max_length}")
    if truncation == "keep_start":
        kept = np.arange(room)
    else:
        first = np.arange(keep_first)
        kept = np.concatenate([first, np.arange(pair.prompt_length - (room - keep_first), pair.prompt_length)])
    return EncodedPair(
        chosen=_keep(pair.chosen, kept, pair.prompt_length),
        rejected=_keep(pair.rejected, kept, pair.prompt_length),
        prompt_length=room,
    )


def _keep(side: Sequence, kept: Any, prompt_length: int) -> Sequence:
    return side.take(np.concatenate([kept, np.arange(prompt_length, len(side))]))


class _Draft(NamedTuple):
    """A pair that is rendered and located, but not encoded."""

    sides: list[tuple[Chat, Located]]
    tools: list[Json] | None
    prompt: Part
    tails: list[Part]
    unrecorded: str


def _attempt(step: Callable[..., Found], *arguments: Any) -> Found | TokensError:
    try:
        return step(*arguments)
    except TokensError as error:
        return error


def _drafted(
    tokenizer: ChatTokenizer, pair: PairMessages, control_tokens: ControlTokens, require_stop: bool, verify: Verify
) -> _Draft | EncodedPair:
    recorded = _recorded(tokenizer, pair)
    if isinstance(recorded, EncodedPair):
        return recorded
    if is_raw_text([*pair.prompt, *pair.chosen, *pair.rejected]):
        return _text_pair(tokenizer, pair, recorded, control_tokens=control_tokens, require_stop=require_stop)
    tools = tokenizer.schemas(pair.tools)
    sides = [
        _located_side(tokenizer, pair.prompt, side, tools, require_stop=require_stop, verify=verify)
        for side in (pair.chosen, pair.rejected)
    ]
    starts = [located.regions[0].start for _, located in sides]
    texts = [located.rendered.text for _, located in sides]
    if texts[0][: starts[0]] != texts[1][: starts[1]]:
        raise Refusal("prompts_differ", "the template renders the prompt differently before the two completions")
    parts = [_parts(tokenizer, located, control_tokens) for _, located in sides]
    return _Draft(sides, tools, parts[0][0], [tail for _, tail in parts], recorded)


def _text_pair(
    tokenizer: ChatTokenizer, pair: PairMessages, unrecorded: str, *, control_tokens: ControlTokens, require_stop: bool
) -> EncodedPair:
    """A pair of raw text: both sides continue the ids of the prompt."""
    start = len(pair.prompt)
    sides = []
    for completion in (pair.chosen, pair.rejected):
        texts = [message for message in completion if isinstance(message, Message)]
        prompt = [message for message in pair.prompt if isinstance(message, Message)]
        sequence = encode_raw_text(
            tokenizer, [*prompt, *mark_generated(tuple(texts))], train_from=start, control_tokens=control_tokens,
            require_stop=require_stop,
        )  # fmt: skip
        if unrecorded:
            report = msgspec.structs.replace(sequence.report, unrecorded=unrecorded)
            sequence = msgspec.structs.replace(sequence, report=report)
        sides.append(sequence)
    return EncodedPair(chosen=sides[0], rejected=sides[1], prompt_length=int(np.argmax(sides[0].mask)))


def _parts(tokenizer: ChatTokenizer, located: Located, control_tokens: ControlTokens) -> tuple[Part, Part]:
    """The prompt and the rest, each with the control tokens that are meant as text."""
    text, cut = located.rendered.text, located.regions[0].start
    escaped = escaped_controls(tokenizer, located.rendered, located.regions, control_tokens)
    before = tuple((start, end) for start, end in escaped if start < cut)
    after = tuple((start - cut, end - cut) for start, end in escaped if start >= cut)
    return Part(text[:cut], before), Part(text[cut:], after)


def _recorded(tokenizer: ChatTokenizer, pair: PairMessages) -> EncodedPair | str:
    """The pair's recorded ids, or why they are not used; empty where there are none."""
    if pair.recorded is None:
        return ""
    given = (pair.prompt, pair.chosen, pair.rejected)
    prompt, chosen, rejected = ([message for message in side if isinstance(message, Message)] for side in given)
    if sum(map(len, given)) != len(prompt) + len(chosen) + len(rejected):
        return "the messages are no records"
    found = recorded_pair(tokenizer, prompt, chosen, rejected, pair.recorded)
    return found if isinstance(found, str) else EncodedPair(**found._asdict())


def _located_side(
    tokenizer: ChatTokenizer,
    prompt: Messages,
    side: Messages,
    tools: list[Json] | None,
    *,
    require_stop: bool,
    verify: Verify,
) -> tuple[Chat, Located]:
    chat, generated = prepared(tokenizer, [*prompt, *side], tools)
    turns = [index for index in generated if index >= len(prompt)]
    if not turns or turns[0] != len(prompt):
        detail = "a completion starts with a message that the model generated"
        raise Refusal("not_generated", detail, message=len(prompt))
    groups = located_groups(tokenizer, chat, tools, turns, require_stop=require_stop, verify=verify)
    if len(groups) > 1:
        detail = "the template rewrites history within the completion: no one sequence is exact"
        raise Refusal("context_differs", detail, message=turns[0])
    return groups[0]


def _encoded(tokenizer: ChatTokenizer, draft: _Draft, prompts: Encodings, tails: Encodings) -> EncodedPair:
    ids, offsets = prompts[draft.prompt]
    chosen, rejected = (
        _encoded_side(tokenizer, side, draft, tail, (ids, offsets), tails[tail])
        for side, tail in zip(draft.sides, draft.tails, strict=True)
    )
    return EncodedPair(chosen=chosen, rejected=rejected, prompt_length=len(ids))


def _encoded_side(
    tokenizer: ChatTokenizer,
    side: tuple[Chat, Located],
    draft: _Draft,
    tail: Part,
    prompt: tuple[Array, Array],
    completion: tuple[Array, Array],
) -> Sequence:
    chat, located = side
    start, size = located.regions[0].start, len(prompt[0])
    encoded = finished(
        tokenizer,
        np.concatenate([prompt[0], completion[0]]),
        np.concatenate([prompt[1], completion[1] + start]),
        is_split=True,
    )
    # A control token of the prompt may have swallowed white space after it; it stays the prompt's.
    encoded.ends[:size] = np.minimum(encoded.ends[:size], start)
    mask, message_index, paint = painted(encoded, located.rendered, located.regions, chat)
    num_controls = len(draft.prompt.escaped) + len(tail.escaped)
    report = checked_report(tokenizer, draft.tools, encoded, located, num_controls=num_controls)
    if draft.unrecorded:
        report = msgspec.structs.replace(report, unrecorded=draft.unrecorded)
    return Sequence(ids=encoded.ids, mask=mask, message_index=message_index, paint=paint, report=report)
