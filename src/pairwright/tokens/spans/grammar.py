"""The grammar of a template: the tokens that end a turn, the tags of thoughts, and the declared row of its family.

Ends are the tokenizer's (EOS, generation_config.json) and the row's; if none of them follows a turn, the last special
token that two renders of a small conversation share after it. Tags of thoughts are those of declared rows that occur in
the template's source, and those around reasoning in a render.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pairwright.generate.template_variables import list_variables
from pairwright.records.messages import Json
from pairwright.tokens.declared_rows import Row, own_rows
from pairwright.tokens.refusals import TemplateError, TokensError
from pairwright.tokens.spans.control_tokens import split_symbols
from pairwright.tokens.template.render import Rendered, Template
from pairwright.tokens.template.tracked_str import CONTENT, REASONING, REASONING_KEYS, Chat
from pairwright.tokens.tokenizer import ChatTokenizer

# Small conversations: no template contains words that begin with zq.
_USER: Json = {"role": "user", "content": "zqu"}
_ANSWER: Json = {"role": "assistant", "content": "zqa"}
_THOUGHT: Json = {**_ANSWER, "reasoning_content": "zqr", "thinking": "zqr"}
_CALL: Json = {"id": "zq0000000", "type": "function", "function": {"name": "zqf", "arguments": {"zqk": "zqv"}}}
_TEXT_CALL: Json = {**_CALL, "function": {"name": "zqf", "arguments": '{"zqk": "zqv"}'}}
# Templates differ in the content beside a call and the form of its arguments: the first form that is rendered is used.
_CALLERS: tuple[Json, ...] = tuple(
    {"role": "assistant", "content": content, "tool_calls": [call]}
    for call in (_CALL, _TEXT_CALL)
    for content in ("", None)
)
_RESULT: Json = {"role": "tool", "content": "zqt", "tool_call_id": "zq0000000", "name": "zqf"}
_TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {"name": "zqf", "description": "zqd", "parameters": {"type": "object", "properties": {}}},
    }
]
# Thinking switches: name of the variable, its values for on and off, and a word that the template must contain.
_SWITCHES: tuple[tuple[str, Any, Any, str], ...] = (
    ("enable_thinking", True, False, ""),
    ("thinking", True, False, ""),
    ("thinking_mode", "enabled", "disabled", "disabled"),
    ("reasoning_effort", "high", "no_think", "no_think"),
)


class Tags(NamedTuple):
    """The tags that open and close a thought, without surrounding white space."""

    opening: str
    closing: str

    def split(self, text: str) -> tuple[str, str] | None:
        """Split text that begins with a thought into the thought and the text after it; None if there is no thought."""
        if not text.lstrip().startswith(self.opening) or self.closing not in text:
            return None
        inside, _, rest = text.lstrip().removeprefix(self.opening).partition(self.closing)
        return inside, rest.lstrip()


class Thought(NamedTuple):
    """A thought at the end of a prompt: its start, and whether it is still open."""

    tags: Tags
    start: int
    is_open: bool


class Grammar(NamedTuple):
    """See the module docstring. `is_shown`: a render shows the row's thought byte for byte. `prompts`: (end of a prompt
    that a render continues with reasoning, closing of that reasoning)."""

    row: Row | None
    is_shown: bool
    tags: tuple[Tags, ...]
    prompts: tuple[Tags, ...]
    ends: frozenset[str] = frozenset()
    header: str = ""  # text that the generation prompt adds after a user's message, without a thought
    opener: str = ""  # first special token of the header
    reasoning_key: str = ""  # key that the template reads reasoning from, if it is not one of transformers' keys

    def find_thought(self, prompt: str) -> Thought | None:
        """Return the thought at the end of a prompt, open or closed."""
        body = prompt.rstrip()
        for tags in self.tags:
            if body.endswith(tags.opening):
                return Thought(tags, len(body) - len(tags.opening), is_open=True)
            if body.endswith(tags.closing):
                before = body[: -len(tags.closing)].rstrip()
                # A closing without an opening means no thought.
                is_pair = before.endswith(tags.opening)
                start = len(before) - len(tags.opening) if is_pair else len(body) - len(tags.closing)
                return Thought(tags, start, is_open=False)
        for tags in self.prompts:
            if prompt.endswith(tags.opening):
                return Thought(tags, len(prompt), is_open=True)
        return None

    def match_empty(self, text: str, start: int) -> tuple[int, int]:
        """Return the end of an empty thought at `start` (with or without opening), before and after trailing white
        space; (start, start) if there is no empty thought."""
        for opening, closing in self.tags:
            match = re.compile(rf"\s*(?:{re.escape(opening)}\s*)?{re.escape(closing)}(\s*)").match(text, start)
            if match:
                return match.start(1), match.end()
        return start, start

    def split_thought(self, message: Json) -> tuple[str, str] | None:
        """Split text that begins with a thought into reasoning and text; None if there is no thought."""
        content = message.get("content")
        if not isinstance(content, str):
            return None
        return next(filter(None, (tags.split(content) for tags in self.tags)), None)

    def has_reasoning(self, message: Json) -> bool:
        """Return whether a message has reasoning, in a field or at the start of its text."""
        if reasoning_of(message):
            return True
        content = message.get("content")
        return isinstance(content, str) and any(
            closing in content and content.partition(closing)[0].replace(opening, "").strip()
            for opening, closing in self.tags
        )


def reasoning_of(message: Json) -> str:
    """Return the reasoning of a message, "" if it is blank or missing."""
    value = next((message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)), "")
    return value if value.strip() else ""


def without_reasoning(message: Json) -> Json:
    return {key: value for key, value in message.items() if key not in REASONING_KEYS}


def choose_mode(tokenizer: ChatTokenizer, renderer: Template, messages: Chat) -> Json:
    """Return the variable that switches thinking on if one of these generated messages has reasoning, else off. Empty
    if the template reads no switch, or if one is already set."""
    switches = _list_switches(renderer)
    if not switches or any(name in renderer.variables for name, *_ in switches):
        return {}
    name, on, off = switches[0]
    grammar = learn_grammar(tokenizer, renderer)
    return {name: on if any(map(grammar.has_reasoning, messages)) else off}


def learn_grammar(tokenizer: ChatTokenizer, renderer: Template) -> Grammar:
    """Return the grammar of a template; computed once."""
    return tokenizer.learn(("grammar", renderer.hash), lambda: _learn_grammar(tokenizer, renderer))


def _learn_grammar(tokenizer: ChatTokenizer, renderer: Template) -> Grammar:
    source, thinking, reasoning_key = renderer.source, renderer, ""
    if switches := _list_switches(renderer):
        thinking = renderer.with_variables({switches[0][0]: switches[0][1]})
    shown = _show_thoughts(thinking)
    if not shown and (shown := _show_thoughts(thinking, "reasoning")):
        reasoning_key = "reasoning"
    row, is_shown = _find_row(tokenizer, source, shown)
    rows = [*([row] if row else []), *tokenizer.grammar, *own_rows()]
    tags = {
        Tags(opening, closing)
        for item in rows
        if (opening := item.opening.strip())
        and (closing := item.closing.strip())
        and (opening in source or closing in source or item is row)
    }
    # Longer openings first: one may be a suffix of another.
    known = sorted(tags, key=lambda pair: (-len(pair.opening), pair))
    prompts = tuple(dict.fromkeys(item for item in map(_find_prompt, shown) if item is not None))
    grammar = Grammar(row, is_shown, tuple(known), prompts, reasoning_key=reasoning_key)
    header = _find_header(renderer, grammar)
    openers = [item for item in split_symbols(tokenizer, header) if item in tokenizer.special]
    openers = openers or _find_user_header(tokenizer, renderer)
    ends = _learn_ends(tokenizer, renderer, row, openers)
    return grammar._replace(ends=ends, header=header, opener=next(iter(openers), ""))


def _find_header(renderer: Template, grammar: Grammar) -> str:
    for tools in (None, _TOOLS):
        bare, prompt = try_render(renderer, [_USER], tools), try_render(renderer, [_USER], tools, prompt=True)
        if bare is not None and prompt is not None and prompt.text.startswith(bare.text):
            thought = grammar.find_thought(prompt.text)
            return prompt.text[len(bare.text) : thought.start if thought is not None else None]
    return ""


def _find_user_header(tokenizer: ChatTokenizer, renderer: Template) -> list[str]:
    """Return the special tokens directly before a user's text, else the last one before it: they open a message."""
    rendered = try_render(renderer, [_USER]) or try_render(renderer, [_USER], _TOOLS)
    before = split_symbols(tokenizer, rendered.text.rpartition("zqu")[0]) if rendered is not None else []
    run = [*itertools.takewhile(tokenizer.special.__contains__, reversed(before))][::-1]
    return run or [item for item in before if item in tokenizer.special][-1:]


class _Shown(NamedTuple):
    """A render of reasoning: its prompt (with and without generation prompt), the reasoning, the start of content."""

    text: str
    prompt: str
    bare: str
    start: int
    end: int
    after: int


def _list_switches(renderer: Template) -> list[tuple[str, Any, Any]]:
    """Return the thinking switches that a template reads: name, value for on, value for off."""
    names = list_variables(renderer.source)
    return [(name, on, off) for name, on, off, word in _SWITCHES if name in names and word in renderer.source]


def _show_thoughts(renderer: Template, *keys: str) -> list[_Shown]:
    """Render an answer and a call with reasoning; return those that show it. `keys`: more keys for the reasoning."""
    result = []
    thought = {**_THOUGHT, **dict.fromkeys(keys, "zqr")}
    for turn in (thought, {**thought, "tool_calls": [_CALL]}):
        chat: Chat = [_USER, turn]
        for tools in (None, _TOOLS):
            rendered = try_render(renderer, chat, tools)
            prompt = try_render(renderer, chat[:1], tools, prompt=True)
            bare = try_render(renderer, chat[:1], tools)
            if rendered is None or prompt is None or bare is None:
                continue
            own = [piece for piece in rendered.pieces if piece.message == 1 and piece.end > piece.start]
            if len(own) > 1 and own[0].field == REASONING and own[1].field == CONTENT:
                result.append(_Shown(rendered.text, prompt.text, bare.text, own[0].start, own[0].end, own[1].start))
            break
    return result


def _find_row(tokenizer: ChatTokenizer, source: str, shown: list[_Shown]) -> tuple[Row | None, bool]:
    """Return the first row that fits the template and its renders of thoughts; and whether a render shows one."""
    for row in (*tokenizer.grammar, *own_rows()):
        if not all(word in source for word in row.match):
            continue
        if not row.opening.strip():
            return row, False
        fault = next((item for item in shown if not _agrees(row, item)), None)
        if fault is None:
            return row, bool(shown)
        if row.is_users:
            raise TokensError(
                f"tokens.grammar: {row.name}: the template writes a thought as "
                f"{fault.text[fault.start - len(row.opening) : fault.after]!r}, not with opening {row.opening!r} and "
                f"closing {row.closing!r}"
            )
    return None, False


def _agrees(row: Row, shown: _Shown) -> bool:
    """Return whether a render shows the row's thought byte for byte; a tag may follow the closing, white space not."""
    rest = shown.text[shown.end : shown.after].removeprefix(row.closing)
    is_closed = shown.text.startswith(row.closing, shown.end) and rest == rest.lstrip()
    return is_closed and shown.text[: shown.start].endswith(row.opening)


def _find_prompt(shown: _Shown) -> Tags | None:
    """Return the end of a prompt that opens a thought, and the tag that closes it."""
    closing = shown.text[shown.end : shown.after].strip()
    added = shown.prompt[len(shown.bare) :] if shown.prompt.startswith(shown.bare) else ""
    is_inside = shown.text.startswith(shown.prompt) and not shown.text[len(shown.prompt) : shown.start].strip()
    return Tags(added, closing) if is_inside and added.strip() and closing else None


def _learn_ends(tokenizer: ChatTokenizer, renderer: Template, row: Row | None, openers: list[str]) -> frozenset[str]:
    ends = set(tokenizer.eos)
    if row is not None:
        ends |= {end for end in (row.end_text, row.end_call) if end in tokenizer.added}
    for turns, result in (((_ANSWER,), _USER), (_CALLERS, _RESULT)):
        tails = next(filter(None, (_find_tails(tokenizer, renderer, turn, result) for turn in turns)), None)
        if tails is None:
            continue
        last, common = tails[0], tails[0][: count_common(*tails)]
        specials = [item for item in common if item in tokenizer.special]
        while specials and specials[-1] in openers:  # the header of the next message
            specials.pop()
        if not ends.isdisjoint(common):
            if turns is not _CALLERS:
                break  # a known token ends turns: other tokens that close a call do not
            continue
        # After a call, or if the generation prompt is always rendered, the token must end the render: else a token that
        # closes the call or opens the next message would be mistaken for the end of the turn.
        is_whole = not tokenizer.special.intersection(last[len(common) :])
        if not specials or not (is_whole or (turns is not _CALLERS and not _adds_always(renderer))):
            break
        ends.add(specials[-1])
    return frozenset(ends)


def _adds_always(renderer: Template) -> bool:
    """Return whether `add_generation_prompt` changes nothing: the prompt is always rendered, or never."""
    return any(
        rendered is not None and rendered == try_render(renderer, [_USER], tools, prompt=True)
        for tools in (None, _TOOLS)
        for rendered in [try_render(renderer, [_USER], tools)]
    )


def _find_tails(
    tokenizer: ChatTokenizer, renderer: Template, turn: Json, result: Json
) -> tuple[list[str], list[str]] | None:
    """Return the symbols after a turn if it is last, and if `result` follows it; None if the turn is not rendered."""
    for tools in (None, _TOOLS):
        for form in (lambda message: message, _as_parts):
            chat = [form(_USER), form(turn), form(result)]
            last, following = try_render(renderer, chat[:2], tools), try_render(renderer, chat, tools, prompt=True)
            if last is None or following is None:
                continue
            if any(piece.message == 1 and piece.end > piece.start for piece in last.pieces):
                return _tail(tokenizer, last), _tail(tokenizer, following)
    return None


def _as_parts(message: Json) -> Json:
    text = message["content"]
    return {**message, "content": [{"type": "text", "text": text}]} if text else message


def _tail(tokenizer: ChatTokenizer, rendered: Rendered) -> list[str]:
    """Return the symbols between the text of message 1 and that of the next message."""
    own = [piece for piece in rendered.pieces if piece.message == 1]
    limit = next((piece.start for piece in rendered.pieces if piece.message > 1), len(rendered.text))
    inside = [piece.end for piece in own if piece.end <= limit]
    text = rendered.text[inside[-1] : limit] if inside else ""
    return split_symbols(tokenizer, text)


def count_common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the common prefix of two texts or lists."""
    pairs = zip(left, right, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def try_render(
    renderer: Template, chat: Chat, tools: list[Json] | None = None, *, prompt: bool = False
) -> Rendered | None:
    """Render a conversation; None if the template refuses it."""
    try:
        return renderer.render(chat, tools, prompt=prompt)
    except TemplateError:
        return None
