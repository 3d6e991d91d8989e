"""What the formats of frameworks share: a history of messages, with the usual fields of a row around it."""

from collections.abc import Sequence
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import BadRecord, identifier, small_fields
from pairwright.sources.format import Options, Origin
from pairwright.sources.shapes.row_fields import REWARD_KEYS, TASK_KEYS, reward_of, run_of, task_of

_READ = frozenset({*REWARD_KEYS, *TASK_KEYS, "reward_components", "tools", "functions"})


def experience_of_history(
    name: str,
    origin: Origin,
    options: Options,
    messages: Sequence[Message],
    *,
    row: Json,
    read_fields: frozenset[str],
    tools: Sequence[Json] = (),
    num_prompt: int | None = None,
    **fields: Any,
) -> Parts:
    """Build the experience of a conversation.

    Args:
        name: The format.
        origin: Where the unit stands.
        options: What the user chose.
        messages: The whole conversation.
        row: The object around it, with task, run, reward and whatever else there is.
        read_fields: Names of the row's fields that are in the messages already; others go to info.
        tools: Tool schemas of the request.
        num_prompt: The number of messages in the prompt; by default those before the first answer.
        fields: Further fields for `build`.
    """
    prompt, completion = split_at_first_answer(list(messages))
    if num_prompt is not None:
        prompt, completion = list(messages[:num_prompt]), list(messages[num_prompt:])
    if not any(message.is_generated for message in completion):
        raise BadRecord("no message that the model wrote, so there is no completion")
    if not prompt:
        raise BadRecord("the conversation begins with an answer: what the model was given is not there")
    reward, components = reward_of(row)
    info = {**small_fields(row, _READ | read_fields), **(fields.pop("info", None) or {})}
    # A score that is no number, such as "good", stays.
    info |= {key: row[key] for key in REWARD_KEYS if isinstance(row.get(key), str) and reward is None}
    task, run = fields.pop("task", None), fields.pop("run", None)
    return Parts(
        name,
        origin,
        task=task_of(row) if task is None else identifier(task),
        run=run_of(row) if run is None else run,
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        info=info,
        **fields,
    )


def history_in(value: Any, keys: Sequence[str]) -> tuple[Any, str]:
    """Return the history of a unit, which is a list or an object that has it under one of `keys`, and its path."""
    if isinstance(value, dict):
        for key in keys:
            if isinstance(value.get(key), list):
                return value[key], key
    return value, "messages"
