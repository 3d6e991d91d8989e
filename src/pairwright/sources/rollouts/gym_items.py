"""The usual NeMo Gym response, decoded by type, and its completion without Message objects.

Most items of a large import are calls, results, assistant texts and reasoning summaries that hold nothing unusual.
`read_completion` turns those into what the table holds of a completion; it equals what `messages_from_items`
(responses.py) and `canonical_messages` (canonical.py) give, which tests/sources/test_gym_rows.py compares. A field that
is not listed here raises ValidationError, and the line is left to the general code of nemo_gym.py. Fields that the reader
ignores are listed as Any, so that they are still decoded: invalid JSON or UTF-8 anywhere in a line is noticed.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from pairwright.records.json_text import decode
from pairwright.sources.shapes.tool_errors import text_error_kind


class _Text(Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["output_text"]  # no tag, which may be missing outside a union
    text: str
    annotations: list[Any] | None = None
    logprobs: Any = None


class _Summary(Struct, gc=False, forbid_unknown_fields=True):
    text: str
    type: Any = None


class _AssistantItem(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="message"):
    role: Literal["assistant"]
    content: str | list[_Text]
    id: Any = None
    status: Literal["completed"] | None = None


class _ReasoningItem(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    summary: list[_Summary]
    content: list[Any] | None = None
    encrypted_content: None = None
    id: Any = None
    status: Any = None


class _CallItem(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    name: str
    arguments: str
    call_id: str
    id: Any = None
    status: Any = None


class _ResultItem(Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str
    id: Any = None
    status: Any = None


Item = _AssistantItem | _ReasoningItem | _CallItem | _ResultItem


class Response(Struct, gc=False, forbid_unknown_fields=True):
    output: list[Item]
    model: str | None = None
    tools: Any = None
    instructions: Any = None
    incomplete_details: Any = None
    # The rest of the Responses API, which the reader ignores.
    id: Any = None
    object: Any = None
    created_at: Any = None
    completed_at: Any = None
    status: Any = None
    error: Any = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    temperature: Any = None
    tool_choice: Any = None
    top_p: Any = None
    background: Any = None
    conversation: Any = None
    max_output_tokens: Any = None
    max_tool_calls: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    text: Any = None
    top_logprobs: Any = None
    truncation: Any = None
    usage: Any = None
    user: Any = None
    billing: Any = None
    store: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None


decode_response = msgspec.json.Decoder(Response).decode


class _Call(Struct, gc=False, omit_defaults=True):
    """Encodes as the ToolCall that it stands for, and checks nothing."""

    name: str
    arguments: str
    id: str


class _Turn(Struct, gc=False, omit_defaults=True):
    """Encodes as the Message that it stands for, and checks nothing."""

    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | tuple[()] = ()
    tool_call_id: str | None = None


class Completion(Struct, gc=False):
    turns: list[_Turn]
    canonical: list[Any]
    num_characters: int
    num_calls: int


def read_completion(items: list[Item], tool_names: tuple[str, ...]) -> Completion | None:
    """The turns of items, joined as responses.py does; None if an item is unusual or shows an error."""
    turns: list[_Turn] = []
    canonical: list[Any] = []
    call_numbers: dict[str, int] = {}
    content = reasoning = None  # these two and the calls are of the open assistant turn
    calls: list[_Call] = []
    canonical_calls: list[Any] = []
    num_characters = num_calls = 0
    for item in (*items, None):  # None closes the last turn
        kind = type(item)
        if kind is _CallItem:
            name, arguments, call_id = item.name, item.arguments, item.call_id
            if tool_names and name not in tool_names:
                return None
            number = call_numbers.setdefault(call_id, len(call_numbers))
            calls.append(_Call(name, arguments, call_id))
            canonical_calls.append((number, name, decode(arguments)))  # raises for torn JSON
            num_characters += len(arguments)
            num_calls += 1
            continue
        # Whatever follows a text or a call closes the turn; reasoning alone goes on into a text.
        if calls:
            turns.append(_Turn("assistant", content, reasoning, calls))
            canonical.append(("assistant", content or "", reasoning or "", None, canonical_calls, None))
            content = reasoning = None
            calls, canonical_calls = [], []
        elif content is not None or (reasoning is not None and (kind is _ResultItem or item is None)):
            turns.append(_Turn("assistant", content, reasoning))
            canonical.append(("assistant", content or "", reasoning or "", None))
            content = reasoning = None
        if kind is _ResultItem:
            output, call_id = item.output, item.call_id
            if text_error_kind(output) is not None:
                return None
            turns.append(_Turn("tool", output, None, (), call_id))
            canonical.append(("tool", output, "", None, (), call_numbers.get(call_id, call_id)))
            num_characters += len(output)
        elif kind is _ReasoningItem:
            thought = "\n".join([part.text for part in item.summary if part.text])
            if item.content or not thought:
                return None
            num_characters += len(thought) + (reasoning is not None)
            reasoning = thought if reasoning is None else f"{reasoning}\n{thought}"
        elif kind is _AssistantItem:
            content = item.content
            if type(content) is list:
                if len(content) != 1 or content[0].annotations:
                    return None
                content = content[0].text
            num_characters += len(content)
    return Completion(turns, canonical, num_characters, num_calls) if turns else None
