"""What native/plain_rollout.c gives to Python."""

from collections.abc import Callable
from typing import Any

from pairwright.messages import Json
from pairwright.sources.plain_answer import Answer

# A failure: the message that shows it, its kind (None: a tool that does not exist), its text, the tool, the call.
Error = tuple[int, str | None, str | None, str | None, str]
# The completion, what the row says beside it, the failures, and whether the response has tools and instructions.
Found = tuple[Answer, tuple[Any, Any, Any, bytes, str | None, Json | None], list[Error] | None, int, int]

def read_rollout(
    line: bytes,
    known: bytes,
    names: tuple[bytes, ...],
    decode: Callable[[bytes], Any],
    pack: Callable[[Any], bytes],
    error_kind: Callable[[str], str | None],
) -> Found | bytes | None:
    """A plain line; None if it is not plain.

    `known` is the JSON text of what the rollout was given, an object, and `names` the tools in it. For a line that was
    given something else, that is returned: call again with it.
    """
