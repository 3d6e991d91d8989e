"""Text of a message that a template leaves out: nothing of what was said is missing without a word."""

from typing import Any

from pairwright.messages import Json
from pairwright.tokens.owned import CALL, CONTENT, REASONING
from pairwright.tokens.render import Piece, Rendered

_FIELD_NAMES = {CONTENT: "content", REASONING: "reasoning", CALL: "tool_calls"}


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


def is_text(value: Any) -> bool:
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
