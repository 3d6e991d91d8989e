"""Run the example with several seeds sequentially, and print the results as a table.

    python seeds.py FOLDER [--seeds 0,1,2,3,4] [KEY=VALUE]...

Each seed has its own tasks, samples, order of training and folder FOLDER/seed-N. The same command resumes interrupted
seeds, skips finished ones, and prints the tables.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STAGES = ("collect", "pairs", "tokens", "train", "evaluate")


def run_seed(folder: Path, seed: int, overrides: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pairwright.cli",
        "demo",
        "tools",
        "-o",
        str(folder),
        "--seed",
        str(seed),
        *overrides,
    ]
    done = subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 2):  # exit code 2: the gate stays closed, which the table shows
        sys.exit(f"seed {seed} ended with exit code {done.returncode}")


def read_seed(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the comparison of the first metric, and the stages by name."""
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return evaluation["metrics"][0], {name.rpartition("/")[2]: stage for name, stage in manifest["stages"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the example with several seeds and print the tables.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    words = parser.parse_intermixed_args()  # KEY=VALUE words may follow options
    folders = {int(seed): words.folder / f"seed-{seed}" for seed in words.seeds.split(",")}
    for seed, folder in folders.items():
        run_seed(folder, seed, words.overrides)

    print("| seed | before | after | difference (95% interval) | tasks won / lost | pairs |")
    print("|---|---|---|---|---|---|")
    costs = []
    for seed, folder in folders.items():
        metric, stages = read_seed(folder)
        before, after, difference = metric["before"]["mean"], metric["after"]["mean"], metric["difference"]
        interval = f"{100 * difference['low']:+.1f} to {100 * difference['high']:+.1f}"
        print(
            f"| {seed} | {before:.1%} | {after:.1%} | **{100 * difference['mean']:+.1f}** ({interval}) "
            f"| {metric['wins']} / {metric['losses']} | {stages['pairs']['result']['pairs']} |"
        )
        costs.append((seed, stages))

    print("\nCPU seconds and peak memory of each stage:\n")
    print(f"| seed | {' | '.join(STAGES)} | together |")
    print("|---|" + "---|" * (len(STAGES) + 1))
    for seed, stages in costs:
        cells = [
            f"{stages[name]['cpu_seconds']:.0f} s, {stages[name]['peak_memory_bytes'] / 2**30:.1f} GB"
            for name in STAGES
        ]
        total = sum(stages[name]["cpu_seconds"] for name in STAGES)
        print(f"| {seed} | {' | '.join(cells)} | {total / 60:.1f} min |")


if __name__ == "__main__":
    main()
