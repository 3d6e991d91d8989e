"""The model server at 1, 16 and 64 streams, compared with `transformers serve` with continuous batching."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from bench.generate import _EXAMPLES

_NUM_TOKENS = 24


def compare_servers(model: str) -> None:
    from pairwright.engines.listening import free_port

    print("| streams | ours, tokens a CPU s | transformers serve | ratio |\n|---|---|---|---|")
    figures: dict[str, dict[int, float]] = {}
    for name in ("ours", "transformers"):
        port = free_port()
        beside = Path(sys.executable)
        commands = {
            "ours": [sys.executable, "-m", "pairwright.cli", "serve", "model", model, "--port", str(port),
                     "--name", model, "--dtype", "float32", "--threads", "1"],
            "transformers": [str(beside.with_name("transformers")), "serve", model, "--port", str(port),
                             "--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32", "--continuous-batching",
                             "--cb-num-blocks", "1024", "--cb-block-size", "32", "--cb-max-batch-tokens", "512"],
        }  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen(commands[name], env=environment, stdout=subprocess.DEVNULL, stderr=log)
            try:
                _wait(port, server, log)
                asyncio.run(_load(port, model, 1, shift=900))  # warm-up
                figures[name] = {}
                for streams in (1, 16, 64):
                    before = _cpu_seconds(server.pid)
                    tokens = asyncio.run(_load(port, model, streams, shift=streams))
                    figures[name][streams] = tokens / (_cpu_seconds(server.pid) - before)
                    print(f"{name} {streams} streams: {figures[name][streams]:.1f}", file=sys.stderr, flush=True)
            finally:
                server.terminate()
                server.wait()
    for streams in (1, 16, 64):
        ours, theirs = figures["ours"][streams], figures["transformers"][streams]
        print(f"| {streams} | {ours:.1f} | {theirs:.1f} | **{ours / theirs:.1f}×** |")


def _wait(port: int, server: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    import httpx

    for _ in range(1200):
        if server.poll() is not None:
            log.seek(0)
            sys.exit(f"bench: the server ended with code {server.returncode}: {log.read()[-2000:].decode()}")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    sys.exit("bench: the server does not answer")


async def _load(port: int, model: str, streams: int, *, shift: int) -> int:
    """Stream answers, one at a time per client; returns the total number of tokens."""
    import httpx

    async with httpx.AsyncClient(timeout=1200, limits=httpx.Limits(max_connections=None)) as client:
        bodies = [_body(model, shift + number) for number in range(streams)]
        counts = await asyncio.gather(*(_stream(client, port, body) for body in bodies))
    return sum(counts)


def _body(model: str, number: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Reply with one tool call as JSON."}]
    for question, answer in _EXAMPLES:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": f"Please set the timer to {number} minutes."})
    return {"model": model, "messages": messages, "max_tokens": _NUM_TOKENS, "temperature": 0, "stream": True}


async def _stream(client: Any, port: int, body: dict[str, Any]) -> int:
    count = 0
    async with client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:]).get("choices") or [{}]
                # on both sides, a chunk with text is one token
                count += bool((choices[0].get("delta") or {}).get("content"))
    return count


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, including all threads."""
    values = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
