"""Templates that rewrite history: one sequence for each group of turns that share a context.

Each sequence holds what inference saw when its turns were generated, checked by rendering the prefix with the
generation prompt. Turns go together as long as one render is exact for all of them, so a template that keeps its
history gives one sequence, one that drops old reasoning gives one for each user message, and gpt-oss one for each turn.
"""

from collections.abc import Sequence as Items
from typing import Any

from pairwright.records.messages import Json
from pairwright.tokens.encode import (
    Boundaries,
    ControlTokens,
    Messages,
    PrefixPainter,
    encode_chat,
    encode_located,
    is_raw_text,
    prepare_chat,
)
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spans.dropped import refuse_dropped
from pairwright.tokens.spans.regions import Verify, refuse_missing_reasoning
from pairwright.tokens.spans.spelling import PrefixEncoder
from pairwright.tokens.spans.thoughts import MissingReasoning, advise_mode
from pairwright.tokens.spans.turn_groups import locate_groups
from pairwright.tokens.tokenizer import chat_tokenizer


def encode_turns(
    tokenizer: Any,
    messages: Messages,
    tools: Items[Json] | None = None,
    *,
    train_from: int = 0,
    boundaries: Boundaries = "split",
    control_tokens: ControlTokens = "keep",
    require_stop: bool = True,
    verify: Verify = "quick",
    missing_reasoning: MissingReasoning = "close",
    allow_dropped: bool = False,
    allow_images: bool = False,
) -> list[Sequence]:
    """A conversation as as few sequences as are exact, in the order of their turns.

    Options are those of `encode_chat`. Tokens do not reach across the start of a turn ("split"): the prompt has the ids
    that inference had.
    """
    ready = chat_tokenizer(tokenizer)
    if is_raw_text(messages):
        options: Any = {"control_tokens": control_tokens, "require_stop": require_stop}
        return [encode_chat(ready, messages, train_from=train_from, **options)]
    schemas = ready.schemas(tools)
    chat, generated, rewritten_ids = prepare_chat(ready, messages, schemas, allow_images=allow_images)
    turns = [index for index in generated if index >= train_from]
    groups = locate_groups(ready, chat, schemas, turns, require_stop=require_stop, verify=verify)
    for part, located in groups:
        refuse_missing_reasoning(ready, part, schemas, located, missing_reasoning)
    dropped = tuple(item for _, located in groups for item in located.dropped)
    refuse_dropped(dropped, allow=allow_dropped, advice=advise_mode(ready.renderer(schemas), dropped))
    # Prompts of one run begin alike: what they share is encoded and painted once.
    encoder, painter = None, None
    if len(groups) > 1:
        texts, shared = zip(*((located.rendered.text, located.shared.chars) for _, located in groups), strict=True)
        encoder, painter = PrefixEncoder(ready, texts, shared), PrefixPainter()
    return [
        encode_located(
            ready,
            part,
            schemas,
            located._replace(rewritten_ids=rewritten_ids),
            boundaries=boundaries,
            control_tokens=control_tokens,
            encoder=encoder,
            painter=painter,
        )
        for part, located in groups
    ]
