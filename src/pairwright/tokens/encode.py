"""Encode conversations as sequences: one render, one encode, the mask by provenance.

Invariants of `encode_chat`: the ids equal those of `apply_chat_template`; the mask covers exactly what the model
generated in each trained turn, from the end of the inference prompt up to and including the stop token. If this is
impossible, a Refusal names the turn and the reason. Raw text has no template: see `encode_raw_text`.

Each sequence of `encode_turns` holds what inference saw when its turns were generated. Turns with the prefix property
share a sequence: a template that keeps its history gives one sequence, one that drops old reasoning gives one for each
user message, and gpt-oss one for each turn.

>>> from tokenizers import Tokenizer, models, pre_tokenizers
>>> words = {"hi": 0, "hello": 1, "ok": 2}
>>> backend = Tokenizer(models.WordLevel(words, unk_token="ok"))
>>> backend.pre_tokenizer = pre_tokenizers.Whitespace()
>>> backend.add_special_tokens(["<user>", "<bot>", "<end>"])
3
>>> template = (
...     "{% for m in messages %}<{{ 'bot' if m.role == 'assistant' else m.role }}>{{ m.content }}<end>{% endfor %}"
...     "{% if add_generation_prompt %}<bot>{% endif %}"
... )
>>> chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
>>> sequence = encode_chat(ChatTokenizer(backend, template, special_tokens={"eos_token": "<end>"}), chat)
>>> [backend.id_to_token(number) for number in sequence.ids.tolist()]
['<user>', 'hi', '<end>', '<bot>', 'hello', '<end>']
>>> sequence.mask.tolist()
[False, False, False, False, True, True]
>>> sequence.message_index.tolist()
[-1, 0, -1, -1, 1, 1]
"""

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairwright.records.arrays import Array
from pairwright.records.messages import TEXT, Json, Message, count_ids
from pairwright.tokens.encode_options import DEFAULT, WHOLE, EncodeOptions
from pairwright.tokens.message_dialect import adapt_dicts, adapt_records
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Report, Sequence
from pairwright.tokens.spans.control_tokens import control_pattern
from pairwright.tokens.spans.dropped import refuse_dropped, refuse_media
from pairwright.tokens.spans.grammar import choose_mode
from pairwright.tokens.spans.regions import Group, Located, Region, locate_groups, only_group
from pairwright.tokens.spans.spelling import Controls, Encoded, Part, PrefixEncoder, encode_parts, encode_text
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import CALL, CALL_ID, REASONING, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

Messages = Items[Message] | Items[Mapping[str, Any]]
Spans = tuple[list[int], list[int]]  # token spans of regions: starts, and exclusive ends

_PAINT_OF_ROLE = {"system": Paint.SYSTEM, "developer": Paint.SYSTEM, "user": Paint.USER, "assistant": Paint.ASSISTANT}
_PAINT_OF_FIELD = {CALL: Paint.CALL, CALL_ID: Paint.CALL, REASONING: Paint.REASONING}


def encode_chat(
    tokenizer: Any,
    messages: Messages,
    tools: Items[Json] | None = None,
    options: EncodeOptions = WHOLE,
    *,
    train_from: int = 0,
) -> Sequence:
    """Encode a conversation as one sequence; raise a Refusal if the law needs several.

    tokenizer       a ChatTokenizer, a model's folder, or a transformers fast tokenizer
    messages        records, or chat dicts
    options         by default the text is encoded as a whole, as `apply_chat_template` does
    train_from      turns before this message are context
    """
    ready = chat_tokenizer(tokenizer)
    if is_raw_text(messages):
        return encode_raw_text(ready, _texts(messages), options, train_from=train_from)
    prepared, groups = _locate_turns(ready, messages, tools, options, train_from)
    located = only_group(groups)
    refuse_dropped(located.dropped, allow=options.allow_dropped)
    return encode_located(prepared, prepared.chat, located, options)


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
        return [encode_raw_text(ready, _texts(messages), options, train_from=train_from)]
    prepared, groups = _locate_turns(ready, messages, tools, options, train_from)
    refuse_dropped(tuple(item for _, located in groups for item in located.dropped), allow=options.allow_dropped)
    # Prompts of one run share a prefix, which is encoded once.
    encoder = None
    if len(groups) > 1:
        encoder = PrefixEncoder(prepared.tokenizer, [located.rendered.text for _, located in groups])
    return [encode_located(prepared, part, located, options, encoder=encoder) for part, located in groups]


def _locate_turns(
    tokenizer: ChatTokenizer, messages: Messages, tools: Items[Json] | None, options: EncodeOptions, train_from: int
) -> tuple["Prepared", list[Group]]:
    prepared = prepare_chat(tokenizer, messages, tools, allow_images=options.allow_images)
    turns = [index for index in prepared.generated if index >= train_from]
    where = prepared.tokenizer, prepared.chat, prepared.tools
    return prepared, locate_groups(*where, turns, options.terms, verify=options.verify)


def _texts(messages: Messages) -> list[Message]:
    return [message for message in messages if isinstance(message, Message)]


class Prepared(NamedTuple):
    """A conversation in the form that the template takes."""

    tokenizer: ChatTokenizer  # with the template in the record's mode
    chat: Chat
    tools: list[Json] | None
    generated: list[int]  # indices of the messages that the model generated
    rewritten_ids: int  # number of rewritten call ids
    mode: Json  # variables that switch thinking on or off, because the record has reasoning or lacks it


def prepare_chat(
    tokenizer: ChatTokenizer,
    messages: Messages,
    tools: Items[Json] | None,
    *,
    allow_images: bool = False,
    mode: Json | None = None,
) -> Prepared:
    """Convert messages to the template's form; `mode` is by default theirs: thinking, if a turn has reasoning."""
    if not messages:
        raise Refusal("not_generated", "a conversation without messages")
    schemas = tokenizer.schemas(tools)
    records = _texts(messages)
    if len(records) == len(messages):
        if any(record.role == TEXT for record in records):
            raise Refusal("text_in_chat", "no template renders raw text")
        _refuse_ids(records)
        chat, rewritten = adapt_records(tokenizer, records, schemas)
        generated = [index for index, record in enumerate(records) if record.is_generated]
    else:
        dicts = [message for message in messages if not isinstance(message, Message)]
        chat, rewritten = adapt_dicts(tokenizer, dicts, schemas)
        if len(chat) != len(messages):
            raise Refusal("not_generated", "messages are either all records or all dicts")
        generated = [index for index, message in enumerate(chat) if message.get("role") == "assistant"]
    refuse_media(chat, allow=allow_images)
    if mode is None:
        mode = choose_mode(tokenizer, tokenizer.renderer(schemas), [chat[index] for index in generated])
    return Prepared(tokenizer.with_variables(mode), chat, schemas, generated, rewritten, mode)


def encode_located(
    prepared: Prepared,
    chat: Chat,
    located: Located,
    options: EncodeOptions,
    *,
    encoder: PrefixEncoder | None = None,
) -> Sequence:
    """Encode `chat`, the conversation or a prefix of it, whose regions are known."""
    encoded, num_controls = encode_text(
        prepared.tokenizer,
        located.rendered,
        located.regions,
        boundaries="split" if located.is_joined else options.boundaries,
        controls=options.control_tokens,
        encoder=encoder,
    )
    return finish_sequence(prepared, chat, located, encoded, num_controls)


def finish_sequence(prepared: Prepared, chat: Chat, located: Located, encoded: Encoded, num_controls: int) -> Sequence:
    """Check the tokens, and add mask, paint and report; `num_controls` control tokens are encoded as text."""
    regions = located.regions
    spans = find_spans(encoded, regions)
    mask, message_index, paint = paint_tokens(encoded, located.rendered, regions, chat, spans)
    merged = _check_tokens(prepared.tokenizer, encoded, located.rendered, regions, spans)
    report = Report(
        template=prepared.tokenizer.renderer(prepared.tools).hash,
        mode=prepared.mode,
        num_turns=len(regions),
        rules=tuple([region.rule for region in regions]),
        added_tokens=_count_added(encoded, regions, spans),
        declared=tuple([region.message for region in regions if region.is_declared]),
        dropped=located.dropped,
        prompt_dropped=located.prompt_dropped,
        images=located.num_images,
        rewritten_ids=prepared.rewritten_ids,
        merged=merged,
        unstopped=tuple([region.message for region in regions if region.stop is None]),
        stops=tuple(sorted({region.stop for region in regions if region.stop is not None})),
        control_tokens=num_controls,
        probed=located.probed,
        split=encoded.is_split,
    )
    return Sequence(ids=encoded.ids, mask=mask, message_index=message_index, paint=paint, report=report)


def _count_added(encoded: Encoded, regions: list[Region], spans: Spans) -> int:
    """Count added tokens: those of thoughts that were closed before a turn, and stops that no render shows."""
    added = sum(region.end_added for region in regions)
    for region, low in zip(regions, spans[0], strict=True):
        if region.start > region.prompt:
            added += low - int(encoded.starts.searchsorted(np.int32(region.prompt), side="left"))
    return added


def paint_tokens(
    encoded: Encoded, rendered: Rendered, regions: list[Region], chat: Chat, spans: Spans
) -> tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int8]]:
    """Return mask, message and paint of every token, by the origin of its text; `spans` are the regions' tokens."""
    size = len(encoded.ids)
    mask, message_index = np.zeros(size, dtype=bool), np.full(size, -1, np.int32)
    paint, generated = np.zeros(size, np.int8), np.full(size, Paint.GENERATED, np.int8)
    pieces = [piece for piece in rendered.pieces if piece.end > piece.start]
    for (_, _, message, field), low, high in zip(pieces, *_find_overlaps(encoded, pieces), strict=True):
        message_index[low:high] = message  # a token with text of two pieces belongs to the later one
        paint[low:high] = _PAINT_OF_ROLE.get(str(chat[message].get("role")), Paint.TOOL)
        generated[low:high] = _PAINT_OF_FIELD.get(field, Paint.GENERATED)
    # Regions are painted last: they override the pieces.
    for region, low, high in zip(regions, *spans, strict=True):
        mask[low:high] = True
        message_index[low:high] = region.message
        paint[low:high] = generated[low:high]
        if region.stop is not None and high > low:
            paint[high - 1] = Paint.STOP
    return mask, message_index, paint


def find_spans(encoded: Encoded, regions: list[Region]) -> Spans:
    """Find the tokens of regions; a control token that only absorbs white space of its region is not one."""
    lows, highs = _find_overlaps(encoded, regions)
    for number, (region, low, high) in enumerate(zip(regions, lows, highs, strict=True)):
        if low < high and encoded.starts[low] < region.start and encoded.is_control[encoded.ids[low]]:
            lows[number] = low + 1
    return lows, list(map(max, lows, highs))


def _find_overlaps(encoded: Encoded, parts: Items[Region] | Items[Piece]) -> Spans:
    """Find the tokens that overlap each part of the text: starts, and exclusive ends."""
    lows = encoded.ends.searchsorted(np.array([part.start for part in parts], np.int32), side="right")
    highs = encoded.starts.searchsorted(np.array([part.end for part in parts], np.int32), side="left")
    return lows.tolist(), highs.tolist()


def _check_tokens(
    tokenizer: ChatTokenizer, encoded: Encoded, rendered: Rendered, regions: list[Region], spans: Spans
) -> int:
    """Count tokens that begin before a turn; refuse text of other messages, and a stop that is no separate token."""
    merged = 0
    firsts: list[int] = []
    for region, low, high in zip(regions, *spans, strict=True):
        if region.stop is not None and (low == high or encoded.ids[high - 1] != tokenizer.added[region.stop]):
            raise Refusal("no_stop", f"the stop {region.stop!r} is not a token of its own", message=region.message)
        if low == high:
            continue
        outside = []  # character ranges that tokens of the turn cover beyond its region
        if encoded.starts[low] < region.start:
            merged += 1
            outside.append((int(encoded.starts[low]), region.start))
        if encoded.ends[high - 1] > region.end:
            outside.append((region.end, int(encoded.ends[high - 1])))
        for below, above in outside:
            # Pieces are sorted by start: only those between the two bisected positions can overlap the range.
            firsts = firsts or [piece.start for piece in rendered.pieces]
            for piece in rendered.pieces[max(bisect_left(firsts, below) - 1, 0) : bisect_left(firsts, above)]:
                if piece.end > below and piece.start < piece.end and piece.message != region.message:
                    detail = f"a token also holds text of message {piece.message}"
                    raise Refusal("foreign_text", detail, message=region.message)
    return merged


def is_raw_text(messages: Items[Any]) -> bool:
    """Return whether a conversation is raw text; raise a Refusal if only some messages are."""
    number = sum(isinstance(message, Message) and message.role == TEXT for message in messages)
    if 0 < number < len(messages):
        detail = f"{number} of {len(messages)} messages are raw text: a conversation is all text or all chat"
        raise Refusal("text_in_chat", detail)
    return number > 0


def _refuse_ids(messages: Items[Any]) -> None:
    for index, message in enumerate(messages):
        if isinstance(message, Message) and count_ids(message):
            raise Refusal("only_ids", "token ids were recorded, and there is no text to encode", message=index)


def encode_raw_text(
    tokenizer: ChatTokenizer, messages: Items[Message], options: EncodeOptions, *, train_from: int = 0
) -> Sequence:
    """Encode raw text, without a template, as one sequence; generated messages from `train_from` on are trained.

        Beautiful is better than| ugly.<eos>        prompt, after the special tokens that the tokenizer puts before text
                                 ^^^^^^^^^^^        trained: the completion with the EOS token

    Each completion is encoded separately and continues the ids of the prompt. EOS follows unless the completion ends
    with a stop token. The ids equal those of TRL's DPOTrainer for standard rows, except if a token would merge across
    the end of the prompt: TRL then drops the end of the prompt, here the prompt stays the one of inference.
    """
    _refuse_ids(messages)
    control_tokens, require_stop = options.control_tokens, options.require_stop
    trained = [number >= train_from and message.is_generated for number, message in enumerate(messages)]
    if not any(trained):
        raise Refusal("not_generated", "no text of the completion is marked as generated")
    first = trained.index(True)
    spans = [_encode_prompt(tokenizer, messages[:first], control_tokens)]
    if not len(spans[0].ids):
        detail = "no prompt, and no BOS token in its place: nothing is before the first token"
        raise Refusal("not_generated", detail, message=first)
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
        spans[-1].paint[-1:] = Paint.STOP
    message_index = np.concatenate([span.message_index for span in spans])
    report = Report(
        source="text",
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
    """Ids with the message (-1: added by the tokenizer) and paint of each."""

    ids: Array
    message_index: Array
    paint: Array


def _encode_prompt(tokenizer: ChatTokenizer, messages: Items[Message], controls: Controls) -> _Span:
    """Encode the inference prompt: the tokenizer's leading special tokens, then the text of all prompt messages."""
    texts = [message.text for message in messages]
    escaped: list[tuple[int, int]] = []
    # ends[n]: where the text of message n ends in the joined prompt; a token belongs to the message it starts in.
    ends = np.cumsum([len(text) for text in texts], dtype=np.int32)
    for number, text in enumerate(texts):
        start = int(ends[number]) - len(text)
        escaped += [(low + start, high + start) for low, high in _find_escaped(tokenizer, text, controls, number)]
    part = Part("".join(texts), tuple(escaped))
    ids, offsets = encode_parts(tokenizer, [part], continues=False)[part]
    before = tokenizer.learn("special_prefix", lambda: _special_prefix(tokenizer))
    if len(before) and not escaped and part.text.startswith(tokenizer.decode(before)):
        before = before[:0]  # already templated
    # (N,) the message of each token: the first one that ends after the token's start.
    owners = np.searchsorted(ends, offsets[:, 0], side="right").astype(np.int32)
    return _Span(
        np.concatenate([before, ids]),
        np.concatenate([np.full(len(before), -1, np.int32), owners]),
        np.concatenate([np.full(len(before), Paint.TEMPLATE, np.int8), np.full(len(ids), Paint.TEXT, np.int8)]),
    )


def _special_prefix(tokenizer: ChatTokenizer) -> Array:
    """Return the special tokens that the tokenizer puts before a text, such as BOS."""
    encoding = tokenizer.backend.encode("a", add_special_tokens=True)
    number = encoding.special_tokens_mask.index(0) if 0 in encoding.special_tokens_mask else 0
    return np.array(encoding.ids[:number], dtype=np.int32)


def _add_stop(tokenizer: ChatTokenizer, message: Message, *, require_stop: bool, number: int) -> tuple[str, str | None]:
    """Return the text with its stop token appended, and that token; None if there is none and none is required."""
    text = message.text
    own = next((token for token in sorted(tokenizer.eos) if text.endswith(token)), None)
    if own is not None:
        return text, own
    eos = tokenizer.special_tokens.get("eos_token")
    if eos is None and require_stop:
        raise Refusal("no_stop", "the tokenizer has no EOS token that could end the text", message=number)
    return text + (eos or ""), eos


def _find_escaped(tokenizer: ChatTokenizer, text: str, controls: Controls, number: int) -> tuple[tuple[int, int], ...]:
    """Find control tokens in text that was not generated; they are encoded as text."""
    if controls == "keep":
        return ()
    matches = list(control_pattern(tokenizer).finditer(text))
    if matches and controls == "refuse":
        raise Refusal("control_tokens", f"its text contains {matches[0].group()!r}", message=number)
    return tuple((match.start(), match.end()) for match in matches)
