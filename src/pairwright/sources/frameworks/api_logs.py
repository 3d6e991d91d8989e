"""Logs of calls to OpenAI's Responses API, Anthropic's Messages API and Google's generateContent:

    {request | params | input_request: {...}, response | message | answer: {...}, reward, task_id, ...}
    {model, system, messages, tools, ..., response: {...}}        the request next to the answer
    {object: response, instructions, tools, output, input}        a stored response with its input

A stored response without its input, which the API stores separately (`/input_items`), is quarantined. Logs of chat
completions are read by `openai-chat`.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.datasets.row_format import history_format
from pairwright.sources.fields import BadRecord, items
from pairwright.sources.frameworks.batch_files import matches as is_batch_line
from pairwright.sources.frameworks.requests_and_answers import is_response_object, records_of_call, request_field

NAME = "api-log"
_REQUESTS = ("request", "params", "req", "input_request", "kwargs")
_ANSWERS = ("response", "message", "answer", "res", "output")
_FIELDS = "input input_items contents instructions system messages tools model usage object text"


def matches(value: Any) -> bool:
    """Whether a unit is a stored response, or has an answer of one of the three APIs and its request."""
    # `call_type` is a field of LiteLLM's logs, which `litellm` reads.
    if not isinstance(value, dict) or "call_type" in value or is_batch_line(value):
        return False
    if is_response_object(value):
        return True
    answer = _answer(value)
    return answer is not None and _request(value, answer) is not None


def _take(row: Json) -> Iterator[Json]:
    if not is_response_object(row):
        answer = _answer(row) or {}
        yield from records_of_call(_request(row, answer) or {}, answer)
        return
    stored = row.get("input", row.get("input_items"))
    if stored is None:
        raise BadRecord("a stored response without its input: fetch /input_items and put it under `input`")
    if isinstance(stored, dict):
        page, stored = stored, items(stored.get("data"), "input.data")
        if len(stored) > 1 or page.get("has_more"):
            reason = "a page of /input_items, in an order that is not known: put the items in order as a list"
            raise BadRecord(f"input: {reason}")
    yield from records_of_call({**row, "input": stored}, row)


def _answer(row: Json) -> Json | None:
    values = (row.get(key) for key in _ANSWERS)
    return next((item for item in values if request_field(item) is not None), None)


def _request(row: Json, answer: Json) -> Json | None:
    """Return the request of an answer: the object with the request field of the answer's API."""
    key = request_field(answer) or "messages"
    for value in (*(row.get(place) for place in _REQUESTS), row):
        if isinstance(value, dict) and isinstance(value.get(key), list | str):
            return value
    return None


FORMAT = history_format(
    NAME,
    "Logs of the Responses, Messages and generateContent APIs",
    matches,
    _take,
    frozenset({*_REQUESTS, *_ANSWERS, *_FIELDS.split()}),
)
