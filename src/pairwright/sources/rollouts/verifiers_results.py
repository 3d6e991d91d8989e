"""Results of verifiers environments (v0 rows), and rollouts dumped by older versions of prime-rl:

    {example_id, task, prompt, completion, answer, reward, metrics, info, is_truncated, stop_condition, tool_defs, ...}

Prompt and completion are lists of messages, whose calls are often JSON text, or raw text; turns before the first answer
belong to the prompt. task = environment name and example_id; without a name, a hash of prompt, tools, answer and
example_id, but not of the older `id`, which numbers rows instead of examples. Metrics (under `metrics`, in older files
next to the reward) are the reward components. Tokens of a `trajectory` become the arrays.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from pairwright.records.messages import TURN_REWARD, Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    items,
    json_value,
    mapping,
    optional_items,
    optional_mapping,
    score,
    small_fields,
    text_or_none,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat, tools_from_chat
from pairwright.sources.shapes.recorded_tokens import tokens_of_turns, turn_tokens

NAME = "verifiers"
_SIGNS = ("answer", "info", "metrics", "example_id", "generation_ms", "is_completed")
_STRONG_SIGNS = ("generation_ms", "is_completed", "stop_condition", "trajectory")
_READ = frozenset({"prompt", "completion", "reward", "metrics", "info", "tool_defs", "oai_tools", "trajectory",
                   "is_truncated", "advantage"})  # fmt: skip
# Top-level numbers that are not metrics.
_NO_METRICS = frozenset({"id", "example_id", "reward", "advantage", "generation_ms", "scoring_ms", "total_ms", "seed"})


def matches(value: Any) -> bool:
    if not has(value, "prompt", "completion", "reward"):
        return False
    if isinstance(value["prompt"], str) and isinstance(value["completion"], str):
        return any(key in value for key in _STRONG_SIGNS)
    is_conversation = isinstance(value["prompt"], list | str) and isinstance(value["completion"], list)
    has_name = isinstance(value.get("task"), str) or identifier(value.get("example_id")) is not None
    return is_conversation and has_name and "label" not in value and any(key in value for key in _SIGNS)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    if row.get("completion") is None and row.get("error"):
        raise BadRecord("no completion: the rollout ended with an error")
    info = optional_mapping(json_value(row.get("info"), "info"), "info")
    tools = tools_as_functions(
        next((place[key] for place in (row, info) for key in ("tool_defs", "oai_tools") if place.get(key)), None)
    )
    is_text = isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)
    prompt = _messages(row.get("prompt"), "prompt", is_text)
    completion = _messages(row.get("completion"), "completion", is_text)
    added, completion = split_at_first_answer(completion)
    if not completion:
        raise BadRecord("completion: no message that the model wrote")
    # Some environments begin the completion with the model's input: the prompt repeated, or its continuation.
    starts = [[(message.role, message.content) for message in side] for side in (prompt, added)]
    if starts[0] != starts[1]:
        prompt = [*prompt, *added]
    steps = [optional_mapping(step, "trajectory[]") for step in optional_items(row.get("trajectory"), "trajectory")]
    completion = _add_step_rewards(steps, completion)
    details = {**small_fields(row, _READ), **{key: item for key, item in info.items() if key != "oai_tools"}}
    beside = {key: item for key, item in row.items() if type(item) is float and key not in _NO_METRICS}
    metrics = {**beside, **optional_mapping(row.get("metrics"), "metrics")}
    example = identifier(row.get("example_id"))
    name = text_or_none(row.get("task"))
    yield Parts(
        NAME,
        origin,
        task=None if example is None or name in (None, "", "default") else f"{name}/{example}",
        task_metadata=[name, example, row.get("answer")],
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=score(row.get("reward")),
        reward_components={key: item for key, item in metrics.items() if score(item) is not None},
        metrics={"advantage": row["advantage"]} if score(row.get("advantage")) is not None else {},
        truncate_status="response_truncated" if row.get("is_truncated") is True else None,
        arrays=_arrays(steps, completion, details),
        info=details,
    )


def tools_as_functions(value: Any) -> list[Json]:
    """Return tool definitions in the chat form {"type": "function", "function": {...}}; others are unchanged."""
    tools = []
    for tool in tools_from_chat(json_value(value, "tools"), "tools"):
        is_bare = isinstance(tool.get("name"), str) and tool.get("type", "function") == "function"
        function = {key: item for key, item in tool.items() if key != "type" and item is not None}
        tools.append({"type": "function", "function": function} if is_bare else tool)
    return tools


def chat_with_calls(value: Any, where: str) -> Json:
    """Return a chat message with calls in the chat form: JSON text is decoded, flat calls are nested."""
    message = mapping(value, where)
    if not message.get("tool_calls"):
        return message
    calls = []
    for number, item in enumerate(items(message["tool_calls"], f"{where}.tool_calls")):
        call = mapping(json_value(item, f"{where}.tool_calls[{number}]"), f"{where}.tool_calls[{number}]")
        if "function" not in call and isinstance(call.get("name"), str):
            space = f"{call['namespace']}." if isinstance(call.get("namespace"), str) else ""
            function = {"name": space + call["name"], "arguments": call.get("arguments")}
            call = {"id": call.get("id"), "type": call.get("type", "function"), "function": function}
        calls.append(call)
    return {**message, "tool_calls": calls}


def _messages(value: Any, where: str, is_text: bool) -> list[Message]:
    if isinstance(value, str):
        # Raw text only if prompt and completion are text: a text prompt of a chat environment is a user turn.
        return [Message("text" if is_text else "user", value, generated=True if where == "completion" else None)]
    places = [(item, f"{where}[{number}]") for number, item in enumerate(items(value, where))]
    return [message_from_chat(chat_with_calls(item, place), place) for item, place in places]


def _add_step_rewards(steps: list[Json], completion: list[Message]) -> list[Message]:
    """Add the reward of each step to its turn, if every generated turn is one step."""
    rewards = [score(step.get("reward")) for step in steps]
    turns = [place for place, message in enumerate(completion) if message.is_generated]
    if len(rewards) != len(turns) or all(reward is None for reward in rewards):
        return completion
    marked = list(completion)
    for place, reward in zip(turns, rewards, strict=True):
        if reward is not None:
            extra = {**completion[place].extra, TURN_REWARD: reward}
            marked[place] = msgspec.structs.replace(completion[place], extra=extra)
    return marked


def _arrays(steps: list[Json], completion: list[Message], info: Json) -> Json | None:
    """Return the token fields of the steps of a trajectory, or None; `info` gets the reason if they are dropped."""
    tokens = [optional_mapping(step.get("tokens"), "trajectory[].tokens") for step in steps]
    if not any(step.get("completion_ids") for step in tokens):
        return None
    turns = [
        turn_tokens(step.get("prompt_ids"), step.get("completion_ids"), step.get("completion_logprobs"))
        for step in tokens
    ]
    reason = None
    if None in turns or len(turns) != sum(message.is_generated for message in completion):
        reason = "some turns have no token ids"
    arrays = tokens_of_turns(turns) if reason is None else None
    if arrays is None:
        info["tokens_dropped"] = reason or "a turn's prompt does not continue the tokens before it"
        return None
    masks = [step.get("completion_mask") for step in tokens]
    generated = [len(turn.generated) for turn in turns if turn is not None]
    if all(isinstance(mask, list) and len(mask) == length for mask, length in zip(masks, generated, strict=True)):
        # The rollout's mask may exclude generated tokens.
        own = np.concatenate([np.array([item in (1, True) for item in mask], dtype=bool) for mask in masks if mask])
        arrays["action_mask"][arrays["action_mask"]] = own
    return arrays


FORMAT = Format(NAME, "record", matches, read, "verifiers results, rollouts of prime-rl")
