"""The history of a conversation: its longest prompt, rendered with provenance once.

Shorter prompts begin like it in most templates. Such a prompt is not rendered again: its text, who wrote which part of
it, and what the template leaves out of its messages are those of the history.
"""

from typing import NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.spans.dropped import Missing, find_left_out
from pairwright.tokens.spans.law import Shown
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import Chat


class History(NamedTuple):
    """The prompt before `turn`. `missing` has, for each message, its fields that are not rendered."""

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
        """The prompt before a turn: `ending` is what the template writes after the text of its last message. None where
        text of later messages is before that."""
        pieces = [piece for piece in self.rendered.pieces if piece.message < turn]
        end = pieces[-1].end if pieces else 0
        if pieces != self.rendered.pieces[: len(pieces)]:
            return None
        return Rendered(self.rendered.text[:end] + ending, pieces)

    def missing_before(self, turn: int) -> Missing:
        """What is missing of the messages before a turn, but for the last of them: that depends on what follows."""
        last = next((piece.message for piece in reversed(self.rendered.pieces) if piece.message < turn), None)
        return {number: names for number, names in self.missing.items() if number != last}


def text_around(rendered: Rendered, turn: int) -> str:
    """What is between the text of the messages before a turn and that of the messages after it."""
    first = next((number for number, piece in enumerate(rendered.pieces) if piece.message >= turn), 0)
    start = rendered.pieces[first - 1].end if first else 0
    return rendered.text[start : next((p.start for p in rendered.pieces[first:] if p.message > turn), None)]


def move_turn(shown: Shown, prompt: Rendered, turn: int) -> Shown:
    """A turn of a shorter conversation, after its prompt in this one."""
    shift = len(prompt.text) - shown.prompt
    own = tuple(Piece(piece.start + shift, piece.end + shift, turn, piece.field) for piece in shown.own)
    rendered = Rendered(prompt.text + shown.written, [*prompt.pieces, *own])
    return shown._replace(
        rendered=rendered, prompt=len(prompt.text), start=shown.start + shift, end=shown.end + shift, own=own
    )
