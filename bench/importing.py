"""Import against the limit: decoding the same lines with orjson and doing nothing with them.

200,000 rollouts in the layout of NeMo Gym (eight a task, two tools, two calls each), about 440 MB.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.measure import in_child

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
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
import json, multiprocessing.forkserver, resource, sys, time
from pairwright.engines.threads import without_blas_threads
with without_blas_threads():  # as the command does
    from pairwright import Table
    from pairwright.store.importing import import_files

if __name__ == "__main__":
    start = time.perf_counter()
    summary = import_files([sys.argv[1]], Table(sys.argv[2]), num_workers=int(sys.argv[3]))
    wall = time.perf_counter() - start
    multiprocessing.forkserver._forkserver._stop()  # so that the system adds what its children took
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"added": summary.total("experiences"), "wall": wall,
                      "cpu": sum(u.ru_utime + u.ru_stime for u in usage)}))
"""


def watched(code: str, *arguments: str) -> dict[str, Any]:
    """Run code in a process of its own: what it prints as JSON, with the peak memory of it and its children in MB."""
    peak = 0.0
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            peak = max(peak, proportional_megabytes(child.pid))
            time.sleep(0.1)
        assert child.stdout is not None
        assert child.returncode == 0, f"exit code {child.returncode}"
        found: dict[str, Any] = json.loads(child.stdout.read())
    return found | {"megabytes": peak}


def proportional_megabytes(pid: int) -> float:
    """Memory of a process and its children, shared pages counted once."""
    total, pids = 0, [str(pid)]
    while pids:
        folder = Path("/proc") / pids.pop()
        with contextlib.suppress(OSError):
            rollup = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
            for task in (folder / "task").iterdir():
                pids += (task / "children").read_text().split()
    return total / 1024


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
        # the bytecode of an installed package is there; here the first round writes it
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        print(f"### Import: {NUM_ROLLOUTS:,} NeMo Gym rollouts, {path.stat().st_size / 1e6:.0f} MB\n")
        print("| workers | CPU | orjson.loads, CPU | ratio | wall clock | peak memory | target |")
        print("|---|---|---|---|---|---|---|")
        for workers in (1, 2):
            decoded, runs = float("inf"), []
            for number in range(ROUNDS):  # in turns, so that noise meets both alike
                decoded = min(decoded, in_child(DECODE, str(path))["cpu"])
                runs.append(watched(IMPORT, str(path), f"{folder}/t{workers}.{number}", str(workers)))
                assert runs[-1]["added"] == NUM_ROLLOUTS
            done = min(runs, key=itemgetter("cpu"))
            print(f"| {workers} | {done['cpu']:.1f} s | {decoded:.1f} s | **{done['cpu'] / decoded:.2f}×** "
                  f"| {done['wall']:.1f} s | {done['megabytes']:.0f} MB | ≤ 3×, < 400 MB |")  # fmt: skip
        print(f"\nMeasured {time.strftime('%Y-%m-%d')}.\n")
