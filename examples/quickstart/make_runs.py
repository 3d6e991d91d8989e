"""Write a small file of scored agent runs to try pairwright on: a support agent with two tools.

python make_runs.py runs.jsonl
"""

import json
import random
import sys
from pathlib import Path

ORDERS = {"A17": ("shipped", 2), "B03": ("delayed", 9), "C88": ("delivered", 0)}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
        },
    }
    for name, description in (("find_order", "Look an order up."), ("refund", "Give the money back."))
]
SYSTEM = "You answer customers of a shop. Look the order up before you say anything about it."


def run(task: int, attempt: int, draw: random.Random) -> dict:
    """Return one attempt at a task: look the order up or guess, then answer. The score is that of a checker."""
    order, (status, days) = list(ORDERS.items())[task % len(ORDERS)]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Where is my order {order}? (ticket {task})"},
    ]
    looked_up = draw.random() < 0.6
    if looked_up:
        call_id = f"call_{task}_{attempt}"
        name = "find_order" if draw.random() < 0.85 else "lookup"
        call = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"order": order})},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        failed = name != "find_order"
        result = f"Error: no tool named {name}" if failed else json.dumps({"status": status, "days": days})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        looked_up = not failed
    answer = (
        f"It is {status}, {days} days to go." if looked_up else draw.choice(["It is on its way.", "Tomorrow, I think."])
    )
    messages.append({"role": "assistant", "content": answer})
    score = (0.7 if looked_up else 0.1) + round(draw.random() * 0.2, 2)
    return {
        "task_id": f"ticket-{task}",
        "run": attempt,
        "messages": messages,
        "tools": TOOLS,
        "reward": round(score, 2),
    }


def main() -> None:
    draw = random.Random(7)
    rows = [run(task, attempt, draw) for task in range(12) for attempt in range(4)]
    lines = [json.dumps(row) for row in rows]
    lines[5] = lines[5][: len(lines[5]) // 2]  # a truncated line, as in real logs
    rows[9]["reward"] = None  # a run without a score
    lines[9] = json.dumps(rows[9])
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
