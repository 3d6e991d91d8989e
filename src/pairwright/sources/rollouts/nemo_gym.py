"""NeMo Gym rollouts: JSON Lines with items of the Responses API.

    responses_create_params   {input: text or items, tools, instructions, metadata}: the prompt; instructions first.
                              Without an input, the text of the metadata that states the problem (STATEMENTS)
    response.output           items, see sources/shapes/responses.py (older files: top-level `output`): the completion
    agent_ref, _ng_task_index the task, as the JSON text of [agent name, index]; without an index a hash of the prompt
    _ng_rollout_index         the run; the batch is the name of the file
    reward, reward_components numbers; `options.reward` names a component, or a top-level number of the row
    everything else           info, if it is small; the names of larger fields are in info["not_read"]

System, developer and user turns at the start of the output belong to the prompt; later ones stay in the completion.
A failed rollout has an empty completion and is kept. A row of a reward profile ({"mean/reward": ..., "sample": row}) is
read as its sample, without a reward, since a mean over rollouts is not the reward of one; the statistics are its
metrics. A truncated response (`incomplete_details`) is `response_truncated`.

Typical lines take a fast path from JSON text to table cells (`read_rows`); all others use `decode` and `read`.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Raw, Struct

from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    index,
    json_text,
    kind_of,
    mapping,
    optional_mapping,
    score,
    small_fields,
)
from pairwright.sources.format import Format, Options, Origin, Record, Rejected, build
from pairwright.sources.rollouts.gym_items import WholeResponse, read_completion
from pairwright.sources.shapes.chat_messages import tools_from_chat
from pairwright.sources.shapes.plain_rows import (
    NO_TOOLS,
    PlainPrompt,
    PlainRecord,
    PlainTools,
    plain_reader,
    read_prompt,
    read_tools,
)
from pairwright.sources.shapes.recorded_tokens import recorded_tokens
from pairwright.sources.shapes.responses import messages_from_items
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind
from pairwright.sources.shapes.traces import pick_reward

NAME = "nemo-gym"
PARAMS = "responses_create_params"
_READ = frozenset(
    {PARAMS, "response", "output", "reward", "reward_components", "agent_ref", "_ng_task_index", "_ng_rollout_index"}
)
_ROLLOUT_KEYS = ("response", "output", "reward", "_ng_rollout_index", "_ng_failure_class")
# Texts of the metadata that stand for an empty input, the first that is there.
STATEMENTS = ("problem_statement", "prompt", "question", "problem", "instruction", "query", "task_description")
_PROMPT_ROLES = ("system", "developer", "user")
# Caches of data shared by the rollouts of a task. `_PARAMS_SEEN`: JSON text of the parameters -> decoded object.
# `_PROMPTS`: id of that object -> (object, prompt, tools); the entry references the object, so its id is not reused.
_NUM_SHARED = 64
_PARAMS_SEEN: dict[bytes, Any] = {}
_PROMPTS: dict[int, tuple[Json, tuple[Message, ...], tuple[Json, ...]]] = {}
_decode = msgspec.json.decode
_decode_raw = msgspec.json.Decoder(dict[str, Raw]).decode


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if _is_profile(value):
        return True
    return isinstance(value.get(PARAMS), dict) and any(key in value for key in _ROLLOUT_KEYS)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Record | Rejected]:
    row = mapping(value, "row")
    if PARAMS not in row and _is_profile(row):
        metrics = {key: item for key, item in row.items() if key != "sample" and isinstance(item, int | float)}
        yield _experience(row["sample"], origin, options, metrics=metrics, is_profile=True)
    else:
        yield _experience(row, origin, options)


def _experience(
    row: Json, origin: Origin, options: Options, *, metrics: Json | None = None, is_profile: bool = False
) -> Record:
    """Build the experience of one rollout row."""
    params = mapping(row.get(PARAMS), PARAMS)
    response = optional_mapping(row.get("response"), "response")
    output = _output(row, response, is_profile)
    prompt, tools = _prompt_of_rollout(params, response)
    completion = messages_from_items(output, "output") if output else []
    # Turns of the environment before the model first wrote are part of what it was given.
    while completion and completion[0].role in _PROMPT_ROLES:
        prompt = (*prompt, completion.pop(0))
    info = small_fields(row, _READ)
    metadata = params.get("metadata")
    if metadata:
        info["metadata"] = metadata
    arrays = recorded_tokens(output, info) if output else None
    reward, components = _reward(row, options)
    number = identifier(row.get("_ng_task_index"))
    model = response.get("model")
    return build(
        NAME,
        origin,
        task=None if number is None else json_text([_agent_name(row), number]),
        run=index(row.get("_ng_rollout_index")),
        batch=_batch(origin.file),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=_errors(prompt, completion, tools),
        info=info,
        metrics=metrics,
        model_version=model if isinstance(model, str) else None,
        truncate_status="response_truncated" if response.get("incomplete_details") else None,
        task_metadata=metadata,
        arrays=arrays,
    )


def _is_profile(row: Json) -> bool:
    sample = row.get("sample")
    return isinstance(sample, dict) and isinstance(sample.get(PARAMS), dict)


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


def _prompt_of_rollout(params: Json, response: Json) -> tuple[tuple[Message, ...], tuple[Json, ...]]:
    """Return prompt and tools, cached per `params` object, which the rollouts of a task share (see `decode`)."""
    # The response adds to what the parameters say: not the same for all rollouts, so not shared.
    if (not params.get("instructions") and response.get("instructions")) or (
        not params.get("tools") and response.get("tools")
    ):
        return _build_prompt(params, response)
    known = _PROMPTS.get(id(params))
    if known is None or known[0] is not params:
        if len(_PROMPTS) >= _NUM_SHARED:
            _PROMPTS.clear()
        known = _PROMPTS[id(params)] = (params, *_build_prompt(params, {}))
    return known[1], known[2]


def _build_prompt(params: Json, response: Json) -> tuple[tuple[Message, ...], tuple[Json, ...]]:
    tools = params.get("tools") or response.get("tools")
    return tuple(prompt_of(params, response)), tuple(tools_from_chat(tools, "tools")) if tools else ()


def decode(line: bytes) -> Any:
    """Decode a line, reusing one object for equal `responses_create_params`, which the rollouts of a task repeat."""
    row: Any = _decode_raw(line)
    params = row.get(PARAMS)
    if params is None:
        return _decode(line)
    text = bytes(params)
    shared = _PARAMS_SEEN.get(text)
    if shared is None:
        if len(_PARAMS_SEEN) >= _NUM_SHARED:
            _PARAMS_SEEN.clear()
        shared = _PARAMS_SEEN[text] = _decode(text)
    return {key: shared if key == PARAMS else _decode(value) for key, value in row.items()}


def prompt_of(params: Json, response: Json) -> list[Message]:
    """Return the prompt messages: instructions as system messages, then the input."""
    messages_in = params.get("input")
    if isinstance(messages_in, list):
        prompt = messages_from_items(messages_in, "input")
    elif isinstance(messages_in, str):
        prompt = [Message("user", messages_in)]
    elif messages_in is None:
        prompt = []
    else:
        raise BadRecord(f"input: expected text or a list of items, got {kind_of(messages_in)}")
    if not prompt:
        prompt = _stated_problem(params.get("metadata"))
    instructions = params.get("instructions") or response.get("instructions")
    if instructions:
        leading = messages_from_items(instructions, "instructions") if isinstance(instructions, list) else None
        prompt[:0] = [Message("system", json_text(instructions))] if leading is None else leading
    return prompt


def _stated_problem(metadata: Any) -> list[Message]:
    """Return the problem that the metadata state as a user turn; agents that fetch their task have an empty input."""
    texts = [metadata.get(key) for key in STATEMENTS] if isinstance(metadata, dict) else []
    statement = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return [] if statement is None else [Message("user", statement)]


def _agent_name(row: Json) -> str | None:
    agent = row.get("agent_ref")
    name = agent.get("name") if isinstance(agent, dict) else agent
    return name if isinstance(name, str) else None


@lru_cache(maxsize=64)
def _batch(file: str) -> str:
    return PurePath(file).stem


def _reward(row: Json, options: Options) -> tuple[float | None, Json | None]:
    """Return the reward and its components. A reward that is an object is read as components."""
    value, components = row.get("reward"), row.get("reward_components")
    # The usual row, without the lookups below.
    if type(value) is float and components is None and options.reward is None:
        return value, None
    if isinstance(value, dict):
        components, value = {**value, **(components if isinstance(components, dict) else {})}, None
    if not isinstance(components, dict):
        components = None
    name = options.reward
    if name is not None:
        named = score((components or {}).get(name))
        return (score(row.get(name)) if named is None else named), components
    if value is None and components:
        return pick_reward(components, None), components
    return score(value), components


def _errors(prompt: tuple[Message, ...], completion: list[Message], tools: tuple[Json, ...]) -> list[ErrorSite]:
    """Return the error sites, with a fast check for the common case of none."""
    names: list[Any] | None = None
    for message in (*prompt, *completion):
        if message.role == "tool":
            if result_error_kind(0, message) is not None:
                break
        elif message.tool_calls:
            # Only schemas of the Responses API have `name` at the top; others go on to `error_sites`.
            names = [tool.get("name") for tool in tools] if names is None else names
            if [call for call in message.tool_calls if call.name not in names]:
                break
    else:
        return []
    return error_sites([*prompt, *completion], list(tools), result_error_kind)


# Fast path from a typical line to its table row. Lines that raise or return None here fall back to the general code
# above, which reports all errors. tests/sources/test_gym_rows.py compares the two.

_NULL = Raw(b"null")
_NOT_USUAL = ("output", "reward_components", "tokens_dropped")
_NO_FIELDS: frozenset[str] = frozenset()


class _Task(Struct, gc=False):
    """Data shared by the rollouts of a task: what `responses_create_params` gives."""

    params: Raw
    prompt: PlainPrompt
    has_instructions: bool
    info: Json
    # The last rollout's `agent_ref` and `_ng_task_index`, of which `task` is the id
    agent: Raw = Raw()
    index: Any = None
    task: str | None = None


class _Row(Struct, gc=False, forbid_unknown_fields=True):
    responses_create_params: Raw
    response: WholeResponse
    reward: Any = None
    agent_ref: Raw = _NULL
    task_index: Any = msgspec.field(default=None, name="_ng_task_index")
    rollout_index: Any = msgspec.field(default=None, name="_ng_rollout_index")


_decode_bare_row = msgspec.json.Decoder(_Row).decode
_decode_response = msgspec.json.Decoder(WholeResponse).decode


def _read_plain(line: tuple[_Row, Json], origin: Origin) -> PlainRecord | None:
    """Read a decoded typical line; returns None or raises one of UNUSUAL for any other line."""
    row, more = line
    response, task = row.response, _task_of(row.responses_create_params)
    prompt = task.prompt
    completion = read_completion(response.output, prompt)
    if completion is None or response.incomplete_details:
        return None
    # The response adds tools or instructions that the parameters lack, as in `_prompt_of_rollout`.
    if (response.tools and not prompt.tools) or (response.instructions and not task.has_instructions):
        return None
    reward = row.reward
    if type(reward) is not float:
        if isinstance(reward, dict):
            return None
        reward = score(reward)
    run = row.rollout_index
    if type(run) is not int or not 0 <= run < 2**63:
        run = index(run)
        run = origin.ordinal if run is None else run
    return PlainRecord(
        prompt,
        completion,
        _task_id(task, row.agent_ref, row.task_index),
        run,
        reward,
        {**small_fields(more, _NO_FIELDS), **task.info} if more else task.info,
        _batch(origin.file),
        response.model,
    )


def _decode_row(line: bytes) -> tuple[_Row, Json]:
    """Decode a line into its known fields and a dict of additional fields."""
    global _is_bare
    if _is_bare:
        try:
            return _decode_bare_row(line), {}
        except msgspec.ValidationError:
            pass
    fields = _decode_raw(line)
    more = {key: _decode(value) for key, value in fields.items() if key not in _READ}
    _is_bare = not more
    if not fields.keys().isdisjoint(_NOT_USUAL):
        raise BadRecord("fields for the general code")
    return _Row(
        fields[PARAMS],
        _decode_response(fields["response"]),
        _decode(fields.get("reward", _NULL)),
        fields.get("agent_ref", _NULL),
        _decode(fields.get("_ng_task_index", _NULL)),
        _decode(fields.get("_ng_rollout_index", _NULL)),
    ), more


_is_bare = True  # whether the last row had no more fields: which way to decode the next one is tried first


def _task_of(params: Raw) -> _Task:
    """Return the task of the parameters; usually that of the previous line, found without hashing the text."""
    global _last_task
    if _last_task is None or _last_task.params != params:
        _last_task = _read_task(bytes(params))
    return _last_task


_last_task: _Task | None = None


@lru_cache(maxsize=_NUM_SHARED)
def _read_task(text: bytes) -> _Task:
    """Decode `responses_create_params` and compute what its rollouts share."""
    fields = _decode_raw(text)
    tools = _read_tools(bytes(fields.pop("tools", _NULL)))
    params = {key: _decode(value) for key, value in fields.items()}
    metadata = params.get("metadata")
    prompt = read_prompt(prompt_of(params, {}), tools, metadata)
    return _Task(Raw(text), prompt, bool(params.get("instructions")), {"metadata": metadata} if metadata else {})


@lru_cache(maxsize=_NUM_SHARED)
def _read_tools(text: bytes) -> PlainTools:
    """Return the tools, which are checked and hashed once for all tasks that have them."""
    value = _decode(text)
    return read_tools(tools_from_chat(value, "tools")) if value else NO_TOOLS


def _task_id(task: _Task, agent: Raw, index: Any) -> str | None:
    """Return the task id of an agent and a task index; None if there is no index."""
    # Types are compared as well: 1, 1.0 and True are equal in Python and different as task ids.
    if task.index != index or type(task.index) is not type(index) or task.agent != agent:
        number = identifier(index)
        name = _agent_name({"agent_ref": _decode(agent)})
        task.agent, task.index = agent.copy(), index
        task.task = None if number is None else json_text([name, number])
    return task.task


read_rows = plain_reader(NAME, _decode_row, _read_plain)
FORMAT = Format(
    name=NAME,
    unit="record",
    matches=matches,
    read=read,
    summary="NeMo Gym rollouts",
    decode=decode,
    read_rows=read_rows,
)
