"""Logs of calls to the Responses API of OpenAI and to the Messages API of Anthropic:

    {request | params | input_request: {...}, response | message | answer: {...}, reward, task_id, ...}
    {model, system, messages, tools, ..., response: {...}}        the request beside the answer
    {object: response, instructions, tools, output, input}        a stored response with its input

A stored response alone has no input, which the API keeps apart (`/input_items`): it is quarantined. Logs of chat
completions are read by `openai-chat`.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected, guarded
from pairwright.sources.frameworks.requests_and_answers import experiences_of_call, is_response_object
from pairwright.sources.shapes.anthropic import is_anthropic_response

NAME = "api-log"
_REQUESTS = ("request", "params", "req", "input_request", "kwargs")
_ANSWERS = ("response", "message", "answer", "res", "output")
_REQUEST_FIELDS = frozenset(
    {
        "input",
        "input_items",
        "instructions",
        "system",
        "messages",
        "tools",
        "model",
        "usage",
        "output",
        "object",
        "text",
    }
)
_READ = frozenset({*_REQUESTS, *_ANSWERS, *_REQUEST_FIELDS})


def matches(value: Any) -> bool:
    """Whether a unit is a stored response, or has an answer of one of the two APIs and its request."""
    if not isinstance(value, dict):
        return False
    if is_response_object(value):
        return True
    return _answer(value) is not None and _request(value) is not None


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    row = mapping(value, "row")
    request: Json = _request(row) or {}
    if is_response_object(row):
        stored = row.get("input", row.get("input_items"))
        if stored is None:
            raise BadRecord("a stored response without its input: fetch /input_items and put it under `input`")
        # The API lists the input as {data: [item]}.
        request = {**row, "input": stored.get("data") if isinstance(stored, dict) else stored}
    answer = row if is_response_object(row) else _answer(row) or {}
    yield from experiences_of_call(NAME, origin, options, request, answer, row=row, read_fields=_READ)


def _answer(row: Json) -> Json | None:
    values = (row.get(key) for key in _ANSWERS)
    return next((item for item in values if is_response_object(item) or is_anthropic_response(item)), None)


def _request(row: Json) -> Json | None:
    for value in (*(row.get(key) for key in _REQUESTS), row):
        if isinstance(value, dict) and any(isinstance(value.get(key), list | str) for key in ("messages", "input")):
            return value
    return None


read = guarded(read_unit)

FORMAT = Format(name=NAME, unit="record", matches=matches, read=read, summary="Logs of the Responses and Messages APIs")
