"""tau-bench results: a list of `{task_id, trial, reward, info, traj: [messages]}`.

task = task_id, run = trial, reward = reward. The prompt is everything before the first assistant turn of `traj`; later
turns of the simulated user stay in the completion, not generated. `info` is kept in full.
"""

from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import has, index, optional_mapping
from pairwright.sources.shapes.chat_messages import messages_from_chat

FORMAT = RowFormat(
    "tau-bench",
    "tau-bench results",
    lambda value: has(value, "traj", "task_id"),
    lambda row: [
        {
            "messages": messages_from_chat(row.get("traj"), "traj"),
            "run": index(row.get("trial")),
            "error_kind": lambda _, message: "tool_error" if message.text.startswith("Error:") else None,
            "info": optional_mapping(row.get("info"), "info"),
        }
    ],
    frozenset({"task_id", "trial", "reward", "info", "traj"}),
).format
