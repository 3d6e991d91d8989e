"""Render chat templates with provenance: the text, and which message wrote each part of it.

Invariant: `Template.render` returns the text of transformers' `apply_chat_template(tokenize=False)`, or raises
TemplateError; a template that exceeds its limits raises TemplateLimit.

>>> template = Template("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}")
>>> rendered = template.render(plain_chat([{"role": "user", "content": " hi "}]))
>>> rendered.text, rendered.pieces
('<user>hi</s>', [Piece(start=6, end=8, message=0, field=0)])
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jinja2

from pairwright.records.messages import Json
from pairwright.tokens.clock import FIXED
from pairwright.tokens.refusals import SECONDS, Limits, TemplateError, TemplateLimit
from pairwright.tokens.template.environment import ChatEnvironment, Clock
from pairwright.tokens.template.tracked_str import (
    FIELDS,
    TEMPLATE,
    Chat,
    Run,
    cache_json,
    plain_chat,
    plain_data,
    runs_of,
    track_chat,
)

__all__ = ["Piece", "Rendered", "Template", "plain_chat"]

_MAX_SOURCE = 1_000_000


class Piece(NamedTuple):
    """Text of one message in a rendered conversation; has length zero if the message's text is empty."""

    start: int
    end: int
    message: int
    field: int


class Rendered(NamedTuple):
    text: str
    pieces: list[Piece]

    def pieces_by_message(self) -> dict[int, list[int]]:
        """Map messages to the indices of their pieces, ascending."""
        own: dict[int, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            own.setdefault(piece.message, []).append(number)
        return own


class Template:
    """A compiled chat template with the variables of every render (special tokens, options)."""

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, Any] | None = None,
        clock: Clock = lambda: FIXED,
        seconds: float = SECONDS,
    ) -> None:
        if len(source) > _MAX_SOURCE:
            raise TemplateLimit(f"a chat template of {len(source):,} characters; at most {_MAX_SOURCE:,} are read")
        self.source = source
        self.hash = hashlib.sha256(source.encode()).hexdigest()[:16]
        self.variables = plain_data(dict(variables or {}))
        self._clock, self._seconds = clock, seconds
        self._limits = Limits(seconds)
        self._environment = ChatEnvironment(clock=clock, limits=self._limits)
        self._tools: tuple[Any, Any] = (None, None)
        try:
            self._compiled = self._environment.from_string(source)
            # Variables of every render; a dict, since a chain of mappings is slow to copy.
            self._names = {**self._compiled.globals, "documents": None, **self.variables}
        except jinja2.exceptions.TemplateError as error:
            raise TemplateError(f"the chat template does not compile: {error}") from None
        except (RecursionError, MemoryError, SyntaxError, OverflowError) as error:
            raise TemplateError(f"the chat template does not compile: {type(error).__name__}") from None

    def with_variables(self, variables: Mapping[str, Any]) -> "Template":
        """Return the template with additional variables."""
        merged = {**self.variables, **variables}
        return Template(self.source, variables=merged, clock=self._clock, seconds=self._seconds)

    def render(self, chat: Chat, tools: list[Json] | None = None, *, prompt: bool = False) -> Rendered:
        """Render the conversation with provenance; `prompt` adds the generation prompt."""
        self._environment.tracking = True
        text = self._render(track_chat(chat), tools, prompt)
        return Rendered(str.__str__(text), pieces_of(runs_of(text)))

    def text(self, chat: Chat, tools: list[Json] | None = None, *, prompt: bool = False) -> str:
        """Render the conversation as plain text."""
        self._environment.tracking = False
        return str.__str__(self._render(chat, tools, prompt))

    def _render(self, chat: Chat, tools: list[Json] | None, prompt: bool) -> str:
        self._limits.begin(chat)
        if tools is not self._tools[0]:  # records often share one list of tools: write its JSON once
            self._tools = (tools, None if tools is None else cache_json(tools))
        try:
            names = {**self._names, "messages": chat, "tools": self._tools[1], "add_generation_prompt": prompt}
            # Like Jinja's `render`, without support for imports and without rewriting tracebacks.
            context = jinja2.runtime.Context(self._environment, names, None, self._compiled.blocks)
            return self._environment.concat(self._compiled.root_render_func(context))
        except TemplateError:
            raise
        except jinja2.exceptions.TemplateError as error:
            raise TemplateError(str(error) or type(error).__name__) from None
        except MemoryError:
            raise TemplateLimit("the chat template exhausted memory") from None
        except Exception as error:  # templates are input: they may raise anything
            raise TemplateError(f"{type(error).__name__}: {error}") from None


def pieces_of(runs: tuple[Run, ...]) -> list[Piece]:
    """Convert owned runs to pieces, in order; neighbours of the same message and field become one piece."""
    pieces: list[Piece] = []
    position = 0
    for length, owner in runs:
        if owner != TEMPLATE:
            message, field = divmod(owner, FIELDS)
            if pieces and pieces[-1][1:] == (position, message, field):  # continues the last piece
                pieces[-1] = Piece(pieces[-1].start, position + length, message, field)
            else:
                pieces.append(Piece(position, position + length, message, field))
        position += length
    return pieces
