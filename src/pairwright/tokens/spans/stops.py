"""Stop tokens: what ends a turn.

A stop closes a turn. It is looked for in what follows the turn in every continuation of the conversation: the first
token that ends generation (EOS), else the last special token before the next header. Some templates close no turn: the
header of the next message is the stop, or there is none at all. Then the last turn of a sequence gets one added, the
header that would follow or EOS, and a turn with others after it needs a sequence of its own.
"""

import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

_CLOSING_TAG = re.compile(r"</[\w:.-]+>")


class Stop(NamedTuple):
    """`end` is the offset after the stop token in the text that follows the turn. `added` is text that the template
    does not write after the last turn: it goes there, and the stop token is its end."""

    end: int
    token: str | None
    is_next_header: bool = False
    added: str = ""


def control_pattern(tokenizer: ChatTokenizer) -> re.Pattern[str]:
    """Matches any added token, the longest first."""
    if "pattern" not in tokenizer.learnt:
        tokenizer.learnt["pattern"] = compile_tokens(token for token in tokenizer.added if token.strip())
    pattern: re.Pattern[str] = tokenizer.learnt["pattern"]
    return pattern


def compile_tokens(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches any of these tokens, of those that begin alike the longest, as `tokenizers` takes them. Vocabularies have
    thousands of added tokens: what they begin with alike stands in the pattern once.

    >>> compile_tokens(["<a>", "<b>", "<a>b", "c"]).pattern
    '<(?:a>(?:b)?|b>)|c'
    """
    return re.compile(_write_branches(sorted(set(tokens) - {""})) or r"(?!)")


def _write_branches(tokens: list[str]) -> str:
    """A pattern for sorted tokens that are not empty; one branch for each first character."""
    branches = []
    for _, group in itertools.groupby(tokens, key=lambda token: token[0]):
        first, *others = group
        last = others[-1] if others else first
        # Sorted: what the first and the last begin with, all of them do.
        size = next((n for n, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
        inner = _write_branches([token[size:] for token in (first, *others) if len(token) > size])
        is_token = len(first) == size
        branches.append(re.escape(first[:size]) + (f"(?:{inner})" + "?" * is_token if inner else ""))
    return "|".join(branches)


def split_symbols(tokenizer: ChatTokenizer, text: str) -> list[str]:
    """Control tokens whole, everything else by character."""
    result: list[str] = []
    position = 0
    for match in control_pattern(tokenizer).finditer(text):
        result.extend(text[position : match.start()])
        result.append(match.group())
        position = match.end()
    result.extend(text[position:])
    return result


def find_stop(
    tokenizer: ChatTokenizer, renderer: Renderer, tail: str, last: str, others: list[str], *, has_calls: bool
) -> Stop:
    """The stop in `tail`, what follows the turn here; `last` is what follows it when it is the last message, `others`
    what follows it in other continuations, that of a result of its calls first.

    A token that is not marked special may be the stop of a turn of text; after a call it is what closes the call.
    """
    symbols = [split_symbols(tokenizer, text) for text in (tail, last, *others)]
    common = _common_prefix(symbols)
    # Generation ends at the first EOS token, whatever the template writes after it.
    for position, item in enumerate(common):
        if item in tokenizer.eos:
            return Stop(len("".join(common[: position + 1])), item)
    # Else the last special token, unless it opens the next message: some templates always add the generation prompt.
    always = bool(_adds_prompt_always(tokenizer, renderer))
    is_appended = any(item in tokenizer.special for item in symbols[1][len(common) :])
    openers = _find_openers(tokenizer, renderer) if always or is_appended else frozenset()
    closed = common
    # A closing tag after a call belongs to the call, also where a vocabulary has it as a special token.
    text_stop = learn_text_stop(tokenizer, renderer) if has_calls else ""
    while closed and (
        closed[-1] not in tokenizer.special
        or closed[-1] in openers
        or (has_calls and closed[-1] != text_stop and _CLOSING_TAG.fullmatch(closed[-1]))
    ):
        closed = closed[:-1]
    if closed:
        return Stop(len("".join(closed)), closed[-1])
    if not always:
        common = common[: next((number for number, item in enumerate(common) if item in openers), len(common))]
    end = len("".join(common))
    # No special token in common. A turn that is last ends with one of its own: the stop differs when turns follow.
    if _first_control(tokenizer, last[end:]) and not openers:
        own = _first_control(tokenizer, tail[end:], tokenizer.eos) or _first_control(tokenizer, tail[end:])
        return Stop(tail.index(own, end) + len(own), own) if own else Stop(end, None)
    # Every continuation begins with the header of the next message, which then is what stops the turn.
    if others and all(_next_header(tokenizer, common, text) for text in others):
        own = _next_header(tokenizer, common, tail)
        if own:
            return Stop(tail.index(own, end) + len(own), own, True)
        header = _next_header(tokenizer, common, others[0])
        return Stop(end, header, True, others[0][end : others[0].index(header, end) + len(header)])
    # At last a token that is added, but not special.
    for position in () if has_calls else range(len(common) - 1, -1, -1):
        if common[position] in tokenizer.added and common[position].strip():
            return Stop(len("".join(common[: position + 1])), common[position])
    if has_calls and text_stop in common:
        return Stop(len("".join(common[: common.index(text_stop) + 1])), text_stop)
    # The template closes no turn with a token: inference ends with EOS, after what all continuations have in common.
    eos = _end_of_sequence(tokenizer)
    if "".join(common).strip() and _adds_prompt_always(tokenizer, renderer):
        return Stop(end, None)  # what is in common may be part of the next header
    return Stop(len("".join(common).rstrip()), eos, eos is not None, eos or "")


def learn_text_stop(tokenizer: ChatTokenizer, renderer: Renderer) -> str:
    """The stop of a turn of text, tried once for each template; "" where it has none."""
    key = ("text_stop", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = ""
        user, answer = {"role": "user", "content": "zqu"}, {"role": "assistant", "content": "zqa"}
        try:
            last, more = (renderer.text(chat) for chat in ([user, answer], [user, answer, user]))
            if last.count("zqa") == more.count("zqa") == 1:
                tails = [text.rpartition("zqa")[2] for text in (last, more)]
                tails[1] = tails[1].rpartition("zqu")[0]
                stop = find_stop(tokenizer, renderer, tails[0], tails[0], tails[1:], has_calls=False)
                tokenizer.learnt[key] = "" if stop.added else stop.token or ""
        except TemplateError:
            pass  # a template that takes no such conversation teaches nothing
    return str(tokenizer.learnt[key])


def _find_openers(tokenizer: ChatTokenizer, renderer: Renderer) -> frozenset[str]:
    """Tokens before a first message's text, where the template adds a header after the last message, asked or not: the
    generation prompt, or instructions of its own."""
    key = ("openers", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = frozenset()
        text = _render_small(renderer)
        after = split_symbols(tokenizer, text.rpartition("zqa")[2])
        before = split_symbols(tokenizer, text.partition("zqu")[0])
        # Tokens of the header before an answer; the first token after the question closes that.
        between = split_symbols(tokenizer, text.partition("zqu")[2].partition("zqa")[0])
        header = [item for item in between if item in tokenizer.special][1:]
        specials = [item for item in after if item in tokenizer.special]
        is_appended = (
            bool(_adds_prompt_always(tokenizer, renderer))
            or any(item.strip() and item not in tokenizer.added for item in after)
            or specials[-1:] in [[item] for item in header]
        )
        if is_appended and len(tokenizer.special.intersection(after)) > 1:
            # A token after plain text closes it: it stands there because of a system prompt by default.
            visible = [item for item in before if item.strip()]
            first = {item: position for position, item in reversed([*enumerate(visible)])}
            closing = {item for item in first if first[item] and visible[first[item] - 1] not in tokenizer.added}
            tokenizer.learnt[key] = tokenizer.special.intersection(before) - tokenizer.eos - closing
    openers: frozenset[str] = tokenizer.learnt[key]
    return openers


def _render_small(renderer: Renderer) -> str:
    """A question and an answer, with a tool where the template takes no conversation without; else ""."""
    chat = [{"role": "user", "content": "zqu"}, {"role": "assistant", "content": "zqa"}]
    function = {"name": "zqf", "description": "zqd", "parameters": {"type": "object", "properties": {}}}
    for tools in (None, [{"type": "function", "function": function}]):
        try:
            return renderer.text(chat, tools)
        except TemplateError:
            continue
    return ""


def _adds_prompt_always(tokenizer: ChatTokenizer, renderer: Renderer) -> str:
    """A small conversation as text, where it is the same with the generation prompt and without; else ""."""
    key = ("adds_prompt_always", renderer.hash)
    if key not in tokenizer.learnt:
        chat = [{"role": "user", "content": "zqu"}, {"role": "assistant", "content": "zqa"}]
        try:
            # With a prompt and without, before a turn and after it.
            texts = [[renderer.text(part, prompt=prompt) for prompt in (False, True)] for part in (chat, chat[:1])]
            tokenizer.learnt[key] = texts[0][0] if all(without == with_ for without, with_ in texts) else ""
        except TemplateError:
            tokenizer.learnt[key] = ""  # a template that takes no such conversation teaches nothing
    return str(tokenizer.learnt[key])


def _end_of_sequence(tokenizer: ChatTokenizer) -> str | None:
    """The token that ends generation: EOS, else one that the model's generation settings name."""
    names = [str(tokenizer.special_tokens.get("eos_token")), *sorted(tokenizer.eos)]
    return next((name for name in names if name in tokenizer.added and name in tokenizer.eos), None)


def _first_control(tokenizer: ChatTokenizer, text: str, among: frozenset[str] | None = None) -> str:
    tokens = tokenizer.special if among is None else among
    return next((item for item in split_symbols(tokenizer, text) if item in tokens), "")


def _next_header(tokenizer: ChatTokenizer, common: list[str], text: str) -> str:
    """The control token that comes right after the common part, if a stop may be that."""
    for item in split_symbols(tokenizer, text)[len(common) :]:
        if item in tokenizer.special and item != tokenizer.special_tokens.get("bos_token"):
            return item if item in tokenizer.eos or not tokenizer.stops_are_known else ""
        if not item.isspace():
            return ""
    return ""


def _common_prefix(sequences: list[list[str]]) -> list[str]:
    length = 0
    for items in zip(*sequences, strict=False):
        if any(item != items[0] for item in items):
            break
        length += 1
    return sequences[0][:length]
