"""Excerpts that are like known ones: their text is put together from one render of the conversation, not rendered.

A long run has many excerpts of one shape: the same roles and fields, and the same words that the template looks for.
What the template writes between the texts of the messages is then the same. The first excerpt of a shape is rendered,
and says where each text is from: the render of the whole conversation, or the message itself. Later ones are rendered,
too, and have to be what the first one predicts, until one was right in which each text had the same white space at its
ends; only then are excerpts put together. A shape that was ever predicted wrongly is rendered every time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.spans.regions import Located, Region
from pairwright.tokens.spans.thoughts import reasoning_of
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_messages import Chat
from pairwright.tokens.template.tracked_str import CONTENT, REASONING
from pairwright.tokens.tokenizer import Renderer

Key = tuple[Any, ...]
_Texts = dict[tuple[int, int], list[str]]  # (message, field) -> its texts in the render of the conversation
_Edges = tuple[str, str, bool, bool]


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


class _Pattern(NamedTuple):
    """What excerpts of one shape have in common, and the one that it was learnt from."""

    literals: list[str]  # before each piece, and after the last one
    sources: list[_Source]
    located: Located
    edges: set[tuple[int, _Edges]]  # (number of a piece, its edges) that were predicted and right


class ExcerptPatterns:
    """The shapes of the excerpts of one conversation. `shapes` has those of its messages, by their id()."""

    def __init__(self, renderer: Renderer, chat: Chat, tools: list[Json] | None, shapes: dict[int, Any]) -> None:
        self._renderer, self._chat, self._tools, self._shapes = renderer, chat, tools, shapes
        self._known_texts: _Texts | None = None
        self._patterns: dict[Key, _Pattern | None] = {}  # None: cannot be predicted

    def key_of(self, chat: Chat, turns: list[int]) -> Key:
        """The shape of an excerpt, and which of its messages are turns to train."""
        return (tuple(self._shapes[id(message)] for message in chat), tuple(turns))

    def predict(self, key: Key, chat: Chat, origins: list[int]) -> Located | None:
        """The group of an excerpt; None where it has to be rendered."""
        pattern = self._patterns.get(key)
        filled = None if pattern is None else self._fill(pattern, chat, origins)
        if pattern is None or filled is None:
            return None
        return filled.located if filled.edges <= pattern.edges else None

    def learn(self, key: Key, chat: Chat, origins: list[int], located: Located) -> None:
        """An excerpt was rendered: take its pattern, or compare it with the one that is known."""
        if key not in self._patterns:
            self._patterns[key] = self._take_pattern(chat, origins, located)
        elif (pattern := self._patterns[key]) is not None:
            filled = self._fill(pattern, chat, origins)
            # What had to be tried for the first excerpt of a shape is not tried for the second.
            if filled is None or filled.located._replace(probed=located.probed) != located:
                self._patterns[key] = None
                return
            pattern.edges.update(filled.edges)
            self._patterns[key] = pattern._replace(located=pattern.located._replace(probed=located.probed))

    @property
    def _texts(self) -> _Texts:
        if self._known_texts is None:
            self._known_texts = {}
            try:
                rendered = self._renderer.render(self._chat, self._tools)
            except TemplateError:
                return self._known_texts  # then there are only the messages themselves
            for piece in rendered.pieces:
                texts = self._known_texts.setdefault((piece.message, piece.field), [])
                texts.append(rendered.text[piece.start : piece.end])
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
        # A turn that begins or ends inside a text cannot be found again by that text's length.
        for region in located.regions:
            for edge in (region.start, region.end):
                if any(piece.start < edge < piece.end for piece in located.rendered.pieces):
                    return None
        return _Pattern([*literals, text[position:]], sources, located, set())

    def _fill(self, pattern: _Pattern, chat: Chat, origins: list[int]) -> "_Filled | None":
        """The pattern with the texts of other messages; None where they do not fit into it."""
        parts: list[str] = []
        pieces: list[Piece] = []
        edges: set[tuple[int, _Edges]] = set()
        position = 0
        for literal, (place, field, number) in zip(pattern.literals, pattern.sources, strict=False):
            if number >= 0:
                texts = self._texts.get((origins[place], field), [])
                if number >= len(texts):
                    return None
                text = texts[number]
            else:
                _, read, change = _RAW[-1 - number]
                text = change(read(chat[place]))
            edges.add((len(pieces), _edges_of(chat[place], field, text)))
            position += len(literal)
            pieces.append(Piece(position, position + len(text), place, field))
            position += len(text)
            parts += [literal, text]
        parts.append(pattern.literals[-1])
        known = pattern.located
        regions = [
            Region(
                message,
                _move(start, known.rendered.pieces, pieces),
                _move(end, known.rendered.pieces, pieces),
                stop,
            )
            for message, start, end, stop in known.regions
        ]
        return _Filled(known._replace(rendered=Rendered("".join(parts), pieces), regions=regions), edges)


class _Filled(NamedTuple):
    located: Located
    edges: set[tuple[int, _Edges]]


def _move(position: int, old: list[Piece], new: list[Piece]) -> int:
    """The same place among other pieces: as far from the end of the piece before it."""
    number = len(old) - 1
    while number >= 0 and old[number].end > position:
        number -= 1
    return position if number < 0 else position - old[number].end + new[number].end


def _edges_of(message: Json, field: int, text: str) -> _Edges:
    """What decides how a template may change a text: white space at the ends of what the message has, whether it is
    ASCII, and whether all of it is shown."""
    value = text
    if field in (CONTENT, REASONING):
        value = _content_of(message) if field == CONTENT else reasoning_of(message)
    first, last = value[:1], value[-1:]
    is_whole = text is value or text.strip() == value.strip()
    return first if first.isspace() else "", last if last.isspace() else "", value.isascii(), is_whole
