"""The kind of a failure, told from its type or text, in the words that all formats use."""

_WORDS = (
    ("timeout", ("timeout", "timed out")),
    ("file_not_found", ("filenotfound", "no such file")),
    ("unknown_tool", ("unknown tool", "unknowntool", "tool not found", "no tool named")),
    ("invalid_arguments", ("validationerror", "validation error", "invalid argument", "jsondecodeerror")),
)


def failure_kind(hint: object, default: str) -> str:
    words = hint[:1000].lower() if isinstance(hint, str) else ""
    for kind, signs in _WORDS:
        if any(sign in words for sign in signs):
            return kind
    return default
