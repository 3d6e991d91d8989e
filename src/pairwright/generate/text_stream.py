"""Incremental text of a growing list of tokens: text that may still change is held back."""

from collections.abc import Callable, Sequence

_REPLACEMENT = "�"  # decoders write it for an incomplete UTF-8 sequence


class TextStream:
    """`add` a token and get the text that is now final; `stop_text` is the stop text once it has occurred."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, stop
        self._ids: list[int] = []
        # Tokens [start:end] are decoded again as left context, because a token's text may depend on the one before it
        # (leading spaces, multi-byte characters). The text of all tokens before `end` has been returned.
        self._start = self._end = 0
        self._pending = ""
        self.stop_text: str | None = None

    def add(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._end])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return self._give(text[len(before) :])

    def finish(self) -> str:
        if self.stop_text is not None:
            return ""
        before = self._decode(self._ids[self._start : self._end])
        rest = self._give(self._decode(self._ids[self._start :])[len(before) :])
        if self.stop_text is not None:
            return rest
        rest, self._pending = rest + self._pending, ""
        return rest

    def _give(self, more: str) -> str:
        text = self._pending + more
        matches = [(text.index(stop), stop) for stop in self._stop if stop in text]
        if matches:
            at, self.stop_text = min(matches)
            self._pending = ""
            return text[:at]
        keep = max((overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper prefix of `stop`: it has to be held back."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
