"""Control tokens in text: a pattern for the added tokens of a vocabulary, and text split at them."""

import itertools
import re
from collections.abc import Iterable

from pairwright.tokens.tokenizer import ChatTokenizer


def control_pattern(tokenizer: ChatTokenizer) -> re.Pattern[str]:
    """Return a pattern that matches any added token, the longest first."""
    return tokenizer.learn("pattern", lambda: compile_tokens(token for token in tokenizer.added if token.strip()))


def compile_tokens(tokens: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern for any of these tokens, preferring the longest, like `tokenizers`. Common prefixes are in the
    pattern once, since vocabularies have thousands of added tokens.

    >>> compile_tokens(["<a>", "<b>", "<a>b", "c"]).pattern
    '<(?:a>(?:b)?|b>)|c'
    """
    return re.compile(_write_branches(sorted(set(tokens) - {""})) or r"(?!)")


def _write_branches(tokens: list[str]) -> str:
    """Write the pattern of sorted, non-empty tokens; one branch for each first character."""
    branches = []
    for _, group in itertools.groupby(tokens, key=lambda token: token[0]):
        first, *others = group
        last = others[-1] if others else first
        # Sorted: a common prefix of the first and the last is common to all.
        size = next((n for n, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
        inner = _write_branches([token[size:] for token in (first, *others) if len(token) > size])
        is_token = len(first) == size
        branches.append(re.escape(first[:size]) + (f"(?:{inner})" + "?" * is_token if inner else ""))
    return "|".join(branches)


def split_symbols(tokenizer: ChatTokenizer, text: str) -> list[str]:
    """Split text into control tokens and single characters."""
    result: list[str] = []
    position = 0
    for match in control_pattern(tokenizer).finditer(text):
        result.extend(text[position : match.start()])
        result.append(match.group())
        position = match.end()
    result.extend(text[position:])
    return result
