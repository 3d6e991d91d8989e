"""Import against the limit: decoding the same lines with orjson and doing nothing with them.

200,000 rollouts in the layout of NeMo Gym (eight a task, two tools, two calls each), about 440 MB.
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path

from bench.measure import in_child

NUM_ROLLOUTS = int(os.environ.get("BENCH_ROLLOUTS", "200000"))
WORDS = [
    "the", "agent", "reads", "a", "calendar", "and", "sends", "an", "email", "to", "the", "customer", "about",
    "the", "invoice", "before", "noon", "on", "monday", "with", "details", "of", "every", "open", "order", "status",
    "and", "price",
]  # fmt: skip
DECODE = """
import json, orjson, sys, time
start = time.process_time()
with open(sys.argv[1], "rb") as file:
    num_lines = sum(1 for line in file if orjson.loads(line))
print(json.dumps({"lines": num_lines, "cpu": time.process_time() - start}))
"""
IMPORT = """
import json, os, resource, sys, threading, time
from pairwright import Table
from pairwright.store.importing import import_files

def proportional_kilobytes():
    "Memory of this process and its children, shared pages counted once."
    total, pids = 0, [str(os.getpid())]
    while pids:
        pid = pids.pop()
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    pids += file.read().split()
        except OSError:
            pass
    return total

def watch():
    global peak
    while not done:
        peak = max(peak, proportional_kilobytes())
        time.sleep(0.25)

if __name__ == "__main__":
    peak, done = 0, False
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    summary = import_files([sys.argv[1]], Table(sys.argv[2]), num_workers=int(sys.argv[3]) or None)
    wall = time.perf_counter() - start
    done = True
    watcher.join()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"added": summary.total("experiences"), "wall": wall, "megabytes": peak / 1024,
                      "cpu": sum(u.ru_utime + u.ru_stime for u in usage)}))
"""


def write_rollouts(path: Path, num_rollouts: int) -> None:
    """Rollouts as NeMo Gym writes them, made up from a seed."""
    draw = random.Random(0)

    def text(words: random.Random, num_words: int) -> str:
        return " ".join(words.choice(WORDS) for _ in range(num_words))

    parameters = {
        "type": "object",
        "properties": {"id": {"type": "string", "description": "an id"}},
        "required": ["id"],
    }
    tools = [{"name": f"tool_{n}", "parameters": parameters, "strict": False, "type": "function"} for n in range(2)]
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num_rollouts):
            words = random.Random(number // 8)
            given = [
                {"content": f"You are a workplace assistant. {text(words, 30)}", "role": "system", "type": "message"},
                {"content": text(words, 30), "role": "user", "type": "message"},
            ]
            output = []
            for turn in range(2):
                call_id = f"call_{draw.getrandbits(96):024x}"
                arguments = json.dumps({"id": f"{draw.getrandbits(40):x}"})
                result = json.dumps({"status": "ok", "text": text(draw, 20)})
                output.append(
                    {"arguments": arguments, "call_id": call_id, "name": f"tool_{turn}", "type": "function_call"}
                )
                output.append({"call_id": call_id, "output": result, "type": "function_call_output"})
            part = {"annotations": [], "text": text(draw, 30), "type": "output_text"}
            output.append({"id": f"msg_{number}", "content": [part], "role": "assistant", "type": "message"})
            rollout = {
                "responses_create_params": {"input": given, "tools": tools, "parallel_tool_calls": False},
                "response": {"id": f"resp_{number}", "model": "m", "object": "response", "output": output},
                "reward": round(draw.random(), 3),
                "_ng_task_index": number // 8,
                "_ng_rollout_index": number % 8,
                "agent_ref": {"type": "responses_api_agents", "name": "assistant"},
            }
            file.write(json.dumps(rollout) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        write_rollouts(path, NUM_ROLLOUTS)
        print(f"### Import: {NUM_ROLLOUTS:,} NeMo Gym rollouts, {path.stat().st_size / 1e6:.0f} MB\n")
        print("| workers | CPU | orjson.loads, CPU | ratio | wall clock | peak memory | target |")
        print("|---|---|---|---|---|---|---|")
        for workers in (1, 2):
            decoded = min(in_child(DECODE, str(path))["cpu"] for _ in range(2))
            done = in_child(IMPORT, str(path), f"{folder}/t{workers}", str(workers))
            assert done["added"] == NUM_ROLLOUTS
            print(f"| {workers} | {done['cpu']:.1f} s | {decoded:.1f} s | **{done['cpu'] / decoded:.2f}×** "
                  f"| {done['wall']:.1f} s | {done['megabytes']:.0f} MB | ≤ 3×, < 400 MB |")  # fmt: skip
        print(f"\nMeasured {time.strftime('%Y-%m-%d')}.\n")
