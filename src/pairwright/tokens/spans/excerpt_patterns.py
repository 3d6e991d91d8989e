"""Excerpts that are like known ones: their text is put together from one render of the conversation, not rendered.

A long run has many excerpts of one shape: the same roles and fields, and the same words that the template looks for.
What the template writes between the texts of the messages is then the same. The first excerpt of a shape is rendered,
and says where each text is from: the render of the whole conversation, or the message itself. Later ones are rendered,
too, and have to be what the first one predicts, until one was right in which each text had the same white space at its
ends; only then are excerpts put together. A shape that was predicted wrongly is rendered every time. What was learnt
from one conversation serves the next.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.spans.regions import Located, Region
from pairwright.tokens.spans.thoughts import reasoning_of
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import CONTENT, REASONING, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

Key = tuple[Any, ...]
_Texts = dict[tuple[int, int], list[str]]  # (message, field) -> its texts in the render of the conversation
_Edges = tuple[str, str, bool, bool]
_MAX_PATTERNS = 500  # of a template and its tools


def _content_of(message: Json) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _strip_lines(text: str) -> str:
    return text.strip("\n")


# What a piece may be made of where the render of the conversation does not have it: field, reader, change.
_RAW: tuple[tuple[int, Callable[[Json], str], Callable[[str], str]], ...] = tuple(
    (field, read, change)
    for field, read in ((REASONING, reasoning_of), (CONTENT, _content_of))
    for change in (str, _strip_lines, str.strip)
)


class _Source(NamedTuple):
    """Where the text of a piece is from: `number` counts the texts of its field in the conversation, or is -1 - n for
    the n-th of the raw ones."""

    message: int
    field: int
    number: int


class _Anchor(NamedTuple):
    """A position in a text of pieces: as far from the end of piece `number` as `distance`, or from the start (-1)."""

    number: int
    distance: int


class _Pattern(NamedTuple):
    """What excerpts of one shape have in common. `located` is what was found in the first one, without its text;
    `anchors` has the start and the end of each of its regions."""

    literals: list[str]  # before each piece, and after the last one
    sources: list[_Source]
    located: Located
    anchors: list[tuple[_Anchor, _Anchor]]
    edges: list[set[_Edges]]  # of each piece, those that were predicted and right


class ExcerptPatterns:
    """The shapes of the excerpts of one conversation. `shapes` has those of its messages, by their id(). What was
    learnt is kept with the tokenizer, for later conversations."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        renderer: Renderer,
        chat: Chat,
        tools: list[Json] | None,
        shapes: dict[int, Any],
    ) -> None:
        self._renderer, self._chat, self._tools, self._shapes = renderer, chat, tools, shapes
        self._known_texts: _Texts | None = None
        self._known_sources: dict[tuple[int, int, int], tuple[str, _Edges]] = {}  # by message, field, number
        tools_key = None if tools is None else msgspec.json.encode(tools)
        self._patterns: dict[Key, _Pattern] = tokenizer.learnt.setdefault(("excerpts", renderer.hash, tools_key), {})
        if len(self._patterns) > _MAX_PATTERNS:
            self._patterns.clear()
        self._unfit: set[Key] = set()  # shapes that cannot be predicted

    def key_of(self, chat: Chat, turns: list[int], *, require_stop: bool) -> Key:
        """The shape of an excerpt, and which of its messages are turns to train."""
        return (tuple(self._shapes[id(message)] for message in chat), tuple(turns), require_stop)

    def predict(self, key: Key, chat: Chat, origins: list[int]) -> Located | None:
        """The group of an excerpt; None where it has to be rendered."""
        pattern = self._patterns.get(key) if key not in self._unfit else None
        return None if pattern is None else self._fill(pattern, chat, origins, is_new=False)

    def learn(self, key: Key, chat: Chat, origins: list[int], located: Located) -> None:
        """An excerpt was rendered: take its pattern, or compare it with the one that is known."""
        if key in self._unfit:
            return
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._take_pattern(chat, origins, located)
        else:
            filled = self._fill(pattern, chat, origins, is_new=True)
            # What had to be tried for the first excerpt of a shape is not tried for the second.
            if filled is None or filled._replace(probed=located.probed) != located:
                pattern = None
            else:
                for edges, (place, field, number) in zip(pattern.edges, pattern.sources, strict=True):
                    edges.add(self._known_sources[origins[place], field, number][1])
                pattern = pattern._replace(located=pattern.located._replace(probed=located.probed))
        if pattern is not None:
            self._patterns[key] = pattern
        else:
            self._patterns.pop(key, None)
            self._unfit.add(key)

    @property
    def _texts(self) -> _Texts:
        if self._known_texts is None:
            self._known_texts = {}
            try:
                rendered = self._renderer.render(self._chat, self._tools)
            except TemplateError:
                return self._known_texts  # then there are only the messages themselves
            for start, end, message, field in rendered.pieces:
                self._known_texts.setdefault((message, field), []).append(rendered.text[start:end])
        return self._known_texts

    def _take_pattern(self, chat: Chat, origins: list[int], located: Located) -> _Pattern | None:
        text, literals, sources, position = located.rendered.text, [], [], 0
        counts: dict[tuple[int, int], int] = {}
        for piece in located.rendered.pieces:
            literals.append(text[position : piece.start])
            position = piece.end
            number = counts.get((piece.message, piece.field), 0)
            counts[piece.message, piece.field] = number + 1
            own = text[piece.start : piece.end]
            message = chat[piece.message]
            known = self._texts.get((origins[piece.message], piece.field), [])
            if number >= len(known) or known[number] != own:
                raw = (
                    n
                    for n, (field, read, change) in enumerate(_RAW)
                    if field == piece.field and change(read(message)) == own
                )
                first = next(raw, None)
                if first is None or number:
                    return None
                number = -1 - first
            sources.append(_Source(piece.message, piece.field, number))
        anchors = []
        for region in located.regions:
            start, end = (_find_anchor(edge, located.rendered.pieces) for edge in (region.start, region.end))
            if start is None or end is None:
                return None
            anchors.append((start, end))
        known_edges: list[set[_Edges]] = [set() for _ in sources]
        empty = located._replace(rendered=Rendered("", []))
        return _Pattern([*literals, text[position:]], sources, empty, anchors, known_edges)

    def _fill(self, pattern: _Pattern, chat: Chat, origins: list[int], *, is_new: bool) -> Located | None:
        """The pattern with the texts of other messages; None where they do not fit into it, or, unless `is_new`, where
        one has edges with which the pattern was not compared yet."""
        parts: list[str] = []
        pieces: list[Piece] = []
        position = 0
        known_sources = self._known_sources
        for literal, (place, field, number), edges in zip(
            pattern.literals, pattern.sources, pattern.edges, strict=False
        ):
            key = (origins[place], field, number)
            source = known_sources.get(key) or self._read_source(chat[place], key)
            if source is None or not (is_new or source[1] in edges):
                return None
            text = source[0]
            start = position + len(literal)
            position = start + len(text)
            pieces.append(Piece(start, position, place, field))
            parts += (literal, text)
        parts.append(pattern.literals[-1])
        regions = [
            Region(region.message, _place_anchor(start, pieces), _place_anchor(end, pieces), region.stop)
            for region, (start, end) in zip(pattern.located.regions, pattern.anchors, strict=True)
        ]
        return pattern.located._replace(rendered=Rendered("".join(parts), pieces), regions=regions)

    def _read_source(self, message: Json, key: tuple[int, int, int]) -> tuple[str, _Edges] | None:
        """A text and its edges, by message, field and number; None where there is no such text. It is kept: excerpts
        overlap."""
        origin, field, number = key
        if number < 0:
            _, read, change = _RAW[-1 - number]
            text = change(read(message))
        else:
            texts = self._texts.get((origin, field), [])
            if number >= len(texts):
                return None
            text = texts[number]
        self._known_sources[key] = (text, _edges_of(message, field, text))
        return self._known_sources[key]


def _find_anchor(position: int, pieces: list[Piece]) -> _Anchor | None:
    """None inside a piece: a position there cannot be found again by the length of its text."""
    number = len(pieces) - 1
    while number >= 0 and pieces[number].end > position:
        if pieces[number].start < position:
            return None
        number -= 1
    return _Anchor(number, position - pieces[number].end if number >= 0 else position)


def _place_anchor(anchor: _Anchor, pieces: list[Piece]) -> int:
    return anchor.distance + (pieces[anchor.number].end if anchor.number >= 0 else 0)


def _edges_of(message: Json, field: int, text: str) -> _Edges:
    """What decides how a template may change a text: white space at the ends of what the message has, whether it is
    ASCII, and whether all of it is shown."""
    value = text
    if field in (CONTENT, REASONING):
        value = _content_of(message) if field == CONTENT else reasoning_of(message)
    first, last = value[:1], value[-1:]
    is_whole = text is value or text.strip() == value.strip()
    return first if first.isspace() else "", last if last.isspace() else "", value.isascii(), is_whole
