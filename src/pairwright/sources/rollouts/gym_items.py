"""Fast path for typical NeMo Gym responses: typed decoding, and completions without Message objects.

Most items of a large import are plain calls, results, assistant texts and reasoning summaries. `read_completion`
converts them directly to the completion cells of the table. The result equals that of `messages_from_items`
(sources/shapes/responses.py) and `canonical_messages` (records/messages.py); tests/sources/test_gym_rows.py compares
them. An unlisted field raises ValidationError, and the line falls back to the general code of
sources/rollouts/nemo_gym.py. Ignored fields are declared as Any so that they are still decoded, and invalid JSON or
UTF-8 anywhere in a line is detected.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Json
from pairwright.sources.shapes.chat_messages import PlainCall
from pairwright.sources.shapes.plain_rows import NO_ARRAYS, Completion, PlainPrompt, errors_of


class _Part(Struct, gc=False, forbid_unknown_fields=True):
    text: str
    type: str = ""
    annotations: list[Any] | None = None
    logprobs: Any = None


_ABSENT = Raw(b"null")


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
    # Each item of the model repeats the ids of its whole prompt: read as text, so that most are never decoded.
    prompt_token_ids: Raw = _ABSENT
    generation_token_ids: Raw = _ABSENT
    generation_log_probs: Raw = _ABSENT


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


class _Turn(Struct, gc=False, omit_defaults=True):
    """Encodes like Message, without validation."""

    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[PlainCall] = ()
    tool_call_id: str | None = None
    name: None = None


_END = Item(type="")  # behind the last item, so that the last turn is closed


def read_completion(items: list[Item], prompt: PlainPrompt) -> Completion | None:
    """Merge items into turns as sources/shapes/responses.py does; None if an item is not typical."""
    turns: list[_Turn] = []
    canonical: list[Any] = []
    tool_names = prompt.tool_names
    # Call ids as numbers in order of appearance: canonical messages do not depend on how ids were made.
    call_numbers: dict[str, int] = {}
    content = reasoning = None  # these two and the calls are of the open assistant turn
    calls: list[PlainCall] = []
    canonical_calls: list[Any] = []
    results: list[str] = []
    called: list[str] = []
    answered: set[str] = set()
    num_characters = num_calls = 0
    has_errors, has_tokens = bool(prompt.errors), False
    for item in (*items, _END):
        kind = item.type
        has_tokens = has_tokens or item.generation_token_ids is not _ABSENT
        if kind == "function_call":
            name, arguments, call_id = item.name, item.arguments, item.call_id
            if name is UNSET or arguments is None or call_id is None:
                return None
            if tool_names and name not in tool_names:
                has_errors = True
            number = call_numbers.setdefault(call_id, len(call_numbers))
            calls.append(PlainCall(name, arguments, call_id))
            called.append(call_id)
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
            if output is None or call_id is None:
                return None
            results.append(output)
            answered.add(call_id)
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
    if not turns:
        return None
    arrays = _read_tokens(items) if has_tokens else NO_ARRAYS
    if arrays is None:
        return None
    errors = errors_of(prompt, encode(turns)) if has_errors else ()
    num_open = sum(call_id not in answered for call_id in called)
    results = [] if has_errors else results
    return Completion(turns, canonical, num_characters, num_calls, errors, results, num_open, arrays)


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


# Recorded token ids: as sources/shapes/recorded_tokens.py reads them, where each prompt repeats the text of what is
# before it.

_decode_ids = msgspec.json.Decoder(list[Annotated[int, Meta(ge=0, lt=2**31)]]).decode
_decode_logprobs = msgspec.json.Decoder(list[float]).decode


def _read_tokens(items: list[Item]) -> Json | None:
    """Return the token fields of a rollout in which every turn of the model has ids; None for any other."""
    ids: list[int] = []
    logprobs: list[float] | None = []
    spans: list[tuple[int, int]] = []  # number of tokens of the environment, and of the model after them
    before = b""  # JSON text of all ids so far, without the closing bracket
    prompt_length = 0
    is_open = False  # the model has written items since the last recorded ids
    for item in items:
        generation = bytes(item.generation_token_ids)
        if item.type == "function_call_output":
            if is_open or generation != b"null":
                return None
            continue
        is_open = generation == b"null"
        if is_open:
            continue
        prompt = bytes(item.prompt_token_ids)
        if not prompt.startswith(before) or (before and prompt[len(before) : len(before) + 1] not in (b",", b"]")):
            return None
        added = _decode_ids(b"[" + prompt[len(before) + 1 :]) if prompt[len(before) :] != b"]" else []
        generated = _decode_ids(generation)
        if not generated or not (added or before):
            return None
        if before:
            spans.append((len(added), len(generated)))
        else:
            prompt_length = len(added)
            spans.append((0, len(generated)))
        ids += added
        ids += generated
        if logprobs is not None:
            logprobs = _extend_logprobs(logprobs, spans[-1], item.generation_log_probs)
        # The separator of the ids, as the file's writer puts it: ", " or ","
        separator = b", " if b", " in prompt or b", " in generation else b","
        before = prompt[:-1] + separator + generation[1:-1]
    if is_open or not spans or (logprobs is None and any(item.generation_log_probs != _ABSENT for item in items)):
        return None
    mask = np.repeat(np.tile([False, True], len(spans)), np.array(spans).ravel())
    arrays: Json = {"prompt_length": prompt_length, "tokens": np.array(ids, np.int32), "action_mask": mask}
    return arrays if logprobs is None else {**arrays, "logprobs": np.array(logprobs, np.float32)}


def _extend_logprobs(logprobs: list[float], span: tuple[int, int], text: Raw) -> list[float] | None:
    """Add the log-probabilities of a turn; None if it has none. Tokens of the environment were not sampled: 0.0."""
    if text == _ABSENT:
        return None
    values = _decode_logprobs(text)
    if len(values) != span[1]:
        raise ValueError("not one log-probability a token")
    logprobs += [0.0] * span[0]
    logprobs += values
    return logprobs
