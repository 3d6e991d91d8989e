"""The regions of a conversation: for each turn that is trained, from the end of what inference was given to its stop.

Linear in the number of turns: one render with provenance, literals learnt from skeletons that are kept, and renders of
prefixes at the last turn, at a quarter of it, ... and at the first, which add up to little more than one more. Every
step fails closed: what does not match is probed on the conversation itself, and what is still not exact is a Refusal
that names the turn.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pairwright.messages import Json
from pairwright.tokens.marks import Chat
from pairwright.tokens.owned import CALL, CONTENT, REASONING
from pairwright.tokens.probes import Turn, Unfit, probe
from pairwright.tokens.refusals import Reason, Refusal, TemplateError
from pairwright.tokens.render import Piece, Rendered, Template
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer
from pairwright.tokens.windows import Shapes, constants_in, skeleton

_MAX_LEARNT = 20_000
_SHORT = 6
_FEW = 4  # turns that are all verified
_FIELD_NAMES = {CONTENT: "content", REASONING: "reasoning", CALL: "tool_calls"}


class Region(NamedTuple):
    """What the model generated in one turn, in characters of the rendered text; `end` is after the stop token."""

    message: int
    start: int
    end: int
    stop: str | None


class Located(NamedTuple):
    """A rendered conversation with the regions of its trained turns."""

    rendered: Rendered
    regions: list[Region]
    dropped: tuple[tuple[int, str], ...]
    rewritten: tuple[int, ...]
    probed: int


def locate(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: Sequence[int],
    *,
    require_stop: bool = True,
) -> Located:
    """Render once and find every turn, or raise a Refusal."""
    renderer = tokenizer.renderer(tools)
    try:
        rendered = renderer.render(chat, tools)
        # In longer conversations the prompt of the last turn is rendered plainly below: the same check, once.
        plain = renderer.text(chat, tools) if len(chat) <= _SHORT or not turns else rendered.text
    except TemplateError as error:
        raise _template_refusal(renderer, chat, tools, error) from None
    if plain != rendered.text:
        raise Refusal("text_differs", "the template depends on the type of its strings")
    finder = Finder(tokenizer, renderer, rendered, chat, tools)
    regions: list[Region] = []
    for turn in turns:
        found = finder.find(turn, require_stop=require_stop)
        if isinstance(found, Unfit):
            raise Refusal(found.reason, found.detail, message=turn)
        regions.append(found)
    return finder.located(regions)


class Finder:
    """Finds turns in one rendered conversation."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        renderer: Renderer,
        rendered: Rendered,
        chat: Chat,
        tools: list[Json] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._rendered = rendered
        self._chat = chat
        self._tools = tools
        self._learner = _Learner(tokenizer, renderer, chat, tools)
        self._own: dict[int, list[int]] = {}
        for number, piece in enumerate(rendered.pieces):
            self._own.setdefault(piece.message, []).append(number)
        self._rewritten: list[int] = []
        self._probed = 0

    def find(self, turn: int, *, require_stop: bool) -> Region | Unfit:
        """By what was learnt from a skeleton; where that does not match, by probing the conversation."""
        own = self._own.get(turn, [])
        learnt = self._learner.learn(turn)
        region = _place(self._rendered, own, turn, learnt) if isinstance(learnt, Turn) else None
        if region is None:
            self._probed += 1
            learnt = probe(self._tokenizer, self._renderer, self._chat, self._tools, turn)
            if isinstance(learnt, Unfit):
                return learnt
            region = _place(self._rendered, own, turn, learnt)
        if region is None or not isinstance(learnt, Turn):
            return Unfit("not_located", "its text was not found where the template puts it")
        if region.stop is None and require_stop and not learnt.stop_is_next_header:
            return Unfit("no_stop", "no stop token follows the turn")
        if learnt.literals_rewritten:
            self._rewritten.append(turn)
        return region

    def located(self, regions: list[Region]) -> Located:
        """The found regions, verified: in order, and each after what inference is given."""
        for left, right in itertools.pairwise(regions):
            if right.start < left.end:
                raise Refusal("not_located", "it overlaps the turn before it", message=right.message)
        _verify(self._renderer, self._chat, self._tools, self._rendered.text, regions)
        turns = [region.message for region in regions]
        trained = set(turns)
        dropped = [
            (number, "content")
            for number, message in enumerate(self._chat)
            if number not in trained and number not in self._own and _is_text(message.get("content"))
        ]
        for turn in turns:
            dropped += dropped_fields(self._rendered, self._own.get(turn, []), self._chat[turn], turn)
        rewritten = tuple(turn for turn in self._rewritten if turn in turns)
        return Located(self._rendered, regions, tuple(dropped), rewritten, self._probed)


def _place(rendered: Rendered, own: list[int], turn: int, learnt: Turn) -> Region | None:
    """Find the turn's literals in the conversation; None where they differ from what was learnt."""
    pieces, text = rendered.pieces, rendered.text
    size = len(own) - learnt.later
    if size < 0 or bool(size) != bool(learnt.fields):
        return None
    if not size:
        first = next((number for number, piece in enumerate(pieces) if piece.message > turn), len(pieces))
        beyond = first
    else:
        first, beyond = own[0], own[size - 1] + 1
        if beyond - first != size or not learnt.fields <= {pieces[number].field for number in own[:size]}:
            return None
    before = pieces[first - 1].end if first else 0
    after = pieces[beyond].start if beyond < len(pieces) else len(text)
    lead_end = pieces[first].start if size else after
    if text[before:lead_end] != learnt.lead:
        return None
    if learnt.opening and (
        not text.startswith(learnt.opening, lead_end) or pieces[first].end - lead_end < len(learnt.opening)
    ):
        return None
    tail_start = pieces[beyond - 1].end if size else before
    if text[tail_start:after] != learnt.tail:
        return None
    return Region(turn, before + learnt.start, tail_start + learnt.end, learnt.stop)


class _Learner:
    """What is known about the turns of one template, found with skeletons."""

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


def _verify(renderer: Renderer, chat: Chat, tools: list[Json] | None, text: str, regions: list[Region]) -> None:
    """Render what inference is given at the last turn, at a quarter of it, ..., at the first: it must stand there.

    The turns between are vouched for by their skeletons alone.
    """
    position = len(regions)
    while position:
        region = regions[position - 1]
        position = position // 4 if position > 64 else position - 1 if position <= _FEW else 1
        try:
            given = renderer.text(chat[: region.message], tools, prompt=True)
        except TemplateError as error:
            detail = f"the prompt before this turn cannot be rendered: {error}"
            raise Refusal("template_error", detail, message=region.message) from None
        if given != text[: region.start]:
            reason: Reason = "not_located" if text.startswith(given) else "context_differs"
            raise Refusal(reason, "inference would have been given another prompt", message=region.message)


def dropped_fields(rendered: Rendered, own: list[int], message: Json, turn: int) -> list[tuple[int, str]]:
    """Fields of a turn with text that the template leaves out."""
    pieces = [rendered.pieces[number] for number in own]
    dropped = []
    for field, name in ((CONTENT, "content"), (REASONING, "reasoning_content")):
        value = message.get(name)
        text = value if isinstance(value, str) else _parts_text(value)
        size = sum(piece.end - piece.start for piece in pieces if piece.field == field)
        if size < len(text) and size < len("".join(text.split())):
            dropped.append((turn, _FIELD_NAMES[field]))
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls and _calls_missing(rendered, pieces, calls):
        dropped.append((turn, _FIELD_NAMES[CALL]))
    return dropped


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _parts_text(value: Any) -> str:
    if not isinstance(value, list):
        return ""
    return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))


def _calls_missing(rendered: Rendered, pieces: list[Piece], calls: list[Any]) -> bool:
    names: dict[str, int] = {}
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name:
            names[name] = names.get(name, 0) + 1
    texts = [rendered.text[piece.start : piece.end] for piece in pieces if piece.field == CALL]
    return any(sum(text.count(name) for text in texts) < count for name, count in names.items())


def _template_refusal(renderer: Renderer, chat: Chat, tools: list[Json] | None, error: TemplateError) -> Refusal:
    """Names the first message that the template does not accept, found by halving, in the words of a plain render."""
    low, high = 0, len(chat)
    while low < high:
        middle = (low + high) // 2
        try:
            renderer.text(chat[: middle + 1], tools)
            low = middle + 1
        except TemplateError as plain:
            high, error = middle, plain
    return Refusal("template_error", str(error), message=low if low < len(chat) else None)
