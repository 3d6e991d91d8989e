"""Rollouts that trainers dump as decoded text:

    verl     {input, output, gts, score, step, ...}                              further numbers are reward components
    SkyRL    {input_prompt, output_response, score, stop_reason, env_class, env_extras, data_source}
    TRL      {step, prompt, completion, <name of a reward function>: number, ..., advantage}, from `log_completions`

The texts are already rendered by a chat template, so they are raw text (role `text`) and never rendered again; TRL logs
conversations as messages. The task is a hash of prompt and ground truth. A list of scores has one score per token; the
reward is its sum. TRL does not log the weights of its components: a single one is the reward, among several `--reward`
selects one. Its training step is kept in info, the advantage in metrics.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import BadRecord, has, index, score, text
from pairwright.sources.shapes.chat_messages import messages_from_chat


def _numbers(row: Json, *left_out: str) -> Json:
    return {key: item for key, item in row.items() if type(item) in (int, float, bool) and key not in left_out}


def _take(row: Json, prompt_key: str, completion_key: str, truth_key: str) -> Iterator[Json]:
    components = _numbers(row, "step", "score", "request_id", "uid", "index")
    value = row.get("score")
    scores = list(map(score, value)) if isinstance(value, list) else None
    if scores is not None and None in scores:
        raise BadRecord("score: a list with something that is not a number")
    yield {
        "task": None,
        "task_metadata": row.get(truth_key),
        "completion": [Message(TEXT, text(row.get(completion_key), completion_key), generated=True)],
        "prompt": [Message(TEXT, text(row.get(prompt_key), prompt_key))],
        "tools": (),
        "reward": score(value) if scores is None else sum(number for number in scores if number is not None),
        "reward_components": components,
        "truncate_status": "response_truncated" if row.get("stop_reason") == "length" else None,
        "read_fields": frozenset(components),
    }


def _is_trl(value: Any) -> bool:
    if not has(value) or index(value.get("step")) is None or "label" in value:
        return False
    sides = value.get("prompt"), value.get("completion")
    has_sides = all(isinstance(side, str) for side in sides) or all(isinstance(side, list) and side for side in sides)
    return has_sides and ("advantage" in value or "reward" in value)


def _take_trl(row: Json) -> Iterator[Json]:
    if isinstance(row.get("prompt"), str):
        prompt = [Message(TEXT, row["prompt"])]
        completion = [Message(TEXT, text(row.get("completion"), "completion"), generated=True)]
    else:
        prompt = messages_from_chat(row.get("prompt"), "prompt")
        completion = messages_from_chat(row.get("completion"), "completion")
    if not any(message.is_generated for message in completion):
        raise BadRecord("completion: no message that the model wrote")
    components, advantage = _numbers(row, "step", "advantage"), score(row.get("advantage"))
    yield {
        "task": None,
        "prompt": prompt,
        "completion": completion,
        "reward": UNSET,
        "reward_components": components,
        "metrics": {} if advantage is None else {"advantage": advantage},
        "read_fields": frozenset(components),
    }


VERL_FORMAT = RowFormat(
    "verl",
    "Rollouts that verl dumps",
    lambda value: has(value, "score", input=str, output=str) and index(value.get("step")) is not None,
    lambda row: _take(row, "input", "output", "gts"),
    frozenset({"input", "output", "score"}),
    has_system=False,
).format
SKYRL_FORMAT = RowFormat(
    "skyrl",
    "Evaluations that SkyRL dumps",
    lambda value: has(value, "score", input_prompt=str, output_response=str),
    lambda row: _take(row, "input_prompt", "output_response", "env_extras"),
    frozenset({"input_prompt", "output_response", "score"}),
    has_system=False,
).format
TRL_FORMAT = RowFormat(
    "trl-completions",
    "Completions that TRL logs",
    _is_trl,
    _take_trl,
    frozenset({"prompt", "completion", "advantage", "tools"}),
    has_system=False,
).format
