"""Raw text to sequences: no chat template, one sequence of the texts one after the other.

    Beautiful is better than| ugly.<eos>        prompt (with the special tokens that the tokenizer puts before a text)
                             ^^^^^^^^^^^        trained: the completion with the end-of-sequence token

The prompt is encoded as the tokenizer encodes a text, its BOS token once: text that was templated already begins with
it. Each completion is encoded apart and continues these ids. The EOS token follows it unless it ends with a stop token;
`drop_stop` takes it away where the answer was cut short. These are the ids of TRL's DPOTrainer for its standard
rows, except where a token would merge across the end of the prompt: there TRL leaves the end of the prompt out, here
the prompt stays what inference is given.
"""

from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np

from pairwright.records.arrays import Array
from pairwright.records.messages import TEXT, Message
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Report, Sequence
from pairwright.tokens.spans.spelling import Controls, Part, encode_parts
from pairwright.tokens.spans.stops import control_pattern
from pairwright.tokens.tokenizer import ChatTokenizer

SOURCE = "text"


def is_raw_text(messages: Items[Any]) -> bool:
    """Whether a conversation is raw text. A Refusal where some messages are and others are not."""
    number = sum(isinstance(message, Message) and message.role == TEXT for message in messages)
    if 0 < number < len(messages):
        detail = f"{number} of {len(messages)} messages are raw text: a conversation is all text or all chat"
        raise Refusal("text_in_chat", detail)
    return number > 0


def encode_raw_text(
    tokenizer: ChatTokenizer,
    messages: Items[Message],
    *,
    train_from: int = 0,
    control_tokens: Controls = "keep",
    require_stop: bool = True,
) -> Sequence:
    """A conversation of raw text as one sequence; trained is what was generated from message `train_from` on."""
    trained = [number >= train_from and message.is_generated for number, message in enumerate(messages)]
    if not any(trained):
        raise Refusal("not_generated", "no text of the completion is marked as generated")
    first = trained.index(True)
    spans = [_encode_prompt(tokenizer, messages[:first], control_tokens)]
    if not len(spans[0].ids):
        detail = "no prompt, and no BOS token in its place: nothing stands before the first token"
        raise Refusal("not_generated", detail, message=first)
    # Then each message by itself, continuing the ids before it.
    last, stop = len(messages) - 1, None
    for number in range(first, len(messages)):
        text, paint = messages[number].text, Paint.TEXT
        if trained[number]:
            paint = Paint.GENERATED
            if number == last:
                text, stop = _add_stop(tokenizer, messages[number], require_stop=require_stop, number=number)
        part = Part(text, () if trained[number] else _find_escaped(tokenizer, text, control_tokens, number))
        ids, _ = encode_parts(tokenizer, [part], continues=True)[part]
        spans.append(_Span(ids, np.full(len(ids), number, np.int32), np.full(len(ids), paint, np.int8)))
    if stop is not None:
        # The stop is the last token of the last message.
        spans[-1].paint[-1:] = Paint.STOP
    message_index = np.concatenate([span.message_index for span in spans])
    report = Report(
        source=SOURCE,
        num_turns=sum(trained),
        split=True,
        stops=() if stop is None else (stop,),
        unstopped=(last,) if trained[last] and stop is None else (),
    )
    return Sequence(
        ids=np.concatenate([span.ids for span in spans]),
        mask=np.isin(message_index, np.flatnonzero(trained)),
        message_index=message_index,
        paint=np.concatenate([span.paint for span in spans]),
        report=report,
    )


class _Span(NamedTuple):
    """Ids, and for each of them its message (-1: the tokenizer's own) and its paint."""

    ids: Array
    message_index: Array
    paint: Array


def _encode_prompt(tokenizer: ChatTokenizer, messages: Items[Message], controls: Controls) -> _Span:
    """What inference is given: the special tokens before a text, then the text of all messages of the prompt."""
    texts = [message.text for message in messages]
    escaped: list[tuple[int, int]] = []
    # ends[n]: where the text of message n ends in the joined prompt; a token belongs to the message it starts in.
    ends = np.cumsum([len(text) for text in texts], dtype=np.int32)
    for number, text in enumerate(texts):
        start = int(ends[number]) - len(text)
        escaped += [(low + start, high + start) for low, high in _find_escaped(tokenizer, text, controls, number)]
    part = Part("".join(texts), tuple(escaped))
    ids, offsets = encode_parts(tokenizer, [part], continues=False)[part]
    before = _special_prefix(tokenizer)
    if len(before) and not escaped and part.text.startswith(tokenizer.decode(before)):
        before = before[:0]  # templated already
    # (N,) the message of each token: the first one that ends after the token's start.
    owners = np.searchsorted(ends, offsets[:, 0], side="right").astype(np.int32)
    return _Span(
        np.concatenate([before, ids]),
        np.concatenate([np.full(len(before), -1, np.int32), owners]),
        np.concatenate([np.full(len(before), Paint.TEMPLATE, np.int8), np.full(len(ids), Paint.TEXT, np.int8)]),
    )


def _special_prefix(tokenizer: ChatTokenizer) -> Array:
    """The special tokens that the tokenizer puts before a text, such as BOS."""
    if "special_prefix" not in tokenizer.learnt:
        # Special tokens before the first that is none.
        encoding = tokenizer.backend.encode("a", add_special_tokens=True)
        number = encoding.special_tokens_mask.index(0) if 0 in encoding.special_tokens_mask else 0
        tokenizer.learnt["special_prefix"] = np.array(encoding.ids[:number], dtype=np.int32)
    prefix: Array = tokenizer.learnt["special_prefix"]
    return prefix


def _add_stop(tokenizer: ChatTokenizer, message: Message, *, require_stop: bool, number: int) -> tuple[str, str | None]:
    """The text with the stop token after it, and that token; None where it may end without one."""
    text = message.text
    own = next((token for token in sorted(tokenizer.eos) if text.endswith(token)), None)
    if own is not None:
        return text, own
    eos = tokenizer.special_tokens.get("eos_token")
    if eos is None and require_stop:
        raise Refusal("no_stop", "the tokenizer has no EOS token that could end the text", message=number)
    return text + (eos or ""), eos


def _find_escaped(tokenizer: ChatTokenizer, text: str, controls: Controls, number: int) -> tuple[tuple[int, int], ...]:
    """Where text that was not generated spells a control token that is to be encoded as text."""
    if controls == "keep":
        return ()
    matches = list(control_pattern(tokenizer).finditer(text))
    if matches and controls == "refuse":
        raise Refusal("control_tokens", f"its text contains {matches[0].group()!r}", message=number)
    return tuple((match.start(), match.end()) for match in matches)
