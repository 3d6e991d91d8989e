"""tau-bench results: a list of `{task_id, trial, reward, info, traj: [messages]}`.

task = task_id, run = trial, reward = reward. The prompt is everything before the first assistant turn of `traj`; later
turns of the simulated user stay in the completion, not generated. `info` is kept in full.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import identifier, index, mapping, optional_mapping, score
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import messages_from_chat

NAME = "tau-bench"


def matches(value: Any) -> bool:
    return isinstance(value, dict) and "traj" in value and "task_id" in value


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of one result."""
    row = mapping(value, "row")
    messages = messages_from_chat(row.get("traj"), "traj")
    yield Parts(
        NAME,
        origin,
        task=identifier(row.get("task_id")),
        run=index(row.get("trial")),
        messages=messages,
        reward=score(row.get("reward")),
        error_kind=_error_kind,
        info=optional_mapping(row.get("info"), "info"),
    )


def _error_kind(position: int, message: Message) -> str | None:
    return "tool_error" if message.text.startswith("Error:") else None


FORMAT = Format(NAME, "record", matches, read, "tau-bench results")
