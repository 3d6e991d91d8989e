"""Encoding with a tokenizer that implements only `TokenizerLike`: a stub, a slow tokenizer, or one without a chat
template.

Only texts are encoded: no tool calls, no reasoning, no stop tokens. With a chat template the text of a turn is located
among the ids of its message; without one the ids of the texts are concatenated. A conversation is refused unless every
turn is located exactly.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, truncate_pair
from pairwright.tokens.hints import Hint
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Paint, Report
from pairwright.tokens.sequence import Sequence as TokenSequence
from pairwright.tokens.teacher_sequences import Distillation

_HINT = -1  # number of a message that only the teacher gets


class TokenizerLike(Protocol):
    """The minimal interface of a tokenizer for the collator. Tokenizers of transformers implement it."""

    pad_token_id: int

    def __call__(self, text: str | list[str], **kwargs: Any) -> Any:
        """Return {"input_ids": ids} of a text."""
        ...

    def apply_chat_template(self, messages: list[Json], **kwargs: Any) -> Any:
        """Return the ids of a conversation, or {"input_ids": ids}."""
        raise NotImplementedError  # a stub without a template


class StubEncoder:
    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer

    def encode_trace(self, trace: Experience) -> list[TokenSequence]:
        sequence = self._encode(_texts_of(trace.messages))
        dropped = tuple((number, "tool_calls") for number, item in enumerate(trace.messages) if item.tool_calls)
        return [msgspec.structs.replace(sequence, report=Report(dropped=dropped))]

    def distill(self, trace: Experience, hints: Sequence[Hint]) -> list[Distillation]:
        """Return one item: the teacher gets each hint as a system message before its turn."""
        hint_of = {hint.target: hint.text for hint in hints if trace.messages[hint.target].text}
        if not hint_of:
            return []
        texts = _texts_of(trace.messages)
        hinted: list[tuple[int, Message]] = []
        for number, message in texts:
            if number in hint_of:
                hinted.append((_HINT, Message("system", hint_of[number])))
            hinted.append((number, message))
        student, teacher = self._encode(texts), self._encode(hinted)
        student_index, teacher_index = (
            np.flatnonzero(side.mask & np.isin(side.message_index, list(hint_of))).astype(np.int32)
            for side in (student, teacher)
        )
        return [
            Distillation(student=student, teacher=teacher, student_index=student_index, teacher_index=teacher_index)
        ]

    def encode_pairs(self, pairs: Iterable[PairMessages], max_length: int) -> Iterator[EncodedPair | TokensError]:
        for pair in pairs:
            try:
                yield truncate_pair(self._encode_pair(pair), max_length)
            except TokensError as error:
                yield error

    def _encode_pair(self, pair: PairMessages) -> EncodedPair:
        prompt = _texts_of(_records(pair.prompt))
        chats = [_chat(message) for _, message in prompt]
        ids = self._render(chats, prompt=True)
        if ids is None:
            ids = self._ids("\n".join(chat["content"] for chat in chats)) if chats else []
        sides = []
        for answer in (pair.chosen, pair.rejected):
            messages = _records(answer)
            if len(messages) != 1 or messages[0].tool_calls or not messages[0].text:
                raise Refusal("no_template", "the tokenizer only encodes text, and an answer is not a single text")
            own = self._ids(messages[0].text)
            mask = [False] * len(ids) + [True] * len(own)
            numbers = [-1] * len(ids) + [len(pair.prompt)] * len(own)
            sides.append(_sequence(ids + own, mask, numbers))
        return EncodedPair(chosen=sides[0], rejected=sides[1], prompt_length=len(ids))

    def _encode(self, texts: Sequence[tuple[int, Message]]) -> TokenSequence:
        """Return the ids of numbered messages; the mask covers the text of generated ones."""
        chats = [_chat(message) for _, message in texts]
        whole = self._render(chats)
        ids, mask, numbers = [], [], []
        if whole is not None:
            ids, mask, numbers = whole, [False] * len(whole), [-1] * len(whole)
        for place, (number, message) in enumerate(texts):
            own, trained = self._ids(message.text), message.is_generated
            if whole is None:
                ids += own
                mask += [trained] * len(own)
                numbers += [number] * len(own)
            elif trained:
                start = self._locate(whole, chats, place, own)
                if start is None:
                    raise Refusal("dropped", "its ids cannot be located in the rendered message", message=number)
                mask[start : start + len(own)] = [True] * len(own)
                numbers[start : start + len(own)] = [number] * len(own)
        return _sequence(ids, mask, numbers)

    def _locate(self, whole: list[int], chats: list[Json], place: int, own: list[int]) -> int | None:
        """Return the position of a text's ids in those of the conversation; None if it is missing or ambiguous."""
        before, after = (self._render(chats[:end]) or [] for end in (place, place + 1))
        if whole[: len(after)] != after or after[: len(before)] != before:
            return None
        starts = range(len(before), len(after) - len(own) + 1)
        found = [start for start in starts if whole[start : start + len(own)] == own]
        # A header may contain the same ids as the text; the text starts where the generation prompt ends.
        prompted = len(self._render(chats[:place], prompt=True) or [])
        return prompted if prompted in found else found[0] if len(found) == 1 else None

    def _ids(self, text: str) -> list[int]:
        return _flat(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, chats: list[Json], *, prompt: bool = False) -> list[int] | None:
        """Return the ids of a conversation, or None if the tokenizer has no chat template."""
        if not chats:
            return []
        try:
            ids = self._tokenizer.apply_chat_template(list(chats), tokenize=True, add_generation_prompt=prompt)
        except (AttributeError, NotImplementedError, TypeError):
            return None
        except ValueError:
            if getattr(self._tokenizer, "chat_template", None) is None:  # how transformers reports a missing template
                return None
            raise
        return None if ids is None else _flat(ids["input_ids"] if hasattr(ids, "keys") else ids)


def _flat(ids: Any) -> list[int]:
    """Return ids as a list, from a list, an array or a batch of one."""
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(values[0]) if values and isinstance(values[0], list) else values


def _records(messages: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    return [item if isinstance(item, Message) else Message.from_chat(dict(item)) for item in messages]


def _texts_of(messages: Sequence[Message]) -> list[tuple[int, Message]]:
    """Return the messages with text, and their numbers."""
    return [(number, message) for number, message in enumerate(messages) if message.text]


def _chat(message: Message) -> Json:
    return {"role": message.role, "content": message.text}


def _sequence(ids: list[int], mask: list[bool], numbers: list[int]) -> TokenSequence:
    is_trained = np.array(mask, bool)
    paint = np.where(is_trained, Paint.GENERATED, Paint.TEXT).astype(np.int8)
    return TokenSequence(
        ids=np.array(ids, np.int32), mask=is_trained, message_index=np.array(numbers, np.int32), paint=paint
    )
