"""NeMo Gym rollouts: JSON Lines with items of the Responses API.

    responses_create_params   {input: text or items, tools, instructions, metadata}: the prompt; instructions first.
                              Without an input, the problem statement in the metadata (STATEMENTS)
    response.output           items, see sources/shapes/responses.py (older files: top-level `output`): the completion
    agent_ref, _ng_task_index the task, as the JSON text of [agent name, index]; without an index a hash of the prompt
    _ng_rollout_index         the run; the batch is the name of the file
    reward, reward_components numbers; `--reward` names a component, or a top-level number of the row
    everything else           info, if it is small; the names of larger fields are in info["not_read"]

System, developer and user turns at the start of the output belong to the prompt; later ones stay in the completion.
A failed rollout has an empty completion and is kept. A row of a reward profile ({"mean/reward": ..., "sample": row}) is
read as its sample, without a reward, since a mean over rollouts is not the reward of one; the statistics become
metrics. A truncated response (`incomplete_details`) is `response_truncated`.

Rollouts of a task repeat its `responses_create_params`: `decode` returns one object for equal values, so that each is
read only once.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    index,
    json_text,
    kind_of,
    mapping,
    object_or_empty,
    optional_mapping,
    score,
    small_fields,
    text_or_none,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import tools_from_chat
from pairwright.sources.shapes.recorded_tokens import recorded_tokens
from pairwright.sources.shapes.responses import messages_from_items
from pairwright.sources.shapes.traces import pick_reward

NAME = "nemo-gym"
PARAMS = "responses_create_params"
_READ = frozenset(
    {PARAMS, "response", "output", "reward", "reward_components", "agent_ref", "_ng_task_index", "_ng_rollout_index"}
)
_ROLLOUT_KEYS = ("response", "output", "reward", "_ng_rollout_index", "_ng_failure_class")
# Metadata keys that replace an empty input; the first one present is used.
STATEMENTS = ("problem_statement", "prompt", "question", "problem", "instruction", "query", "task_description")
_PROMPT_ROLES = ("system", "developer", "user")
_NUM_SHARED = 64  # tasks whose rollouts may be interleaved
_decode = msgspec.json.decode
_decode_raw = msgspec.json.Decoder(dict[str, Raw]).decode


def matches(value: Any) -> bool:
    if has(value) and _is_profile(value):
        return True
    return has(value, **{PARAMS: dict}) and any(key in value for key in _ROLLOUT_KEYS)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    if PARAMS not in row and _is_profile(row):
        metrics = {key: item for key, item in row.items() if key != "sample" and isinstance(item, int | float)}
        yield _experience(row["sample"], origin, options, metrics=metrics, is_profile=True)
    else:
        yield _experience(row, origin, options)


def _experience(
    row: Json, origin: Origin, options: Options, *, metrics: Json | None = None, is_profile: bool = False
) -> Parts:
    params = mapping(row.get(PARAMS), PARAMS)
    response = optional_mapping(row.get("response"), "response")
    output = _output(row, response, is_profile)
    prompt, tools = _context_of_rollout(params, response)
    completion = messages_from_items(output, "output") if output else []
    # Turns of the environment before the first generated one belong to the prompt.
    while completion and completion[0].role in _PROMPT_ROLES:
        prompt = (*prompt, completion.pop(0))
    info = small_fields(row, _READ)
    metadata = params.get("metadata")
    if metadata:
        info["metadata"] = metadata
    arrays = recorded_tokens(output, info) if output else None
    reward, components = _reward(row)
    number, agent = identifier(row.get("_ng_task_index")), row.get("agent_ref")
    name = text_or_none(agent.get("name") if isinstance(agent, dict) else agent)
    return Parts(
        NAME,
        origin,
        task=None if number is None else json_text([name, number]),
        run=index(row.get("_ng_rollout_index")),
        batch=_batch(origin.file),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        info=info,
        metrics=metrics,
        model_version=text_or_none(response.get("model")),
        truncate_status="response_truncated" if response.get("incomplete_details") else None,
        task_metadata=metadata,
        arrays=arrays,
    )


def _is_profile(row: Json) -> bool:
    return has(row.get("sample"), **{PARAMS: dict})


def _output(row: Json, response: Json, is_profile: bool) -> list[Any]:
    """Return the output items of a row; [] for a failed rollout, BadRecord if the row is not a rollout."""
    output = response.get("output")
    if output is None:
        output = row.get("output")
    if isinstance(output, list):
        return output
    if isinstance(output, str):
        return [{"role": "assistant", "content": output}]
    if output is not None:
        raise BadRecord(f"output: expected a list of items, got {kind_of(output)}")
    if not is_profile and not any(key in row for key in _ROLLOUT_KEYS):
        raise BadRecord("neither an output nor a reward: a task for rollouts, not a rollout")
    return []


class _Params(dict[str, Any]):
    """`responses_create_params`, with the prompt and tools cached after the first read."""

    context: tuple[tuple[Message, ...], tuple[Json, ...]] | None = None


def _context_of_rollout(params: Json, response: Json) -> tuple[tuple[Message, ...], tuple[Json, ...]]:
    """Return prompt and tools, shared by the rollouts of a task if `decode` returned one object for them."""
    # Instructions and tools of the response may differ between rollouts, so such a prompt is not shared.
    is_own = any(not params.get(key) and response.get(key) for key in ("instructions", "tools"))
    if is_own or not isinstance(params, _Params):
        return _read_context(params, response)
    if params.context is None:
        params.context = _read_context(params, {})
    return params.context


def _read_context(params: Json, response: Json) -> tuple[tuple[Message, ...], tuple[Json, ...]]:
    tools = params.get("tools") or response.get("tools")
    return tuple(prompt_of(params, response)), tuple(tools_from_chat(tools, "tools")) if tools else ()


def decode(line: bytes) -> Any:
    """Decode a line, reusing one object for equal `responses_create_params`, which the rollouts of a task repeat."""
    row: Any = _decode_raw(line)
    params = row.get(PARAMS)
    if params is None:
        return _decode(line)
    shared = _decode_params(bytes(params))
    return {key: shared if key == PARAMS else _decode(value) for key, value in row.items()}


@lru_cache(maxsize=_NUM_SHARED)
def _decode_params(text: bytes) -> Any:
    params = _decode(text)
    return _Params(params) if type(params) is dict else params


def prompt_of(params: Json, response: Json) -> list[Message]:
    """Return the prompt messages: instructions as system messages, then the input."""
    messages_in = params.get("input")
    if isinstance(messages_in, str):
        prompt = [Message("user", messages_in)]
    elif messages_in is None or isinstance(messages_in, list):
        prompt = messages_from_items(messages_in or [], "input")
    else:
        raise BadRecord(f"input: expected text or a list of items, got {kind_of(messages_in)}")
    if not prompt:  # agents with an empty input
        metadata = object_or_empty(params.get("metadata"))
        texts = [text for key in STATEMENTS if isinstance(text := metadata.get(key), str) and text.strip()]
        prompt = [Message("user", text) for text in texts[:1]]
    instructions = params.get("instructions") or response.get("instructions")
    if instructions:
        leading = messages_from_items(instructions, "instructions") if isinstance(instructions, list) else None
        prompt[:0] = [Message("system", json_text(instructions))] if leading is None else leading
    return prompt


@lru_cache(maxsize=64)
def _batch(file: str) -> str:
    return PurePath(file).stem


def _reward(row: Json) -> tuple[float | None, Json | None]:
    """Return the reward and its components. A reward object is read as components."""
    value, components = row.get("reward"), row.get("reward_components")

    if isinstance(value, dict):
        components, value = {**value, **(components if isinstance(components, dict) else {})}, None
    if not isinstance(components, dict):
        components = None
    if value is None and components:
        return pick_reward(components, None), components
    return score(value), components


FORMAT = Format(NAME, "record", matches, read, "NeMo Gym rollouts", decode=decode)
