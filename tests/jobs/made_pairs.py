"""Pairs tables for the backends' tests, and a model folder to train."""

from pathlib import Path

from pairwright import EID, Message, Pair, ToolCall
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs


def pair(task: int, number: int = 0, *, prompt=None, chosen=None, rejected=None, tools=(), split="train") -> Pair:
    prompt = prompt or [Message("user", f"What is {task} + {task}?")]
    chosen = chosen or [Message("assistant", f"It is {2 * task}.")]
    rejected = rejected or [Message("assistant", f"It is {2 * task + 1 + number}.")]
    return Pair(
        id=pair_id(prompt, tools, chosen, rejected), prompt=prompt, tools=tools, chosen=chosen, rejected=rejected,
        chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(task=task, run=0, suffix="a"),
        rejected_eid=EID(task=task, run=number + 1, suffix="b"), gap=1.0, strategy="all", split=split,
    )  # fmt: skip


def pairs_table(folder: Path, pairs=None, *, num_tasks: int = 10, per_task: int = 2) -> Path:
    pairs = pairs or [pair(task, number) for task in range(num_tasks) for number in range(per_task)]
    write_pairs(folder, [pairs_to_batch(pairs)])
    return folder


def pair_with_tool_results(task: int) -> Pair:
    """Sides of several messages, with a tool's words in them."""
    call = Message("assistant", None, tool_calls=(ToolCall("add", '{"a": 1}', id="1"),))
    result = Message("tool", "2", tool_call_id="1")
    return pair(
        task, chosen=[call, result, Message("assistant", "2")], rejected=[call, result, Message("assistant", "3")]
    )
