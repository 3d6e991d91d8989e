"""`python -m bench.service_load`: lists over 20,000 jobs in CPU time, and the status of a job for 200 clients at once.

`BENCH_JOBS` (20000), `BENCH_CLIENTS` (200) and `BENCH_SECONDS` (10) change the sizes.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import sqlalchemy as sa
from safetensors.numpy import save_file

from pairwright.service import Settings
from pairwright.service.context import Context
from pairwright.service.rows.blob_store import Blobs
from pairwright.service.rows.database import Database
from pairwright.service.rows.names import new_id
from pairwright.service.rows.schema import jobs
from pairwright.service.run.base_models import add_target
from pairwright.service.service_server import tidy

NUM_JOBS = int(os.environ.get("BENCH_JOBS", "20000"))
NUM_CLIENTS = int(os.environ.get("BENCH_CLIENTS", "200"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "10"))
ROUNDS = 5
LISTS = {
    "first page": {},
    "page of 1,000": {"page_size": 1000},
    "last page": {"page": NUM_JOBS // 100},
    "by name": {"sort": "name"},
    "by update, ascending": {"sort": "updated_at"},
    "filter: status": {"filter[status]": "failed"},
    "filter: project": {"filter[project]": "p7"},
    "filter: dataset": {"filter[dataset]": "hf://datasets/default/d3"},
    "filter: training_type, deep page": {"filter[training_type]": "dpo", "page": NUM_JOBS // 200},
    "filter: batch_size and status": {"filter[batch_size]": "4", "filter[status]": "completed"},
    "filter: created_at": {"filter[created_at][gte]": "2026-01-05"},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data=Path(folder) / "data", max_running=0)
        settings.data.mkdir()
        database = Database(settings.url)
        context = Context(settings, database, Blobs(settings.data))
        tidy(context)
        identities = fill(context, Path(folder) / "model")
        print(f"| list of {NUM_JOBS:,} jobs | CPU, median of {ROUNDS} | target |\n|---|---|---|")
        for what, milliseconds in measure_lists(context):
            print(f"| {what} | {milliseconds:.1f} ms | < 50 ms |")
        database.close()
        asyncio.run(measure_status(settings, identities))


def fill(context: Context, model: Path) -> list[str]:
    """Insert jobs as submissions would, in all states."""
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 2048}')
    (model / "tokenizer.json").write_text("{}")
    save_file({"weight": np.zeros((3, 4), np.float32)}, model / "model.safetensors")
    states = ("completed", "completed", "completed", "failed", "cancelled", "pending")
    rows = []
    with context.database.writing() as connection:
        add_target(connection, "meta/llama", model)
        for number in range(NUM_JOBS):
            rows.append(make_job(number, states[number % len(states)]))
        connection.execute(sa.insert(jobs), rows)
    return [row["id"] for row in rows]


def make_job(number: int, state: str) -> dict[str, Any]:
    identity = new_id("cust")
    moment = f"2026-01-{1 + number * 27 // NUM_JOBS:02}T00:00:{number % 60:02}.{number % 1000000:06}Z"
    document = {
        "id": identity,
        "name": None,
        "namespace": "default",
        "project": f"p{number % 50}",
        "description": "a job of a benchmark",
        "config": "meta/llama",
        "dataset": {
            "name": f"d{number % 20}",
            "namespace": "default",
            "files_url": f"hf://datasets/default/d{number % 20}@{number:040}",
        },
        "hyperparameters": {
            "training_type": "dpo" if number % 2 else "sft",
            "finetuning_type": "lora",
            "epochs": 1 + number % 3,
            "batch_size": 2 ** (number % 5),
            "learning_rate": 1e-4,
            "log_every_n_steps": 1,
            "seed": 0,
        },
        "config_snapshot": {"base_model": "meta/llama", "max_seq_length": 2048, "precision": "fp32"},
        "output_model": f"default/llama-d{number % 20}@{identity}",
        "warnings": [],
        "custom_fields": {"run": str(number)},
        "work": {"model": "x", "training_type": "dpo", "seed": 0, "train": {}, "files": []},
    }
    log = [{"updated_at": moment, "message": text, "detail": None} for text in ("created", "started", state)]
    row = {
        "id": identity,
        "namespace": "default",
        "name": f"job-{number:06}",
        "output_model": document["output_model"],
        "state": state,
        "created_at": moment,
        "updated_at": moment,
        "starts": 1,
        "idle_starts": 0,
        "step": 10,
        "seconds": 1.0,
        "request_hash": f"{number:064}",
        "attempt": 0,
        "document": document,
        "progress": {"percentage_done": 100.0, "steps_completed": 10, "train_loss": 0.5},
        "log": log,
    }
    return row


def measure_lists(context: Context) -> list[tuple[str, float]]:
    """Print the CPU time of complete requests in this process, including all threads."""
    from fastapi.testclient import TestClient

    from pairwright.service.api.app import create_app

    results = []
    with TestClient(create_app(context, supervise=False), base_url="http://127.0.0.1") as client:
        asks = [(what, "/v1/customization/jobs", params) for what, params in LISTS.items()]
        asks += [("models", "/v1/models", {}), ("models, last page", "/v1/models", {"page": NUM_JOBS // 200})]
        asks += [("fine-tuning jobs (OpenAI)", "/v1/fine_tuning/jobs", {"limit": 100}), ("metrics", "/metrics", {})]
        for what, path, params in asks:
            times = []
            for _ in range(ROUNDS + 1):
                started = time.process_time()
                answer = client.get(path, params=params)
                times.append(time.process_time() - started)
                assert answer.status_code == 200, answer.text
            # The first request fills caches.
            results.append((what, 1000 * sorted(times[1:])[ROUNDS // 2]))
    return results


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process: fields 14 (user) and 15 (system) of its stat file, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_status(settings: Settings, identities: list[str]) -> None:
    """Let many clients poll the status of jobs at a server process."""
    command = [sys.executable, "-m", "pairwright.cli", "serve", "jobs", "--data", str(settings.data), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--max-running", "0"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        line = next(text for text in server.stderr if "http://" in text)
        url = line[line.index("http://") :].split()[0]
        address = urlsplit(url)
        times: list[float] = []
        deadline = time.monotonic() + SECONDS

        async def poll(number: int) -> None:
            # Each client has its own connection and polls once per second, as clients that wait for a job do.
            await asyncio.sleep(number / NUM_CLIENTS)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            path = f"/v1/customization/jobs/{identities[number]}/status"
            request = f"GET {path} HTTP/1.1\r\nhost: {address.netloc}\r\n\r\n".encode()
            while time.monotonic() < deadline:
                started = time.monotonic()
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), head
                await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
                times.append(time.monotonic() - started)
                await asyncio.sleep(max(0.0, 1 - (time.monotonic() - started)))
            writer.close()

        before, own = cpu_seconds(server.pid), time.process_time()
        await asyncio.gather(*(poll(number) for number in range(NUM_CLIENTS)))
        own = time.process_time() - own
        milliseconds = 1000 * (cpu_seconds(server.pid) - before) / len(times)
        times.sort()
        middle, late = times[len(times) // 2], times[int(len(times) * 0.99)]
        what = f"status, {NUM_CLIENTS} clients, {len(times):,} requests (load {os.getloadavg()[0]:.1f})"
        print(f"\n| {what} | p50 {1000 * middle:.0f} ms | p99 {1000 * late:.0f} ms | < 500 ms on idle cores |")
        print(f"| CPU of the server a request | {milliseconds:.2f} ms | | |")
        print(f"| CPU of all clients a request | {1000 * own / len(times):.2f} ms | | |")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
