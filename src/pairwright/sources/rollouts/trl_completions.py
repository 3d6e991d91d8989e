"""Completions logged by TRL's online trainers (`log_completions`), one per row:

    {step, prompt, completion, <name of a reward function>: number, ..., advantage}

Conversations are messages; text is already rendered by the chat template, so it stays raw text. Every number except
`step` and `advantage` is a reward component. TRL does not log their weights: a single component is the reward; if
there are several, `--reward` selects one. The training step is kept in info, the advantage in metrics.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import BadRecord, has, index, score, text
from pairwright.sources.shapes.chat_messages import messages_from_chat


def matches(value: Any) -> bool:
    if not has(value) or index(value.get("step")) is None or "label" in value:
        return False
    sides = value.get("prompt"), value.get("completion")
    has_sides = all(isinstance(side, str) for side in sides) or all(isinstance(side, list) and side for side in sides)
    return has_sides and ("advantage" in value or "reward" in value)


def _take(row: Json) -> Iterator[Json]:
    if isinstance(row.get("prompt"), str):
        prompt = [Message(TEXT, row["prompt"])]
        completion = [Message(TEXT, text(row.get("completion"), "completion"), generated=True)]
    else:
        prompt = messages_from_chat(row.get("prompt"), "prompt")
        completion = messages_from_chat(row.get("completion"), "completion")
    if not any(message.is_generated for message in completion):
        raise BadRecord("completion: no message that the model wrote")
    numbers = {key: item for key, item in row.items() if type(item) in (int, float, bool)}
    components = {key: item for key, item in numbers.items() if key not in ("step", "advantage")}
    advantage = score(row.get("advantage"))
    yield {
        "task": None,
        "prompt": prompt,
        "completion": completion,
        "reward": UNSET,
        "reward_components": components,
        "metrics": {} if advantage is None else {"advantage": advantage},
        "read_fields": frozenset(components),
    }


FORMAT = RowFormat(
    "trl-completions",
    "Completions that TRL logs",
    matches,
    _take,
    frozenset({"prompt", "completion", "advantage", "tools"}),
    has_system=False,
).format
