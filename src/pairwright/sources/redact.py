"""Redaction of secrets in traces: API keys, tokens and private keys are replaced by typed placeholders and reported.

Only unambiguous forms (known prefix and length) are replaced; false positives would damage training data.
"""

import re
from typing import Any

import msgspec

# The first matching alternative wins, so "sk-ant-..." comes before the wider "sk-...".
_PATTERNS = {
    "anthropic_key": r"sk-ant-[A-Za-z0-9_-]{20,}",
    "openai_key": r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}",
    "github_token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,}",
    "huggingface_token": r"hf_[A-Za-z0-9]{30,}",
    "nvidia_key": r"nvapi-[A-Za-z0-9_-]{40,}",
    "aws_key_id": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "google_key": r"AIza[A-Za-z0-9_-]{35}",
    "slack_token": r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    "gitlab_token": r"glpat-[A-Za-z0-9_-]{20,}",
    "stripe_key": r"[rs]k_(?:live|test)_[A-Za-z0-9]{20,}",
    "jwt": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "private_key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?-----END (?:[A-Z]+ )*PRIVATE KEY-----",
    "bearer_token": r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{20,}=*",
}
# One pass for all kinds, with a named group each. The lookbehind keeps a key from starting inside a word; re.S lets
# `.` match the newlines of a private key.
_ANY = re.compile(
    r"(?<![A-Za-z0-9])(?:" + "|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()) + ")", re.S
)


class Finding(msgspec.Struct, frozen=True):
    """A redacted secret: its kind, and its path in the record."""

    kind: str
    where: str


def redact(value: Any, where: str = "") -> tuple[Any, list[Finding]]:
    """Replace the secrets in a decoded JSON value by `[REDACTED:kind]`; return the new value and the findings."""
    findings: list[Finding] = []
    return _redact_value(value, where, findings), findings


def _redact_value(value: Any, where: str, findings: list[Finding]) -> Any:
    if isinstance(value, str):

        def placeholder(match: re.Match[str]) -> str:
            kind = match.lastgroup or "secret"
            findings.append(Finding(kind, where))
            return f"[REDACTED:{kind}]"

        return _ANY.sub(placeholder, value)
    if isinstance(value, dict):
        start = f"{where}." if where else ""
        return {key: _redact_value(item, f"{start}{key}", findings) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_value(item, f"{where}[{number}]", findings) for number, item in enumerate(value)]
    return value
