"""Run states of the OpenAI Agents SDK for Python (`result.to_state().to_json()`), complete or interrupted:

    {$schemaVersion, original_input: text or items, generated_items[{type, raw_item, agent{name}}], current_agent, ...}

The prompt is the original input, the completion the raw items of the run, which are items of the Responses API.
Approval requests are not part of the conversation: a call that waits for approval has no result. Instructions and tools
are not in the state: prompts are incomplete. A run whose start is stored on the server (`conversation_id`,
`previous_response_id`) is refused. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Message
from pairwright.sources.assemble import NO_ANSWER, Parts
from pairwright.sources.fields import BadRecord, has, items, mapping, object_or_empty, plain_numbers, text_at, value_at
from pairwright.sources.format import Format, Options, Origin
from pairwright.sources.shapes.responses import messages_from_items

NAME = "openai-agents"
_APPROVALS = frozenset({"tool_approval_item", "mcp_approval_request_item", "mcp_approval_response_item"})


def matches(value: Any) -> bool:
    return has(value, "$schemaVersion", "original_input", "generated_items")


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts]:
    state = mapping(value, "state")
    for key in ("conversation_id", "previous_response_id"):
        if state.get(key) and state.get("auto_previous_response_id") is not True:
            raise BadRecord(f"{key}: the server holds a part of the prompt, which is not in the file")
    given = state.get("original_input")
    generated = [mapping(item, "generated_items") for item in items(state.get("generated_items"), "generated_items")]
    raw = [item.get("raw_item") for item in generated if text_at(item, "type") not in _APPROVALS]
    completion = messages_from_items(raw, "generated_items")
    if not any(message.is_generated for message in completion):
        raise BadRecord(NO_ANSWER)
    agents = dict.fromkeys(name for item in generated if (name := text_at(item, "agent.name")) is not None)
    info = {"agents": list(agents), "trace_id": value_at(state, "trace.id")}
    info["workflow"] = value_at(state, "trace.workflow_name")
    if isinstance(given, str):
        prompt = [Message("user", given)]
    else:
        prompt = messages_from_items(items(given, "original_input"), "original_input")
    yield Parts(
        NAME,
        origin,
        prompt=prompt,
        completion=completion,
        info={key: item for key, item in info.items() if item},
        metrics=plain_numbers(object_or_empty(state.get("context")).get("usage")),
    )


FORMAT = Format(NAME, "record", matches, read, "Run states of the OpenAI Agents SDK")
