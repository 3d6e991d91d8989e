"""The kind of a failure (messages.ERROR_KINDS), from its type or text, in the words that all formats use."""

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
    words = hint[:1000].lower() if isinstance(hint, str) else ""
    for kind, signs in _WORDS:
        if any(sign in words for sign in signs):
            return kind
    return default
