"""`python -m bench scoring`: scores runs with programs (CPU seconds), and with a judge (200 requests in flight)."""

import asyncio
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pairwright as pw

NUM_RUNS = 10_000
NUM_IN_FLIGHT = 200
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


def make_table(folder: Path, num_runs: int) -> Path:
    with pw.Table(folder) as table:
        table.append(map(a_run, range(num_runs)))
    return folder


def measure_programs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_table(Path(folder) / "experience", NUM_RUNS)
        start = time.process_time()
        summary = pw.score(path, "programs")
        seconds = time.process_time() - start
        assert summary.scored == NUM_RUNS
        print(f"{NUM_RUNS:,} runs scored by {len(summary.means) - 1} criteria in {seconds:.2f} CPU s")


def serve(port: Any) -> None:
    """Serve a judge that answers every question after 50 ms."""
    message = {"role": "assistant", "content": '{"reason": "so it is", "score": 7}'}
    content = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
                await reader.readexactly(length)
                await asyncio.sleep(0.05)
                writer.write(head + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        port.value = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    asyncio.run(main())


def judge_runs(folder: str, rubric: str) -> None:
    """Score in a separate process, so that its peak memory is that of scoring only."""
    start = time.process_time()
    summary = pw.score(folder, rubric, max_concurrency=NUM_IN_FLIGHT)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.process_time() - start
    print(
        f"{summary.scored:,} runs judged, {NUM_IN_FLIGHT} in flight: {seconds:.1f} CPU s, peak {peak:.0f} MB",
        flush=True,
    )


def measure_judge() -> None:
    port = multiprocessing.Value("i", 0)
    server = multiprocessing.Process(target=serve, args=(port,), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    with tempfile.TemporaryDirectory() as folder:
        rubric = Path(folder) / "rubric.yaml"
        rubric.write_text(json.dumps({"judge": {"model": "j", "base_url": f"http://127.0.0.1:{port.value}/v1"}}))
        for num_runs in (1_000, 4_000):
            table = make_table(Path(folder) / f"runs-{num_runs}", num_runs)
            code = f"from bench.scoring import judge_runs; judge_runs({str(table)!r}, {str(rubric)!r})"
            subprocess.run([sys.executable, "-c", code], check=True)
    server.terminate()


def main() -> None:
    measure_programs()
    measure_judge()


if __name__ == "__main__":
    main()
