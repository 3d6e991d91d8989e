"""The table compared with lower bounds: appends with a plain file synced per batch, scans with plain Polars."""

import os
import tempfile
import time
from pathlib import Path

import polars as pl

from bench.measure import best_wall, in_child, row
from bench.records import make_rows, ours
from pairwright import Experience, Table, dumps_many

NUM_EXPERIENCES = 12_800
BATCH = 64
COLUMNS = ["uid", "tid", "run", "step", "reward", "prompt_hash"]
SCAN = """
import json, sys
from pairwright import Table

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

table = Table(sys.argv[1])
base = peak()
num_rows = sum(1 for _ in table.records())
print(json.dumps({"rows": num_rows, "megabytes": peak() - base}))
"""


def main() -> None:
    exps = ours(make_rows(NUM_EXPERIENCES))
    batches = [exps[start : start + BATCH] for start in range(0, NUM_EXPERIENCES, BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(f"### Table: {NUM_EXPERIENCES:,} experiences\n")
        print("| what | pairwright | the limit | speed against the limit | target |\n|---|---|---|---|---|")
        _append(batches, root)
        _scan(exps, root)
        _memory(exps, root)
        print()


def _append(batches: list[list[Experience]], root: Path) -> None:
    payloads = [dumps_many(batch, compress=False) for batch in batches]
    ours_best = theirs_best = close_best = float("inf")
    for number in range(5):
        table = Table(root / f"append{number}")
        start = time.perf_counter()
        for batch in batches:
            table.append(batch)
        ours_best = min(ours_best, time.perf_counter() - start)
        start = time.perf_counter()
        table.close()
        close_best = min(close_best, time.perf_counter() - start)
        start = time.perf_counter()
        with open(root / f"bare{number}", "wb", buffering=0) as file:
            for payload in payloads:
                file.write(payload)
                os.fdatasync(file.fileno())
        theirs_best = min(theirs_best, time.perf_counter() - start)
    what = f"append in batches of {BATCH}, each synced; wall clock a batch"
    print(row(what, ours_best / len(batches) * 1e3, theirs_best / len(batches) * 1e3, "ms", "≥ 0.5×"))
    closing = close_best / len(batches) * 1e3
    print(f"| turning the journals into parts at the end, wall clock a batch | {closing:.4g} ms | | | |")


def _scan(exps: list[Experience], root: Path) -> None:
    with Table(root / "scan") as table:
        for _ in range(8):
            table.append(exps)
            table.compact()
    parts = sorted((root / "scan").glob("*.parquet"))
    condition = pl.col("reward") > 0.5
    mine, bare = best_wall(
        lambda: sum(batch.num_rows for batch in table.scan(condition, COLUMNS)),
        lambda: pl.scan_parquet(parts).filter(condition).select(COLUMNS).collect().height,
        rounds=7,
    )
    lazy, _ = best_wall(lambda: table.lazy().filter(condition).select(COLUMNS).collect().height, lambda: None, rounds=7)
    what = f"narrow columns of {8 * len(exps):,} rows"
    print(row(f"scan() of {what}, wall clock", mine * 1e3, bare * 1e3, "ms", "≥ 0.5×"))
    print(row(f"lazy() of {what}, wall clock", lazy * 1e3, bare * 1e3, "ms", "≥ 0.5×"))


def _memory(exps: list[Experience], root: Path) -> None:
    peaks = []
    for num_parts in (2, 10):
        table = Table(root / f"memory{num_parts}")
        for _ in range(num_parts):
            table.append(exps[:6400])
            table.compact()
        peaks.append(in_child(SCAN, str(table.path))["megabytes"])
    print(f"| peak memory of a scan of whole records, 12,800 and 64,000 rows | {peaks[1]:.0f} MB | {peaks[0]:.0f} MB "
          f"| **{peaks[1] / peaks[0]:.2f}×** | independent of size |")  # fmt: skip
