"""Function-calling sets with the calls as JSON text (xLAM, APIGen):

    {query, answers: [{name, arguments}], tools: [{name, description, parameters}]}

The answer is one turn with these calls; nobody scored it. Parameters that are listed by name become JSON Schema.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, items, json_text, json_value, mapping, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.row_fields import reward_of, task_of

NAME = "xlam"
_READ = frozenset({"query", "answers", "tools"})
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() >= _READ or not isinstance(value["query"], str):
        return False
    try:
        listed = [json_value(value[key], key) for key in ("answers", "tools")]
    except BadRecord:
        return False
    return all(
        isinstance(one, list) and bool(one) and all(isinstance(item, dict) and "name" in item for item in one)
        for one in listed
    )


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the record of a row."""
    row = mapping(value, "row")
    calls = []
    for number, item in enumerate(items(json_value(row.get("answers"), "answers"), "answers")):
        call = mapping(item, f"answers[{number}]")
        name, arguments = text(call.get("name"), f"answers[{number}].name"), call.get("arguments", {})
        calls.append(ToolCall(name, json_text(arguments), f"call_{number}"))
    tools = [mapping(tool, "tools") for tool in items(json_value(row.get("tools"), "tools"), "tools")]
    reward, components = reward_of(row)
    yield Parts(
        NAME,
        origin,
        task=task_of(row),
        prompt=[Message("user", text(row.get("query"), "query"))],
        completion=[Message("assistant", tool_calls=tuple(calls))],
        tools=[_schema(tool) for tool in tools],
        reward=reward,
        reward_components=components,
        info=small_fields(row, _READ),
    )


def _schema(tool: Json) -> Json:
    """Return a tool as a function schema; parameters by name, {a: {type: str}}, become the properties of an object."""
    parameters = tool.get("parameters")
    if isinstance(parameters, dict) and "properties" not in parameters:
        properties = {name: _property(item) for name, item in parameters.items()}
        parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {**tool, "parameters": parameters}}


def _property(item: Any) -> Any:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return item
    kind = item["type"].partition(",")[0].strip()  # "str, optional"
    return {**item, "type": _TYPES.get(kind, kind)}


FORMAT = Format(NAME, "record", matches, read, "xLAM function calls")
