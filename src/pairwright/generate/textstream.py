"""Text of a growing list of tokens: what is certain is given out, what may still change is held back.

Held back are characters whose bytes are not all there yet, and a tail that may be the beginning of a stop text.
"""

from collections.abc import Callable, Sequence

_REPLACEMENT = "�"


class TextStream:
    """`add` a token, get the text that is certain now; `stopped` names the stop text once it has come."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, stop
        self._ids: list[int] = []
        self._start = self._end = 0  # the tokens whose text is known again, and how far text was taken
        self._pending = ""
        self.stopped: str | None = None

    def add(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._end])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return self._give(text[len(before) :])

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        if self.stopped is not None:
            return ""
        before = self._decode(self._ids[self._start : self._end])
        rest = self._give(self._decode(self._ids[self._start :])[len(before) :])
        if self.stopped is not None:
            return rest
        rest, self._pending = rest + self._pending, ""
        return rest

    def _give(self, more: str) -> str:
        text = self._pending + more
        found = [(text.index(stop), stop) for stop in self._stop if stop in text]
        if found:
            at, self.stopped = min(found)
            self._pending = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How many last characters of the text are the beginning of the stop text."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
