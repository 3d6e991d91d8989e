"""`python -m bench clients [--clients 200] [--requests 20] [--rounds 4]`: many clients on both servers.

Each client has its own connection and sends its requests sequentially: to the service an upload followed by reads, to
the model server chats of eight tokens, half of them streamed. The table has errors (a status other than 200, or a
broken connection), the server's CPU time per request, and its resident memory ten seconds after each round.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from bench.faults import PAIRWRIGHT
from bench.service_load import cpu_seconds

SETTLE_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench clients")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(sys.argv[2:])
    print(f"| {options.clients} clients on | requests | errors | CPU a request | memory before | after each round |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*PAIRWRIGHT, "init", str(project), "--template", "chat"], **quiet)
        subprocess.run([sys.executable, "make_model.py"], cwd=project, **quiet)
        jobs = ["serve", "jobs", "--data", f"{folder}/data", "--port", "0", "--max-running", "0"]
        measure("the service", jobs, use_service, options)
        model = ["serve", "model", str(project / "models" / "base"), "--name", "m", "--port", "0", "--threads", "1"]
        measure("the model server", model, use_model, options)


def measure(name, arguments, use, options) -> None:  # type: ignore[no-untyped-def]
    """Start a server, let all clients use it several times, and print its row."""
    server = subprocess.Popen([*PAIRWRIGHT, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next(text for text in server.stderr if "http://" in text)
        url = line[line.index("http://") :].split()[0].removesuffix("/v1")
        asyncio.run(run_clients(use, url, 1, 2))  # warm-up: loads what every later request shares
        memory, counts, cpu = [resident_mb(server.pid)], Counter[str](), cpu_seconds(server.pid)
        for _ in range(options.rounds):
            counts += asyncio.run(run_clients(use, url, options.clients, options.requests))
            used = cpu_seconds(server.pid) - cpu
            time.sleep(SETTLE_SECONDS)
            memory.append(resident_mb(server.pid))
        total = sum(counts.values())
        errors = {reason: count for reason, count in counts.items() if reason != "200"}
        after = ", ".join(f"{value:.0f}" for value in memory[1:])
        print(
            f"| {name} | {total:,} | {errors or 0} | {1000 * used / total:.1f} ms | {memory[0]:.0f} MB | {after} MB |"
        )
    finally:
        server.terminate()
        server.wait()


async def run_clients(use, url: str, num_clients: int, num_requests: int) -> Counter[str]:  # type: ignore[no-untyped-def]
    """Run all clients at once; returns the number of requests by status or error."""
    counts: Counter[str] = Counter()

    async def run_one(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
            for turn in range(num_requests):
                try:
                    counts[str(await use(client, number, turn))] += 1
                except httpx.HTTPError as error:
                    counts[type(error).__name__] += 1

    await asyncio.gather(*(run_one(number) for number in range(num_clients)))
    return counts


async def use_service(client: httpx.AsyncClient, number: int, turn: int) -> int:
    if turn == 0:
        content = json.dumps({"prompt": "q", "completion": f"a {number}"}).encode() * 1000
        form = {"file": (f"{number}.jsonl", content), "purpose": (None, "fine-tune")}
        return (await client.post("/v1/files", files=form)).status_code
    path = ("/v1/files", "/v1/customization/jobs", "/v1/models", "/v1/datasets")[turn % 4]
    return (await client.get(path)).status_code


async def use_model(client: httpx.AsyncClient, number: int, turn: int) -> int:
    messages = [{"role": "user", "content": f"question {number} {turn}"}]
    body = {"model": "m", "messages": messages, "max_tokens": 8, "seed": turn, "stream": turn % 2 == 0}
    answer = await client.post("/v1/chat/completions", json=body)
    return answer.status_code if turn % 2 or "data: [DONE]" in answer.text else 0


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
