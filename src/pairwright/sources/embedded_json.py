"""JSON inside JSON: fields that some files hold as text, so that a table can store them."""

from typing import Any

import msgspec

from pairwright.sources.fields import BadRecord


def json_value(value: Any, where: str) -> Any:
    """The value of a field that may be JSON text; empty text is None."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadRecord(f"{where}: text that is no JSON ({error})") from None
