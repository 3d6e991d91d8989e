"""Names that come from outside: checked once, here, before they touch a row or a path."""

import os
import re
import time
import uuid
from datetime import UTC, datetime

from pairwright.service.refusals import Refusal

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+/-]{0,254}[A-Za-z0-9])?")
_REVISION = re.compile(r"[0-9a-f]{7,40}")
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
MAX_PATH = 500


def check_name(value: str, field: str) -> str:
    """A name of a namespace, dataset, job or deployment."""
    if not _NAME.fullmatch(value) or ".." in value:
        raise Refusal(
            422,
            "bad_name",
            f"{field}: got {value[:200]!r}, expected 1 to 128 letters, digits, '.', '_' and '-', "
            "beginning and ending with a letter or digit, without '..'",
        )
    return value


def check_model_name(value: str, field: str) -> str:
    """A name such as `meta/llama-3.2-1b-instruct@v1.0.0+A100`."""
    if not _MODEL.fullmatch(value) or ".." in value or "//" in value:
        raise Refusal(
            422,
            "bad_name",
            f"{field}: got {value[:300]!r}, expected a model name such as 'meta/llama-3.2-1b-instruct@v1.0.0+A100'",
        )
    return value


def check_path(value: str, field: str = "path") -> str:
    """A path of a file inside a dataset: relative, without `.`, `..`, empty parts, backslashes, control characters."""
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
    """True for (the beginning of) a commit's id."""
    return _REVISION.fullmatch(value) is not None


def new_id(prefix: str) -> str:
    """`<prefix>-<base58 of a random uuid>`, the form that clients of the protocol know."""
    number, digits = uuid.uuid4().int, ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    return f"{prefix}-{digits}"


def now() -> str:
    """The time as every row and reply has it; texts sort as the times do."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age_seconds(moment: str) -> float:
    """How long ago a time of `now` was."""
    return time.time() - datetime.fromisoformat(moment).timestamp()


def split_reference(value: str, field: str) -> tuple[str, str]:
    """Namespace and name of `ns/name`."""
    namespace, _, name = value.partition("/")
    return check_name(namespace, f"{field} (namespace)"), check_name(name, f"{field} (name)")


def instance_id() -> str:
    return f"{os.getpid()}-{os.urandom(4).hex()}"
