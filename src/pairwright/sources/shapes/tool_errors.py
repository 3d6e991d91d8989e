"""Detection of failed tool calls: failure kinds, failures in the text of tool results, and error sites.

For formats that do not mark failures, only the start of a result counts ("Error: ...", a traceback, {"error": "..."}),
since successful results may contain the word as well.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from pairwright.records.messages import ErrorSite, Json, Message

# Failure kinds (messages.ERROR_KINDS), shared by all formats.

# (kind, patterns); the first match wins, so specific kinds come before general ones.
_WORDS = (
    ("timeout", ("timeout", "timed out")),
    ("file_not_found", ("filenotfound", "no such file")),
    ("unknown_tool", ("unknown tool", "unknowntool", "tool not found", "no tool named")),
    ("missing_argument", ("missing required", "field required", "is a required property", "required positional arg")),
    ("invalid_json", ("jsondecodeerror", "invalid json", "not valid json", "malformed json")),
    ("invalid_arguments", ("validationerror", "validation error", "invalid argument")),
    (
        "permission_denied",
        ("permission denied", "permissionerror", "permissiondenied", "access denied", "not permitted"),
    ),
    ("not_found", (" not found", "does not exist")),
)


def failure_kind(hint: object, default: str) -> str:
    """Classify an error type or message as a failure kind; return `default` if no pattern matches."""
    words = hint[:1000].lower() if isinstance(hint, str) else ""
    for kind, signs in _WORDS:
        if any(sign in words for sign in signs):
            return kind
    return default


# Failures detected from the text of tool results, for formats that do not mark them.

_STARTS = ("error:", "error ", "[error]", "traceback (most recent call last)", "exception:", "execution failed")
_WRAPPERS = ("output", "result", "content", "message")


def result_error_kind(position: int, message: Message) -> str | None:
    """Return the failure kind of a tool message, or None."""
    content = message.content
    return text_error_kind(content if type(content) is str else message.text)


def text_error_kind(text: str) -> str | None:
    """Return the failure kind indicated by the text of a tool result, or None."""
    start = text.lstrip()
    if start[:1] != "{":
        return _word(text) if start[:40].lower().startswith(_STARTS) else None
    # JSON: a failure is named near the start. Most results are ruled out by this, without decoding.
    head = start[:80].lower()
    if "error" in head or '"detail"' in head or "traceback" in head or "exception" in head or "failed" in head:
        reason = _reason(start)
        return None if reason is None else _word(reason)
    return None


def _word(reason: str) -> str:
    return failure_kind(reason, "exception" if "traceback (most recent" in reason[:200].lower() else "tool_error")


def _reason(text: str) -> str | None:
    """Extract the error from a JSON result: {"error": ...}, a lone {"detail": ...}, or an error text in its output."""
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
    """Whether JSON text may contain a key that `_reason` checks; a cheap test that avoids decoding every result."""
    return (
        '"error"' in text
        or '"detail"' in text
        or '"output"' in text
        or '"result"' in text
        or '"content"' in text
        or '"message"' in text
        # A key may be written with \u escapes.
        or "\\u" in text
    )


# Error sites of a conversation.

# Is this tool result an error? Returns its kind, or None. Formats that mark errors pass their own.
ErrorKind = Callable[[int, Message], str | None]


def tool_names(tools: list[Json]) -> tuple[str, ...]:
    """Return the names in tool schemas of either shape: {"function": {"name"}} or {"name"}."""
    names: list[str] = []
    for tool in tools:
        function = tool.get("function")
        name: Any = function.get("name") if isinstance(function, dict) else tool.get("name")
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


def error_sites(messages: list[Message], tools: list[Json], kind_of: ErrorKind) -> list[ErrorSite]:
    """Return the error sites of a conversation: tool results that `kind_of` classifies, and calls of unknown tools."""
    available = tool_names(tools)
    # Call id -> name of the tool, since results often lack the name.
    callers: dict[str, str] = {}
    sites: list[ErrorSite] = []
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            if call.id is not None:
                callers[call.id] = call.name
            if available and call.name not in available:
                sites.append(
                    ErrorSite(
                        index=index,
                        kind="unknown_tool",
                        text=f"no tool named {call.name!r}",
                        tool=call.name,
                        call_id=call.id,
                        available_tools=available,
                    )
                )
        if message.role != "tool":
            continue
        kind = kind_of(index, message)
        if kind is not None:
            tool = callers.get(message.tool_call_id or "", message.name)
            sites.append(
                ErrorSite(
                    index=index,
                    kind=kind,
                    text=message.text,
                    tool=tool,
                    call_id=message.tool_call_id,
                    available_tools=available,
                )
            )
    return sites


def no_errors(index: int, message: Message) -> str | None:
    """An `ErrorKind` function for formats that do not mark failed calls; always returns None."""
    return None
