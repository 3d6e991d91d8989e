"""Where a turn ends: the stop token, learnt from what follows the turn in different continuations.

What follows a turn before the end, before a user and before a tool result has a common beginning; the stop token is
the last control token of it. Where there is none, the turn's own last token (gpt-oss: <|return|>) or the next turn's
header (GLM: <|user|>) is the stop.
"""

import re
from typing import NamedTuple

from pairwright.tokens.tokenizer import ChatTokenizer


class Stop(NamedTuple):
    """`end` is the offset after the stop token in the text that follows the turn."""

    end: int
    token: str | None
    is_next_header: bool = False


def control_pattern(tokenizer: ChatTokenizer) -> re.Pattern[str]:
    """Matches any added token, the longest first."""
    if "pattern" not in tokenizer.learnt:
        tokens = sorted((token for token in tokenizer.added if token.strip()), key=len, reverse=True)
        tokenizer.learnt["pattern"] = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
    pattern: re.Pattern[str] = tokenizer.learnt["pattern"]
    return pattern


def symbols(tokenizer: ChatTokenizer, text: str) -> list[str]:
    """Control tokens whole, everything else by character."""
    result: list[str] = []
    position = 0
    for match in control_pattern(tokenizer).finditer(text):
        result.extend(text[position : match.start()])
        result.append(match.group())
        position = match.end()
    result.extend(text[position:])
    return result


def stop_after(tokenizer: ChatTokenizer, tail: str, last: str, others: list[str], *, has_calls: bool) -> Stop:
    """The stop in `tail`, what follows the turn here; `last` is what follows it when it is the last message.

    A token that is not marked special may be the stop of a turn of text; after a call it is what closes the call.
    """
    common = _common([symbols(tokenizer, text) for text in (tail, last, *others)])
    for kind in (tokenizer.eos, tokenizer.special):
        for position in range(len(common) - 1, -1, -1):
            if common[position] in kind:
                return Stop(len("".join(common[: position + 1])), common[position])
    end = len("".join(common))
    if _first_control(tokenizer, last[end:]):
        own = _first_control(tokenizer, tail[end:], tokenizer.eos) or _first_control(tokenizer, tail[end:])
        return Stop(tail.index(own, end) + len(own), own) if own else Stop(end, None)
    if others and all(_next_header(tokenizer, common, text) for text in others):
        own = _next_header(tokenizer, common, tail)
        return Stop(tail.index(own, end) + len(own), own, True) if own else Stop(end, None, True)
    for position in () if has_calls else range(len(common) - 1, -1, -1):
        if common[position] in tokenizer.added:
            return Stop(len("".join(common[: position + 1])), common[position])
    return Stop(end, None)


def _first_control(tokenizer: ChatTokenizer, text: str, among: frozenset[str] | None = None) -> str:
    tokens = tokenizer.special if among is None else among
    return next((item for item in symbols(tokenizer, text) if item in tokens), "")


def _next_header(tokenizer: ChatTokenizer, common: list[str], text: str) -> str:
    """The control token that comes right after the common part, if a stop may be that."""
    for item in symbols(tokenizer, text)[len(common) :]:
        if item in tokenizer.special and item != tokenizer.special_tokens.get("bos_token"):
            return item if item in tokenizer.eos or not tokenizer.stops_are_known else ""
        if not item.isspace():
            return ""
    return ""


def _common(sequences: list[list[str]]) -> list[str]:
    length = 0
    for items in zip(*sequences, strict=False):
        if any(item != items[0] for item in items):
            break
        length += 1
    return sequences[0][:length]
