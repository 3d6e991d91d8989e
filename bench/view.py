"""`python -m bench.view`: the page over a million experiences, through HTTP; seconds and memory of the server.

Figures are CPU seconds of the server, and wall-clock seconds. Each question is asked once, so that no answer is cached.
`BENCH_ROWS` (1000000) changes the size, `BENCH_TABLE` names a folder that keeps the table and its pairs for later runs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from bench.candidates import write_candidates

NUM_ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
NUM_STEPS = 40  # through the pairs, one by one


class Server:
    """`pairwright view` in a separate process, with its CPU time and memory."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "pairwright.cli", "view", str(folder), "--port", "0", "--no-open"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        link = re.search(r"(http://\S+?)/\?token=(\S+)", line)
        assert link, line
        self._url, self._token = link[1], link[2]

    def ask(self, question: str, **asked: Any) -> tuple[Any, float, float]:
        """Return the answer, CPU seconds of the server, and wall-clock seconds."""
        cpu, start = self._cpu_seconds(), time.perf_counter()
        request = Request(f"{self._url}/api/{question}?{urlencode(asked, doseq=True)}")
        request.add_header("authorization", f"Bearer {self._token}")
        with urlopen(request) as response:
            answer = json.load(response)
        return answer, self._cpu_seconds() - cpu, time.perf_counter() - start

    def peak_megabytes(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BENCH_TABLE") or temporary) / "million"
        make_tables(folder)
        server = Server(folder)
        try:
            measure(server)
        finally:
            server.stop()


def make_tables(folder: Path) -> None:
    """Create the experience table and its pairs, unless they exist."""
    from pairwright import Table
    from pairwright.pairs import PairOptions, build_pairs

    if not (folder / "experience" / "table.json").exists():
        write_candidates(folder / "experience", NUM_ROWS)
    if not (folder / "pairs" / "pairs.parquet").exists():
        build_pairs([Table(folder / "experience")], folder / "pairs", PairOptions(strategy="best-worst"))


def measure(server: Server) -> None:
    table, pairs = "million/experience", "million/pairs"
    server.ask("library")  # a first request loads the modules, which is not measured
    print("| question | CPU | clock | target |\n|---|---|---|---|")

    def show(what: str, target: str, question: str, **asked: Any) -> Any:
        answer, cpu, clock = server.ask(question, **asked)
        print(f"| {what} | {cpu:.2f} s | {clock:.2f} s | {target} |", flush=True)
        return answer

    first = show("first page of experiences", "< 1 s", "experiences.rows", source=table, limit=100)
    assert first["total"] == NUM_ROWS
    show("a text that one row has", "< 2 s", "experiences.rows", source=table, q=f" {NUM_ROWS - 3}", limit=100)
    show("a text that no row has", "< 2 s", "experiences.rows", source=table, q="not a word of it", limit=100)
    show("a condition", "", "experiences.rows", source=table, w="reward > 0.99 AND run = 3", limit=100)
    show("sorted by reward", "", "experiences.rows", source=table, sort="-reward", limit=100)
    show("facets", "", "experiences.facets", source=table)
    show("tasks by spread", "", "experiences.tasks", source=table, sort="-spread", limit=100)
    row = first["rows"][50]
    show("a record", "", "experiences.record", source=table, uid=row["uid"], row=row["row"])
    show("its lineage", "", "experiences.lineage", source=table, uid=row["uid"])
    total = show("first page of pairs", "< 1 s", "pairs.rows", source=pairs, limit=100)["total"]
    for order, asked in (("in the order of the table", {}), ("by gap", {"sort": "-gap"})):
        # The first request of an order sorts the queue; later ones show the delay after a key press.
        server.ask("pairs.pair", source=pairs, position=0, **asked)
        steps = [server.ask("pairs.pair", source=pairs, position=at, **asked)[1:] for at in range(1, NUM_STEPS + 1)]
        cpu, clock = (sorted(step[kind] for step in steps) for kind in (0, 1))
        print(
            f"| next of {total:,} pairs, {order}: median, largest | {cpu[NUM_STEPS // 2]:.3f}, {cpu[-1]:.3f} s "
            f"| {clock[NUM_STEPS // 2]:.3f}, {clock[-1]:.3f} s | < 0.1 s |"
        )
    print(f"| peak memory of the server | {server.peak_megabytes():,.0f} MB | | < 500 MB |")


if __name__ == "__main__":
    main()
