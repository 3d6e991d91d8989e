"""Thinking blocks: the tags of a template, whether a prompt leaves one open, and how an empty one is closed.

    <think>\\n            at the end of a prompt: the model writes its reasoning first
    <think>\\n\\n</think>  at the end of a prompt: the model does not think, it answers

The tags are learnt by rendering a turn with reasoning; the usual ones are known besides, since many templates never
show reasoning and only cut it out of the text. A sentence that only the prompt has is a tag, too (Apriel).
"""

import re
from typing import Any, Literal, NamedTuple

from pairwright.generate.template_variables import list_variables
from pairwright.records.messages import Json
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.spans.dropped import Fields
from pairwright.tokens.template.render import Rendered, Template
from pairwright.tokens.template.tracked_str import CONTENT, REASONING, REASONING_KEYS, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

MissingReasoning = Literal["close", "refuse"]

# Opening and closing tags of thinking blocks, where a template does not show its own.
_KNOWN = (
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),
)
_ANGLE = re.compile(r"<([\w:.-]*(?:think|thought|reason)[\w:.-]*)>")
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,40}\]")
# Variables that choose a mode of thinking, as templates name them.
_MODES = re.compile(r"think|reason|is_training")
_REACH = 200  # characters before a turn in which a thinking block is looked for
# Settings of templates under which the prompt closes its own thinking block.
_OFF = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled", "reasoning_effort": "none"}


class Tags(NamedTuple):
    opening: str
    closing: str


class Thought(NamedTuple):
    """A thinking block at the end of a prompt: where it starts, and the white space after its last tag."""

    tags: Tags
    start: int
    space: str
    is_open: bool


class Grammar(NamedTuple):
    """What was learnt about thinking blocks of a template.

    tags     pairs that may stand in it
    closer   text between reasoning and content, where the template renders reasoning
    empty    text between the tags of an empty block that the template itself writes, and after it
    """

    tags: tuple[Tags, ...]
    closer: str | None
    empty: tuple[str, str] | None


def learn_grammar(tokenizer: ChatTokenizer, renderer: Renderer) -> Grammar:
    """The thinking blocks of a template, tried once."""
    key = ("thoughts", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = _learn(renderer)
    grammar: Grammar = tokenizer.learnt[key]
    return grammar


def find_thought(grammar: Grammar, text: str) -> Thought | None:
    """The thinking block that a prompt ends with, open or closed."""
    body = text.rstrip()
    for tags in grammar.tags:
        space = text[len(body) :]
        if body.endswith(tags.opening):
            return Thought(tags, len(body) - len(tags.opening), space, is_open=True)
        if body.endswith(tags.closing):
            before = body[: -len(tags.closing)].rstrip()
            # The opening may be left out: a lone closing tag says that there is no reasoning.
            start = len(before) - len(tags.opening) if before.endswith(tags.opening) else len(body) - len(tags.closing)
            return Thought(tags, start, space, is_open=False)
    return None


def find_empty_block(grammar: Grammar, text: str, start: int) -> tuple[int, int] | None:
    """Where an empty thinking block at `start` would hold reasoning, and where its closing tag is; None without one."""
    for opening, closing in grammar.tags:
        match = re.compile(rf"\s*{re.escape(opening)}(\s*){re.escape(closing)}").match(text, start)
        if match:
            return match.start(1), match.end(1)
    return None


def reasoning_of(message: Json) -> str:
    """The reasoning of a message that is not blank, else ""."""
    value = next((message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)), "")
    return value if value.strip() else ""


def without_reasoning(message: Json) -> Json:
    return {key: value for key, value in message.items() if key not in REASONING_KEYS}


def move_thought(message: Json, tags: Tags) -> Json:
    """A message whose text begins with a thinking block, with that block as its reasoning; else the message as it is.

    >>> move_thought({"role": "assistant", "content": "<think>why</think>\\n\\nso"}, Tags("<think>", "</think>"))
    {'role': 'assistant', 'content': 'so', 'reasoning_content': 'why'}
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = parts[0].get("text") if parts and isinstance(parts[0], dict) else None
    if not isinstance(text, str) or not text.lstrip().startswith(tags.opening) or tags.closing not in text:
        return message
    inside, _, rest = text.lstrip().removeprefix(tags.opening).partition(tags.closing)
    rest = rest.lstrip()
    reasoning = reasoning_of(message) + inside
    moved: Json = {**message, "content": rest if content is text else [{**parts[0], "text": rest}, *parts[1:]]}
    return {**moved, "reasoning_content": reasoning} if reasoning.strip() else moved


def close_empty(grammar: Grammar, thought: Thought) -> str:
    """What follows an open thinking block when there is no reasoning, as the template itself writes an empty one."""
    if grammar.empty is not None:
        inside, after = grammar.empty
        return inside.removeprefix(thought.space) + thought.tags.closing + after
    if grammar.closer is not None and not _TAG.fullmatch(thought.tags.opening):
        return grammar.closer.lstrip()  # a block in words has no mirror image
    return close_reasoning(thought)


def close_reasoning(thought: Thought) -> str:
    """What closes an open thinking block where the template shows none: the mirror image of how it was opened."""
    return thought.space + thought.tags.closing + ("\n\n" if "\n" in thought.space else "")


def explain_broken_thought(grammar: Grammar, text: str, start: int, end: int) -> str:
    """What is wrong with a turn from `start` to `end` after a prompt that opens a thinking block; "" if nothing is."""
    thought = find_thought(grammar, text[max(start - _REACH, 0) : start])
    if thought is None or not thought.is_open:
        return ""
    opening, closing = thought.tags
    if text.find(closing, start, end) < 0:
        return "the thinking block that the prompt opens is never closed"
    written = text[start : min(end, start + _REACH)].lstrip()
    if written.removeprefix(closing).lstrip().startswith(opening):
        return "the thinking block that the prompt opens is opened again"
    return ""


def has_missing_reasoning(grammar: Grammar, prompt: str, message: Json) -> bool:
    """Whether a turn without reasoning follows a prompt that opens a thinking block."""
    thought = find_thought(grammar, prompt[-_REACH:])
    if thought is None or not thought.is_open or reasoning_of(message):
        return False
    content = message.get("content")
    return not isinstance(content, str) or thought.tags.closing not in content


def advise_mode(renderer: Renderer, dropped: Fields | None = None) -> str:
    """Names the variables of a template that choose a mode of thinking; for dropped fields, where reasoning is one."""
    if dropped is not None and all(field != "reasoning" for _, field in dropped):
        return ""
    names = list_variables(renderer.source) if isinstance(renderer, Template) else ()
    modes = [name for name in names if _MODES.search(name)]
    return f"; the template reads {', '.join(modes)}: set it in tokens.chat_template_kwargs" if modes else ""


def _learn(renderer: Renderer) -> Grammar:
    tags: list[Tags] = []
    closer = None
    chat: Chat = [
        {"role": "user", "content": "zqu"},
        {"role": "assistant", "content": "zqc", "reasoning_content": "zqr", "thinking": "zqr"},
    ]
    rendered = _try_render(renderer, chat)
    if rendered is not None:
        own = [piece for piece in rendered.pieces if piece.message == 1]
        if [piece.field for piece in own] == [REASONING, CONTENT]:
            before = rendered.text[: own[0].start].rstrip()
            between = rendered.text[own[0].end : own[1].start]
            opening, closing = [*_TAG.finditer(before)], _TAG.search(between)
            if opening and closing and opening[-1].end() == len(before):
                tags.append(Tags(opening[-1].group(), closing.group()))
                closer = between
            elif sentence := _find_opening_sentence(renderer, chat[:1], rendered.text[: own[0].start], between):
                tags.append(sentence)
                closer = between
    source = renderer.source if isinstance(renderer, Template) else ""
    tags += [Tags(*pair) for pair in _KNOWN if pair[1] in source]
    names = dict.fromkeys(_ANGLE.findall(source))
    tags += [Tags(f"<{name}>", f"</{name}>") for name in names if name == "think" or f"</{name}>" in source]
    # Longer openings first: one may be the end of another.
    unique = tuple(sorted(dict.fromkeys(tags), key=lambda pair: -len(pair.opening)))
    return Grammar(unique, closer, _learn_empty(renderer, unique))


def _find_opening_sentence(renderer: Renderer, chat: Chat, lead: str, between: str) -> Tags | None:
    """A thinking block in words: the prompt ends with a sentence that the turn does not show ("Here are my reasoning
    steps:"), and a marker stands between reasoning and text ("[BEGIN FINAL RESPONSE]")."""
    prompt = _try_render(renderer, chat, prompt=True)
    if prompt is None or not prompt.text.startswith(lead) or not between.strip():
        return None
    sentence = prompt.text[len(lead) :].strip()
    return Tags(sentence, between.strip()) if re.fullmatch(r"[\w ,.:'-]{3,200}", sentence) else None


def _learn_empty(renderer: Renderer, tags: tuple[Tags, ...]) -> tuple[str, str] | None:
    """An empty block in a turn without reasoning, or in the prompt of a mode without thinking."""
    user: Json = {"role": "user", "content": "zqu"}
    texts = []
    for chat in (
        [user, {"role": "assistant", "content": "zqc"}],
        [user, {"role": "assistant", "content": "zqc"}, user],
    ):
        rendered = _try_render(renderer, chat)
        if rendered is not None:
            own = [piece.start for piece in rendered.pieces if piece.message == 1]
            texts += [rendered.text[: own[0]]] if own else []
    if isinstance(renderer, Template):
        for name in list_variables(renderer.source):
            if name in _OFF:
                changed: dict[str, Any] = {**renderer.variables, name: _OFF[name]}
                rendered = _try_render(Template(renderer.source, variables=changed), [user], prompt=True)
                texts += [rendered.text] if rendered is not None else []
    # Some read the mode from words of the conversation.
    for role in ("user", "system"):
        rendered = _try_render(renderer, [{"role": role, "content": "/no_think"}, user], prompt=True)
        texts += [rendered.text] if rendered is not None else []
    for text in texts:
        for opening, closing in tags:
            match = re.search(rf"{re.escape(opening)}(\s*){re.escape(closing)}(\s*)$", text)
            if match:
                return match.group(1), match.group(2)
    return None


def _try_render(renderer: Renderer, chat: Chat, *, prompt: bool = False) -> Rendered | None:
    try:
        return renderer.render(chat, None, prompt=prompt)
    except TemplateError:
        return None
