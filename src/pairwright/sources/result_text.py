"""Does the text of a tool result say that the call failed? For formats that do not mark failures.

Only what a tool writes at the very start counts ("Error: ...", a traceback, {"error": "..."}), since results that are
fine may well contain the word.
"""

from typing import Any

import msgspec

from pairwright.messages import Message
from pairwright.sources.failures import failure_kind

_STARTS = ("error:", "error ", "[error]", "traceback (most recent call last)", "exception:", "execution failed")
_WRAPPERS = ("output", "result", "content", "message")


def result_error_kind(position: int, message: Message) -> str | None:
    """The kind of failure that a tool message shows, or None."""
    content = message.content
    return text_error_kind(content if type(content) is str else message.text)


def text_error_kind(text: str) -> str | None:
    """The kind of failure that the text of a result shows, or None."""
    start = text.lstrip()
    if start[:1] != "{":
        return _word(text) if start[:40].lower().startswith(_STARTS) else None
    head = start[:80].lower()
    if "error" in head or '"detail"' in head or "traceback" in head or "exception" in head or "failed" in head:
        reason = _reason(start)
        return None if reason is None else _word(reason)
    return None


def _word(reason: str) -> str:
    return failure_kind(reason, "exception" if "traceback (most recent" in reason[:200].lower() else "tool_error")


def _reason(text: str) -> str | None:
    """What a JSON result gives as its error: {"error": ...}, a lone {"detail": ...}, or an error as its output."""
    if not _may_name(text):
        return None
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    if value.get("error"):
        return str(value["error"]) if isinstance(value["error"], str) else text
    if set(value) == {"detail"}:  # what a FastAPI server answers to a request that failed
        return str(value["detail"]) if isinstance(value["detail"], str) else text
    for key in _WRAPPERS:
        inner = value.get(key)
        if isinstance(inner, str) and inner[:40].lstrip().lower().startswith(_STARTS):
            return inner
    return None


def _may_name(text: str) -> bool:
    """Whether JSON text can have one of the keys that `_reason` looks at; decoding every result would take long."""
    return (
        '"error"' in text or '"detail"' in text or '"output"' in text or '"result"' in text or '"content"' in text
        or '"message"' in text or "\\u" in text
    )  # fmt: skip
