"""`python -m bench scoring`: 10,000 runs of nine messages, scored by all built-in criteria, in CPU seconds."""

import json
import tempfile
import time
from pathlib import Path

import pairwright as pw

NUM_RUNS = 10_000
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}


def a_run(number: int) -> pw.Experience:
    turns = []
    for step in range(4):
        call = pw.ToolCall("search", json.dumps({"q": f"{number} {step}"}), id=f"c{step}")
        turns.append(pw.Message("assistant", None, tool_calls=(call,)))
        text = "Error: no such file" if (number + step) % 5 == 0 else "a result " * 50
        turns.append(pw.Message("tool", text, tool_call_id=f"c{step}", name="search"))
    turns.append(pw.Message("assistant", f"The answer is {number % 7}."))
    return pw.Experience(
        eid=pw.EID(task=f"t{number // 8}", run=number % 8),
        kind="multi_turn",
        prompt=[pw.Message("user", f"question {number // 8}")],
        tools=[TOOL],
        completion=turns,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with pw.Table(Path(folder) / "experience") as table:
            table.append(map(a_run, range(NUM_RUNS)))
        start = time.process_time()
        summary = pw.score(Path(folder) / "experience", "programs")
        seconds = time.process_time() - start
        assert summary.scored == NUM_RUNS
        print(f"{NUM_RUNS:,} runs scored by {len(summary.means) - 1} criteria in {seconds:.2f} CPU s")


if __name__ == "__main__":
    main()
