"""The history of a conversation: its longest prompt, rendered once with provenance.

In most templates, shorter prompts are prefixes of the history. Their text, provenance and missing fields are taken from
it, without another render.
"""

from typing import NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.spans.dropped import Missing, find_left_out
from pairwright.tokens.spans.law import Shown
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import Chat


class History(NamedTuple):
    """The prompt before `turn`. `missing`: message -> its fields that are not rendered."""

    turn: int
    rendered: Rendered
    missing: dict[int, list[str]]

    @classmethod
    def of(cls, rendered: Rendered, chat: Chat, tools: list[Json] | None) -> "History":
        missing: dict[int, list[str]] = {number: [] for number in range(len(chat))}
        for number, name in find_left_out(rendered, chat, tools, {}).prompt_dropped:
            missing.setdefault(number, []).append(name)
        return cls(len(chat), rendered, missing)

    def find_prompt(self, turn: int, ending: str) -> Rendered | None:
        """Return the prompt before a turn; `ending` is the template text after its last message. None if text of later
        messages precedes it."""
        pieces = [piece for piece in self.rendered.pieces if piece.message < turn]
        end = pieces[-1].end if pieces else 0
        if pieces != self.rendered.pieces[: len(pieces)]:
            return None
        return Rendered(self.rendered.text[:end] + ending, pieces)

    def missing_before(self, turn: int) -> Missing:
        """Return the missing fields of messages before a turn, except the last: its fields depend on what follows."""
        last = next((piece.message for piece in reversed(self.rendered.pieces) if piece.message < turn), None)
        return {number: names for number, names in self.missing.items() if number != last}


def text_around(rendered: Rendered, turn: int) -> str:
    """Return the text between the messages before a turn and the messages after it."""
    first = next((number for number, piece in enumerate(rendered.pieces) if piece.message >= turn), 0)
    start = rendered.pieces[first - 1].end if first else 0
    return rendered.text[start : next((p.start for p in rendered.pieces[first:] if p.message > turn), None)]


def move_turn(shown: Shown, prompt: Rendered, turn: int) -> Shown:
    """Append a turn, shown by the render of a shorter conversation, to its prompt in this conversation."""
    shift = len(prompt.text) - shown.prompt
    own = tuple(Piece(piece.start + shift, piece.end + shift, turn, piece.field) for piece in shown.own)
    rendered = Rendered(prompt.text + shown.written, [*prompt.pieces, *own])
    return shown._replace(
        rendered=rendered, prompt=len(prompt.text), start=shown.start + shift, end=shown.end + shift, own=own
    )
