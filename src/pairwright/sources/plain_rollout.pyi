"""What native/plain_rollout.c gives to Python."""

from collections.abc import Callable
from typing import Any

from pairwright.messages import Json
from pairwright.sources.plain_answer import Answer

def read_rollout(
    line: bytes,
    known: bytes,
    names: tuple[bytes, ...],
    decode: Callable[[bytes], Any],
    pack: Callable[[Any], bytes],
    error_kind: Callable[[str], str | None],
) -> tuple[Answer, tuple[Any, Any, Any, bytes, str | None, Json | None], int, int] | bytes | None:
    """A plain line: its completion, what the row says beside that, and whether the response has tools, instructions.

    `known` is the JSON text of what the rollout was given, an object, and `names` the tools in it. For a line that was
    given something else, that is returned: call again with it. None: not plain.
    """
