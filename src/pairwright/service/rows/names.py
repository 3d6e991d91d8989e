"""Names and paths from requests, checked; ids and timestamps."""

import hashlib
import re
import time
import uuid
from datetime import UTC, datetime

from pairwright.service.api_errors import Refusal

# Letters, digits, dots, underscores and dashes, with a letter or digit at both ends.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
# The same with slashes, and with @ and + for version and hardware.
_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+/-]{0,254}[A-Za-z0-9])?")
_REVISION = re.compile(r"[0-9a-f]{7,40}")
# Base58: without 0, O, I and l, which look alike.
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
MAX_PATH = 500
CHECKPOINT = ":ckpt-step-"  # between the name of a model and the step, as OpenAI writes it


def check_name(value: str, field: str) -> str:
    if not _NAME.fullmatch(value) or ".." in value:
        raise Refusal(
            422,
            "bad_name",
            f"{field}: got {value[:200]!r}, expected 1 to 128 letters, digits, '.', '_' and '-', "
            "beginning and ending with a letter or digit, without '..'",
        )
    return value


def check_model_name(value: str, field: str) -> str:
    """Validate a model name such as `meta/llama-3.2-1b-instruct@v1.0.0+A100`."""
    if CHECKPOINT in value:
        model = value.partition(CHECKPOINT)[0]
        message = f"{field}: {value[:300]!r} is a checkpoint from which its job resumes: ask {model[:300]!r}"
        raise Refusal(409, "checkpoint_not_served", message)
    if not _MODEL.fullmatch(value) or ".." in value or "//" in value:
        raise Refusal(
            422,
            "bad_name",
            f"{field}: got {value[:300]!r}, expected a model name such as 'meta/llama-3.2-1b-instruct@v1.0.0+A100'",
        )
    return value


def check_path(value: str, field: str = "path") -> str:
    """Validate a file path in a dataset: relative, without `.`, `..`, empty parts, backslashes, control characters."""
    parts = value.split("/")
    bad = (
        not value
        or len(value.encode("utf-8", "replace")) > MAX_PATH
        or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
        or "\\" in value
        or not value.isprintable()
        or parts[0] == ".git"
    )
    if bad:
        raise Refusal(
            422, "bad_path", f"{field}: got {value[:200]!r}, expected a relative path of a file inside the dataset"
        )
    return value


def is_commit(value: str) -> bool:
    """Return whether a value is a commit id or a prefix of at least seven hex digits."""
    return _REVISION.fullmatch(value) is not None


def new_id(prefix: str) -> str:
    """Create an id `<prefix>-<base58 of a random uuid>`, the format that clients expect."""
    number, digits = uuid.uuid4().int, ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    return f"{prefix}-{digits}"


def now() -> str:
    """Return the current time as text, in a format that sorts chronologically."""
    # Always microseconds and Z, so that all times have the same length and sort as text.
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age_seconds(moment: str) -> float:
    return time.time() - datetime.fromisoformat(moment).timestamp()


def split_reference(value: str, field: str) -> tuple[str, str]:
    namespace, _, name = value.partition("/")
    return check_name(namespace, f"{field} (namespace)"), check_name(name, f"{field} (name)")


def short_hash(text: str) -> str:
    """Return a name for any text: 20 hex digits of its hash."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:20]
