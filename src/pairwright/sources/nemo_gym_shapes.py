"""The shapes of a plain NeMo Gym rollout, for a decoder by type: a field that is not listed makes a line not plain.

What the reader does not look at is listed as Any: it is decoded all the same, so that a line with invalid JSON or UTF-8
anywhere in it is never plain.
"""

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, field

NULL = Raw(b"null")


class Part(Struct, gc=False, forbid_unknown_fields=True):
    type: str = ""
    text: str | None = None
    annotations: list[Any] | None = None
    logprobs: Any = None


class Item(Struct, gc=False, forbid_unknown_fields=True):
    """An item of any of the plain types; which fields it may have beside its own is checked where it is used."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    id: Any = None
    status: str | None = None
    arguments: str | None = None
    call_id: str | None = None
    name: str | UnsetType = UNSET
    output: str | None = None
    summary: list[Part] | None = None
    encrypted_content: Any = None


class Response(Struct, gc=False, forbid_unknown_fields=True):
    output: list[Item]
    model: str | None = None
    tools: Any = None
    instructions: Any = None
    incomplete_details: Any = None
    # The rest of the Responses API, which the reader does not look at.
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


class Row(Struct, gc=False, forbid_unknown_fields=True):
    responses_create_params: Raw
    response: Response
    reward: Any = None
    agent_ref: Raw = NULL
    task_index: Any = field(default=None, name="_ng_task_index")
    rollout_index: Any = field(default=None, name="_ng_rollout_index")
