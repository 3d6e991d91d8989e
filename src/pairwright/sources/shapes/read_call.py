"""Tool calls of formats that differ only in the names of the fields."""

from pairwright.records.messages import Json, ToolCall
from pairwright.sources.fields import json_text, optional_text, text


def read_call(
    fields: Json,
    where: str,
    *,
    name: str = "name",
    arguments: str = "arguments",
    call_id: str = "id",
    missing: str = "",
) -> ToolCall:
    """Read a call from the fields with these names; `missing` is the text of arguments that are null or absent."""
    value = fields.get(arguments)
    return ToolCall(
        text(fields.get(name), f"{where}.{name}"),
        missing if value is None else json_text(value),
        optional_text(fields.get(call_id), f"{where}.{call_id}"),
    )
