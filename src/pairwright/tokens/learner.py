"""What is known about the turns of a template: learnt from skeletons, once for each shape, kept with the tokenizer."""

from typing import Any

import msgspec

from pairwright.messages import Json
from pairwright.tokens.marks import Chat
from pairwright.tokens.owned import CALL
from pairwright.tokens.probes import Turn, Unfit, probe
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.render import Template
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer
from pairwright.tokens.windows import Shapes, constants_in, skeleton

_MAX_LEARNT = 20_000


class Learner:
    """Turns of one conversation, by the skeletons of their neighbourhoods."""

    def __init__(self, tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat, tools: list[Json] | None) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._tools = tools
        tools_key = None if tools is None else msgspec.json.encode(tools)
        if len(tokenizer.learnt) > _MAX_LEARNT:
            tokenizer.learnt.clear()
        self._learnt: dict[Any, Turn | Unfit] = tokenizer.learnt.setdefault((renderer.hash, tools_key), {})
        if len(self._learnt) > _MAX_LEARNT:
            self._learnt.clear()
        self._shapes = Shapes(chat, self._constants(), whole_arguments=self._whole_arguments())

    def learn(self, turn: int) -> Turn | Unfit:
        window = self._shapes.window(turn)
        target = window.index(turn)
        keys = [self._shapes.keys[number] for number in window]
        key = (*keys, target)
        if key not in self._learnt:
            self._learnt[key] = probe(self._tokenizer, self._renderer, skeleton(keys), self._tools, target)
        return self._learnt[key]

    def _constants(self) -> Any:
        key = ("constants", self._renderer.hash)
        if key not in self._tokenizer.learnt:
            source = self._renderer.source if isinstance(self._renderer, Template) else ""
            self._tokenizer.learnt[key] = constants_in(source)
        return self._tokenizer.learnt[key]

    def _whole_arguments(self) -> bool:
        """Does the template write a call's arguments in one piece, whatever they are?"""
        key = ("whole_arguments", self._renderer.hash)
        if key not in self._tokenizer.learnt:
            self._tokenizer.learnt[key] = _writes_arguments_whole(self._renderer)
        return bool(self._tokenizer.learnt[key])


def _writes_arguments_whole(renderer: Renderer) -> bool:
    function = {"name": "zqf", "arguments": {"zqa": "zqx", "zqb": 5, "zqc": ["zqy"]}}
    call = {"id": "zq0000000", "type": "function", "function": function}
    for content in ("", None):
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            rendered = renderer.render([{"role": "user", "content": "zqu"}, turn], None)
        except TemplateError:
            continue
        texts = [rendered.text[piece.start : piece.end] for piece in rendered.pieces if piece.field == CALL]
        if texts:
            return any("zqa" in text and "zqy" in text for text in texts)
    return False
