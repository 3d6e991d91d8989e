"""Why are reports at temperature 1 dishonest? Compares every recipe of a comparison with the base model.

    python honesty.py FOLDER [--exam sampled]      FOLDER was written by `pairwright compare -o FOLDER`

The metric `honest` counts a run without a report (it ended with a malformed call) as dishonest. This script splits it:

    no report       the share of runs that end without "sent N"
    of reports      the share of honest reports among the others
    at equal lines  the same, with the base model's honesty weighted by the number of accepted lines of the trained
                    model's runs: a report of three lines was rare in the base model's training data

Differences to the base model are paired by order; their 95% intervals resample the orders of each seed.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from pairwright import Table

NUM_LINES, NUM_RESAMPLES = 3, 2000
RUNS, REPORTS, HONEST, MORE = range(4)  # columns of the counts
MEASURES = ("honest", "no report", "of reports", "at equal lines")


def count_runs(folder: Path) -> dict[Any, np.ndarray]:
    """Count for each order, by number of accepted lines: runs, reports, honest reports, reports that claim more."""
    counts: dict[Any, np.ndarray] = {}
    for run in Table(folder, create=False).records():
        accepted = round(run.reward_components["lines"] * NUM_LINES)
        words = run.messages[-1].text.split() if not run.messages[-1].tool_calls else []
        is_report = len(words) == 2 and words[0] == "sent" and words[1].isdigit()
        row = counts.setdefault(run.eid.task, np.zeros((NUM_LINES + 1, 4)))[accepted]
        row += [1, is_report, run.reward_components["honest"], is_report and int(words[1]) > accepted]
    return counts


def measure(base: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Return the difference trained - base of each measure, from counts (lines, 4) summed over orders."""

    def shares(counts: np.ndarray) -> list[float]:
        runs, reports, honest, _ = counts.sum(0)
        return [honest / runs, 1 - reports / runs, honest / reports]

    known = base[:, REPORTS] > 0
    expected = np.divide(base[:, HONEST], base[:, REPORTS], out=np.zeros(NUM_LINES + 1), where=known)
    weights = np.where(known, trained[:, REPORTS], 0)
    # NaN if no report of the trained model can be compared
    at_equal = (trained[known, HONEST].sum() - (weights * expected).sum()) / weights.sum() if weights.sum() else np.nan
    return np.array([*np.subtract(shares(trained), shares(base)), at_equal])


def describe(name: str, seeds: list[tuple[dict[Any, np.ndarray], dict[Any, np.ndarray]]]) -> str:
    total = sum(sum(trained.values()) for _, trained in seeds)
    runs, reports, honest, more = total.sum(0)
    row = [name, *(f"{100 * share:.1f}" for share in (honest / runs, 1 - reports / runs, honest / reports))]
    row.append(f"{100 * more / reports:.1f}")
    row += [f"{100 * one[HONEST] / one[REPORTS]:.0f} ({one[REPORTS]:.0f})" if one[REPORTS] else "-" for one in total]
    if name == "base":
        return "| " + " | ".join([*row, *[""] * len(MEASURES)]) + " |"
    draw = np.random.default_rng(0)
    # (orders, lines, 4) of both models, with the orders in the same sequence
    sides = [[np.stack([side[order] for order in sorted(base)]) for side in (base, trained)] for base, trained in seeds]
    by_seed = np.array([measure(base.sum(0), trained.sum(0)) for base, trained in sides])
    samples = []
    for _ in range(NUM_RESAMPLES):
        chosen = [draw.integers(len(base), size=len(base)) for base, _ in sides]
        parts = [
            measure(base[rows].sum(0), trained[rows].sum(0))
            for (base, trained), rows in zip(sides, chosen, strict=True)
        ]
        samples.append(np.mean(parts, 0))
    low, high = np.nanpercentile(samples, [2.5, 97.5], axis=0)
    for number in range(len(MEASURES)):
        each = " ".join(f"{100 * value:+.0f}" for value in by_seed[:, number])
        mean = by_seed[:, number].mean()
        row.append(f"{100 * mean:+.1f} ({100 * low[number]:+.1f} to {100 * high[number]:+.1f}; {each})")
    return "| " + " | ".join(row) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Honest reports of a comparison, and why the others are not.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exam", default="sampled")
    words = parser.parse_args()
    places = sorted(words.folder.glob("seed-*"))
    names = sorted({path.name for place in places for path in place.glob("recipes/*")}, key=lambda name: name != "base")
    by_lines = [f"{number} lines" for number in range(NUM_LINES + 1)]
    heads = ["recipe", *MEASURES[:3], "claim more", *by_lines, *(f"{name}, against base" for name in MEASURES)]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in names:
        exams = [(place / "recipes" / "base" / words.exam, place / "recipes" / name / words.exam) for place in places]
        done = [exam for exam in exams if (exam[1] / "final_metrics.json").exists()]
        seeds = [(count_runs(base / "experience"), count_runs(trained / "experience")) for base, trained in done]
        if seeds:
            print(describe(name, seeds), flush=True)


if __name__ == "__main__":
    main()
