"""Encode a conversation as the fewest sequences that the law allows.

Each sequence holds what inference saw when its turns were generated. Turns with the prefix property share a sequence:
a template that keeps its history gives one sequence, one that drops old reasoning gives one for each user message, and
gpt-oss one for each turn.
"""

from collections.abc import Sequence as Items
from typing import Any

from pairwright.records.messages import Json
from pairwright.tokens.encode import (
    Messages,
    encode_chat,
    encode_located,
    is_raw_text,
    prepare_chat,
)
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spans.dropped import refuse_dropped
from pairwright.tokens.spans.regions import locate_groups
from pairwright.tokens.spans.spelling import PrefixEncoder
from pairwright.tokens.tokenizer import chat_tokenizer


def encode_turns(
    tokenizer: Any,
    messages: Messages,
    tools: Items[Json] | None = None,
    options: EncodeOptions = DEFAULT,
    *,
    train_from: int = 0,
) -> list[Sequence]:
    """Encode a conversation as the fewest sequences that the law allows, in turn order; arguments as for
    `encode_chat`."""
    ready = chat_tokenizer(tokenizer)
    if is_raw_text(messages):
        return [encode_chat(ready, messages, None, options, train_from=train_from)]
    prepared = prepare_chat(ready, messages, tools, allow_images=options.allow_images)
    turns = [index for index in prepared.generated if index >= train_from]
    where = prepared.tokenizer, prepared.chat, prepared.tools
    groups = locate_groups(*where, turns, options.terms, verify=options.verify)
    refuse_dropped(tuple(item for _, located in groups for item in located.dropped), allow=options.allow_dropped)
    # Prompts of one run share a prefix, which is encoded once.
    encoder = None
    if len(groups) > 1:
        encoder = PrefixEncoder(prepared.tokenizer, [located.rendered.text for _, located in groups])
    return [encode_located(prepared, part, located, options, encoder=encoder) for part, located in groups]
