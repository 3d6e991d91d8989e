"""Preferences to sequences: the prompt is encoded once, and both sides continue the same ids.

Invariants: the first `prompt_length` ids of both sides are equal and untrained; what follows is each side's own
completion, every generated turn of it trained, tool results not. The two sides are cut alike or not at all.
"""

from collections.abc import Sequence as Items
from typing import Any, Literal

import msgspec
import numpy as np

from pairwright.messages import Json
from pairwright.tokens.encode import Messages, checked_report, painted, prepared
from pairwright.tokens.marks import Chat
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.regions import Located
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spelling import continuation, finished
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer
from pairwright.tokens.turns import located_groups

Truncation = Literal["keep_start", "keep_end", "drop"]


class EncodedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two sequences that start with the same prompt."""

    chosen: Sequence
    rejected: Sequence
    prompt_length: int


def encode_pair(
    tokenizer: Any,
    prompt: Messages,
    chosen: Messages,
    rejected: Messages,
    tools: Items[Json] | None = None,
    *,
    max_length: int | None = None,
    truncation: Truncation = "keep_end",
    require_stop: bool = True,
) -> EncodedPair:
    """A prompt with its two completions. Each side starts at the end of what inference was given for the prompt."""
    ready = chat_tokenizer(tokenizer)
    schemas = ready.schemas(tools)
    sides = [_located_side(ready, prompt, side, schemas, require_stop=require_stop) for side in (chosen, rejected)]
    texts = [located.rendered.text[: located.regions[0].start] for _, located in sides]
    if texts[0] != texts[1]:
        raise Refusal("prompts_differ", "the template renders the prompt differently before the two completions")
    ids, offsets = ready.encode(texts[0])
    encoded = [_encode_side(ready, chat, located, schemas, ids, offsets) for chat, located in sides]
    pair = EncodedPair(chosen=encoded[0], rejected=encoded[1], prompt_length=len(ids))
    return pair if max_length is None else truncate_pair(pair, max_length, truncation)


def truncate_pair(pair: EncodedPair, max_length: int, truncation: Truncation, *, keep_first: int = 0) -> EncodedPair:
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


def _located_side(
    tokenizer: ChatTokenizer, prompt: Messages, side: Messages, tools: list[Json] | None, *, require_stop: bool
) -> tuple[Chat, Located]:
    chat, generated = prepared(tokenizer, [*prompt, *side], tools)
    turns = [index for index in generated if index >= len(prompt)]
    if not turns or turns[0] != len(prompt):
        detail = "a completion starts with a message that the model generated"
        raise Refusal("not_generated", detail, message=len(prompt))
    groups = located_groups(tokenizer, chat, tools, turns, require_stop=require_stop)
    if len(groups) > 1:
        detail = "the template rewrites history within the completion: no one sequence is exact"
        raise Refusal("context_differs", detail, message=turns[0])
    return groups[0]


def _encode_side(
    tokenizer: ChatTokenizer,
    chat: Chat,
    located: Located,
    tools: list[Json] | None,
    prompt_ids: Any,
    prompt_offsets: Any,
) -> Sequence:
    start = located.regions[0].start
    ids, offsets = continuation(tokenizer, located.rendered.text[start:])
    encoded = finished(
        tokenizer,
        np.concatenate([prompt_ids, ids]),
        np.concatenate([prompt_offsets, offsets + start]),
        is_split=True,
    )
    # A control token of the prompt may have swallowed white space after it; it stays the prompt's.
    encoded.ends[: len(prompt_ids)] = np.minimum(encoded.ends[: len(prompt_ids)], start)
    mask, message_index, paint = painted(encoded, located.rendered, located.regions, chat)
    report = checked_report(tokenizer, tools, encoded, located)
    return Sequence(ids=encoded.ids, mask=mask, message_index=message_index, paint=paint, report=report)
