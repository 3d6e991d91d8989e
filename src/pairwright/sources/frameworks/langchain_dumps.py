"""Messages that LangChain's own functions write: a bare list, a row with a score, or the state of a graph.

    [{type: human | ai | system | tool, data: {content, tool_calls, ...}}]         messages_to_dict, chat histories
    [{lc: 1, type: constructor, id: [..., "AIMessage"], kwargs: {...}}]            dumpd
    [{type: human | ai | ..., content, tool_calls[{name, args, id}]}]              model_dump
    {messages | chat_history: any of these, ...}                                   a row, or the state of a graph
    {values{messages}, next[], config}                                             a snapshot of the state, in a stream

A tool message whose status is `error` is an error site. `invalid_tool_calls` are calls whose arguments are not JSON.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.datasets.row_format import as_row, history, history_format, history_in
from pairwright.sources.fields import has, items, list_or_empty, mapping
from pairwright.sources.shapes.langchain_messages import TYPES, messages_from_langchain

_KEYS = ("messages", "chat_history", "history")


def matches(value: Any) -> bool:
    """Whether a unit is a history whose messages all have one of the three forms."""
    messages = history_in(_unwrap(value), _KEYS)[0]
    return isinstance(messages, list) and bool(messages) and all(map(_is_message, messages))


def _take(row: Json) -> Iterator[Json]:
    messages, where = history_in(row, _KEYS)
    plain = [_plain(message, f"{where}[{number}]") for number, message in enumerate(items(messages, where))]
    yield history(messages_from_langchain(plain, where), read_fields=frozenset({where}))


def _is_message(value: Any) -> bool:
    if not has(value, type=str) or "role" in value:
        return False
    if value["type"] == "constructor":
        name = list_or_empty(value.get("id"))[-1:]
        return has(value, kwargs=dict) and any(isinstance(one, str) and "Message" in one for one in name)
    return value["type"] in TYPES and (has(value, data=dict) or "content" in value)


def _plain(message: Any, where: str) -> Json:
    """Return the fields of a message without its wrapper; calls with invalid arguments are kept as calls."""
    message = mapping(message, where)
    if isinstance(message.get("data"), dict):
        message = {"type": message.get("type"), **message["data"]}
    fields: Json = message["kwargs"] if isinstance(message.get("kwargs"), dict) else message
    broken = fields.get("invalid_tool_calls")
    if isinstance(broken, list) and broken and isinstance(fields.get("tool_calls", []), list):
        fields = {**fields, "tool_calls": [*(fields.get("tool_calls") or []), *broken]}
    return {**message, "kwargs": fields} if "kwargs" in message else fields


def _unwrap(value: Any) -> Any:
    """Return the fields of a serialized object around the messages, such as a ChatPromptValue."""
    if not isinstance(value, dict):
        return value
    if "lc" in value and isinstance(value.get("kwargs"), dict):
        return value["kwargs"]
    # A snapshot of a graph's state: {values{messages}, next[], config{}, metadata{}}
    if isinstance(value.get("values"), dict) and "config" in value and "next" in value:
        return {**value["values"], "config": value["config"], "metadata": value.get("metadata")}
    return value


FORMAT = history_format(
    "langchain",
    "LangChain messages and graph states",
    matches,
    _take,
    begin=lambda value: as_row(_unwrap(value)),
)
