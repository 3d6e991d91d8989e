"""Logs of gateways in front of model APIs, declared by the paths of request and answer:

    Helicone          {request_body, response_body, response_status, scores{name: {value}}}
    Amazon Bedrock    {schemaType: ModelInvocationLog, input{inputBodyJson}, output{outputBodyJson}, modelId}, or a
                      request of the Converse API with its answer: {system, messages, output{message}}

Requests and answers have the shapes of their APIs (sources/shapes/any_messages.py). Several choices are candidates of
one task. A failed request, or one whose bodies are stored elsewhere, is refused.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.records.messages import Json
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import BadRecord, filled, has, object_or_empty, score, text_or_none, value_at
from pairwright.sources.frameworks.api_logs import NAME
from pairwright.sources.shapes.any_messages import answers, conversation, decode_json_text, tools_in
from pairwright.sources.shapes.row_fields import reward_of

# Keys that identify a log -> paths of its request, answer and model
_LAYOUTS = {
    ("request_body", "response_body"): ("request_body", "response_body", "request_model"),
    ("schemaType", "modelId"): ("input.inputBodyJson", "output.outputBodyJson", "modelId"),
}
_CONVERSE = ("", "output", "modelId")
_FIELDS = "messages tools request_body response_body input output scores request_model modelId"


def _layout_of(value: Any) -> tuple[str, str, str] | None:
    if has(value, messages=list) and has(value.get("output"), message=dict):
        return _CONVERSE
    return next((paths for keys, paths in _LAYOUTS.items() if has(value, *keys)), None)


def matches(value: Any) -> bool:
    return _layout_of(value) is not None


def _take(row: Json) -> Iterator[Json]:
    layout = _layout_of(row)
    if layout is None:
        raise BadRecord("neither a log of Helicone nor of Amazon Bedrock")
    request_path, answer_path, model_path = layout
    answer = decode_json_text(value_at(row, answer_path))
    request = decode_json_text(value_at(row, request_path)) if request_path else row
    if request is None or answer is None:
        missing = request_path if request is None else answer_path
        raise BadRecord(f"{missing}: not in the log, so the call failed or its body is stored elsewhere")
    fields: Json = request if isinstance(request, dict) else {}
    # `system_of` reads the system prompt in the forms of all APIs.
    bare = {key: item for key, item in fields.items() if key not in SYSTEMS} if fields else request
    messages = conversation(bare, request_path or "request", role="user")
    prompt = [*system_of(fields, messages), *messages]
    alternatives = answers(answer, answer_path)
    if not prompt or not alternatives:
        raise BadRecord("a call without messages, or without an answer")
    reward, components = reward_of(row)
    scores = {**(components or {}), **_scores(row.get("scores"))}
    for completion in alternatives:
        yield {
            "prompt": prompt,
            "completion": completion,
            "tools": tools_in(request),
            "reward": msgspec.UNSET if reward is None else reward,
            "reward_components": scores or None,
            "model_version": text_or_none(value_at(row, model_path)),
        }


def _scores(value: Any) -> Json:
    """Return scores by name: numbers, or objects with a `value`."""
    listed = object_or_empty(value).items()
    return filled({name: score(item.get("value") if isinstance(item, dict) else item) for name, item in listed})


FORMAT = RowFormat(
    NAME,
    "Logs of model gateways",
    matches,
    _take,
    frozenset({*_FIELDS.split(), *SYSTEMS}),
    has_system=False,
    has_runs=True,
).format
