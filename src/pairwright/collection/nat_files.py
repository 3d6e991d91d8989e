"""Progress files in the format of NAT's trainer, and the identity file that decides whether a run can be resumed.

    data_collection_progress.jsonl   one line each time that all tasks of a run number have ended
    collection_history.json          the last such line of each run number
    final_metrics.json               the whole collection; `job_metadata` is the training job

NAT counts a trajectory for each pair; here `num_trajectories` is the number of runs done. The files are derived from
the ledger, so they are complete even after a resume.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.finished_runs import Entry, RunKey
from pairwright.paths import append_synced, write_json
from pairwright.records.messages import Json

PROGRESS = "data_collection_progress.jsonl"
HISTORY = "collection_history.json"
FINAL = "final_metrics.json"


class History:
    """The progress of a collection, by run number."""

    def __init__(self, folder: Path, run_id: str, *, num_tasks: int, num_runs: int) -> None:
        self._folder, self._run_id = folder, run_id
        self._num_tasks, self._num_runs = num_tasks, num_runs
        # figures last written for each run number
        self._reported: dict[int, Json] = {}
        if (folder / HISTORY).exists():
            listed = msgspec.json.decode((folder / HISTORY).read_bytes(), type=list[Json])
            # another run id means that the folder was used for an earlier collection
            self._reported = {int(item["run_number"]): item for item in listed if item.get("run_id") == run_id}

    def update(self, entries: Mapping[RunKey, Entry]) -> None:
        """Write new lines: for run numbers whose tasks have all ended, or whose figures changed after a resume."""
        by_run: dict[int, list[Entry]] = {}
        for entry in entries.values():
            by_run.setdefault(entry.run, []).append(entry)
        news = []
        for number in range(self._num_runs):
            ended = by_run.get(number, [])
            if len(ended) < self._num_tasks:
                continue
            # figures without the timestamp: an unchanged run number gets no second line
            figures = _figures(number, ended)
            known = self._reported.get(number, {})
            if any(known.get(key) != value for key, value in figures.items()):
                self._reported[number] = {**figures, "run_id": self._run_id, "timestamp": now()}
                news.append(self._reported[number])
        if news:
            append_synced(self._folder / PROGRESS, b"".join(msgspec.json.encode(item) + b"\n" for item in news))
            write_json(self._folder / HISTORY, [self._reported[number] for number in sorted(self._reported)])

    def finish(self, *, status: str, message: str, num_groups: int) -> None:
        runs = [self._reported[number] for number in sorted(self._reported)]
        progress = 100.0 * len(runs) / self._num_runs
        final = final_metrics(
            self._run_id, runs, status=status, message=message, progress=progress, num_groups=num_groups
        )
        write_json(self._folder / FINAL, {**final, "job_metadata": None})


def final_metrics(
    run_id: str | None,
    runs: Sequence[Json],
    *,
    status: str,
    message: str | None,
    progress: float | None,
    num_groups: int,
) -> Json:
    """Return the content of final_metrics.json, except the job, from the last line of each run number."""
    # mean of means: each run number has equal weight, regardless of its number of scores
    means = [run["avg_reward"] for run in runs]
    return {
        "run_id": run_id,
        "timestamp": now(),
        "status": status,
        "message": message,
        "progress": progress,
        "num_collection_runs": len(runs),
        "total_trajectory_groups": num_groups,
        "collection_summary": {
            "total_trajectories": sum(run["num_trajectories"] for run in runs),
            "total_dpo_pairs": sum(run["num_dpo_pairs"] for run in runs),
            "avg_reward": sum(means) / len(means) if means else 0.0,
        },
    }


def add_training(folder: Path, training: Json) -> None:
    """Add the training job (id, output model, dataset, status) to the final_metrics.json of a collection, if any."""
    path = folder / FINAL
    if path.exists():
        final = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        write_json(path, {**final, "job_metadata": training})


def _figures(number: int, ended: list[Entry]) -> Json:
    done = [entry for entry in ended if entry.state == "done"]
    scored = sum(entry.num_scored for entry in done)
    lowest = [entry.reward_min for entry in done if entry.reward_min is not None]
    highest = [entry.reward_max for entry in done if entry.reward_max is not None]
    return {
        "run_number": number,
        "num_trajectories": len(done),
        "num_dpo_pairs": sum(entry.num_pairs for entry in done),
        "avg_reward": sum(entry.reward_sum for entry in done) / scored if scored else 0.0,
        "min_reward": min(lowest, default=0.0),
        "max_reward": max(highest, default=0.0),
        "num_candidates": sum(entry.num_candidates for entry in done),
        "num_scored": scored,
        "num_failed": len(ended) - len(done),
    }


def now() -> str:
    return datetime.now(UTC).isoformat()
