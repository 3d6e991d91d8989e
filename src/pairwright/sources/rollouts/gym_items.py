"""Fast path for typical NeMo Gym responses: typed decoding, and completions without Message objects.

Most items of a large import are plain calls, results, assistant texts and reasoning summaries. `read_completion`
converts them directly to the completion cells of the table. The result equals that of `messages_from_items`
(sources/shapes/responses.py) and `canonical_messages` (records/canonical.py); tests/sources/test_gym_rows.py compares
them. An unlisted field raises ValidationError, and the line falls back to the general code of
sources/rollouts/nemo_gym.py. Ignored fields are declared as Any so that they are still decoded, and invalid JSON or
UTF-8 anywhere in a line is detected.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pairwright.records.json_text import decode
from pairwright.sources.shapes.tool_errors import text_error_kind


class _Part(Struct, gc=False, forbid_unknown_fields=True):
    text: str
    type: str = ""
    annotations: list[Any] | None = None
    logprobs: Any = None


class Item(Struct, gc=False, forbid_unknown_fields=True):
    """An item of any common type; not a tagged union, since `type` often comes last and would need a second scan."""

    type: str
    id: Any = None
    status: Any = None
    role: str | None = None
    content: str | list[_Part] | None = None
    name: str | UnsetType = UNSET
    arguments: str | None = None
    call_id: str | None = None
    output: str | None = None
    summary: list[_Part] | None = None
    encrypted_content: None = None


class Response(Struct, gc=False):
    output: list[Item]
    model: str | None = None
    tools: Any = None
    instructions: Any = None
    incomplete_details: Any = None


# The rest of the Responses API, which the reader ignores.
_IGNORED = """id object created_at completed_at status error metadata parallel_tool_calls temperature tool_choice top_p
    background conversation max_output_tokens max_tool_calls previous_response_id prompt prompt_cache_key
    prompt_cache_retention reasoning safety_identifier service_tier text top_logprobs truncation usage user billing
    store frequency_penalty presence_penalty"""
if TYPE_CHECKING:
    WholeResponse = Response
else:
    WholeResponse = msgspec.defstruct(
        "WholeResponse",
        [(name, Any, None) for name in _IGNORED.split()],
        bases=(Response,),
        gc=False,
        forbid_unknown_fields=True,
    )


class _Call(Struct, gc=False, omit_defaults=True):
    """Encodes like ToolCall, without validation."""

    name: str
    arguments: str
    id: str


class _Turn(Struct, gc=False, omit_defaults=True):
    """Encodes like Message, without validation."""

    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[_Call] = ()
    tool_call_id: str | None = None


class Completion(Struct, gc=False):
    turns: list[_Turn]
    canonical: list[Any]
    num_characters: int
    num_calls: int


_END = Item(type="")  # behind the last item, so that the last turn is closed


def read_completion(items: list[Item], tool_names: tuple[str, ...]) -> Completion | None:
    """Merge items into turns as sources/shapes/responses.py does; None if an item is not typical or shows an error."""
    turns: list[_Turn] = []
    canonical: list[Any] = []
    # Call ids as numbers in order of appearance: canonical messages do not depend on how ids were made.
    call_numbers: dict[str, int] = {}
    content = reasoning = None  # these two and the calls are of the open assistant turn
    calls: list[_Call] = []
    canonical_calls: list[Any] = []
    num_characters = num_calls = 0
    for item in (*items, _END):
        kind = item.type
        if kind == "function_call":
            name, arguments, call_id = item.name, item.arguments, item.call_id
            if name is UNSET or arguments is None or call_id is None or (tool_names and name not in tool_names):
                return None
            number = call_numbers.setdefault(call_id, len(call_numbers))
            calls.append(_Call(name, arguments, call_id))
            canonical_calls.append((number, name, decode(arguments)))  # raises for what is not JSON
            num_characters += len(arguments)
            num_calls += 1
            continue
        # Whatever follows a text or a call closes the turn; reasoning alone goes on into a text.
        if calls:
            turns.append(_Turn("assistant", content, reasoning, calls))
            canonical.append(("assistant", content or "", reasoning or "", None, canonical_calls, None))
            content = reasoning = None
            calls, canonical_calls = [], []
        elif content is not None or (reasoning is not None and (kind == "function_call_output" or item is _END)):
            turns.append(_Turn("assistant", content, reasoning))
            canonical.append(("assistant", content or "", reasoning or "", None))
            content = reasoning = None
        if kind == "function_call_output":
            output, call_id = item.output, item.call_id
            if output is None or call_id is None or text_error_kind(output) is not None:
                return None
            turns.append(_Turn("tool", output, None, (), call_id))
            canonical.append(("tool", output, "", None, (), call_numbers.get(call_id, call_id)))
            num_characters += len(output)
        elif kind == "reasoning":
            thought = "\n".join([part.text for part in item.summary or () if part.text])
            if item.content or not thought:
                return None
            num_characters += len(thought) + (reasoning is not None)
            reasoning = thought if reasoning is None else f"{reasoning}\n{thought}"
        elif item is not _END:
            content = _read_text(item)
            if content is None:
                return None
            num_characters += len(content)
    return Completion(turns, canonical, num_characters, num_calls) if turns else None


def _read_text(item: Item) -> str | None:
    """Return the text of an assistant message with no other content, or None."""
    if item.type != "message" or item.role != "assistant" or item.status not in (None, "completed"):
        return None
    if item.name is not UNSET or item.summary is not None:
        return None
    # Fields of calls and results on a message: not usual.
    if not (item.arguments is item.call_id is item.output is None):
        return None
    content = item.content
    if not isinstance(content, list):
        return content
    if len(content) != 1 or content[0].type != "output_text" or content[0].annotations:
        return None
    return content[0].text
