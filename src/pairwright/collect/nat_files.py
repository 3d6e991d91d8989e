"""Progress files in the format of NAT's trainer, and the identity file that decides whether a run can be resumed.

    data_collection_progress.jsonl   one line each time that all tasks of a run number have ended
    collection_history.json          the last such line of each run number
    final_metrics.json               the whole collection; `job_metadata` says what trained on it

NAT counts a trajectory for each pair; here `num_trajectories` is the number of runs done. The files are derived from
the ledger, so they are complete after a resume, too.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collect.finished_runs import Entry, RunKey
from pairwright.collect.policies import CollectError
from pairwright.config import Config
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
        # figures of each run number, as they were last written
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
                self._reported[number] = {**figures, "run_id": self._run_id, "timestamp": _now()}
                news.append(self._reported[number])
        if news:
            append_synced(self._folder / PROGRESS, b"".join(msgspec.json.encode(item) + b"\n" for item in news))
            write_json(self._folder / HISTORY, [self._reported[number] for number in sorted(self._reported)])

    def finish(self, *, status: str, message: str, num_groups: int) -> None:
        runs = [self._reported[number] for number in sorted(self._reported)]
        # the mean of the means: each run number counts the same, however many scores it has
        means = [run["avg_reward"] for run in runs]
        final = {
            "run_id": self._run_id,
            "timestamp": _now(),
            "status": status,
            "message": message,
            "progress": 100.0 * len(runs) / self._num_runs,
            "num_collection_runs": len(runs),
            "total_trajectory_groups": num_groups,
            "collection_summary": {
                "total_trajectories": sum(run["num_trajectories"] for run in runs),
                "total_dpo_pairs": sum(run["num_dpo_pairs"] for run in runs),
                "avg_reward": sum(means) / len(means) if means else 0.0,
            },
            "job_metadata": None,
        }
        write_json(self._folder / FINAL, final)


def add_training(folder: Path, training: Json) -> None:
    """Write what became of the pairs of a collection into its final_metrics.json, as NAT's trainer does.

    Args:
        folder: Output folder of the collection; nothing is done where it has no final_metrics.json.
        training: Job id, output model, dataset and status.
    """
    path = folder / FINAL
    if path.exists():
        final = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        write_json(path, {**final, "job_metadata": training})


def _figures(number: int, ended: Iterable[Entry]) -> Json:
    listed = list(ended)
    done = [entry for entry in listed if entry.state == "done"]
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
        "num_failed": len(listed) - len(done),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat()


# Identity: the settings that all parts of a collection share, written at its start and compared on resume

FILE = "collection.json"
# Fields of `policy` and `judge` that decide what is sampled; limits and addresses may change on resume
_SAMPLING = ("model", "model_version", "temperature", "top_p", "max_tokens", "num_candidates", "stop", "extra_body")


def begin_or_resume(folder: Path, config: Config, *, resume: bool, workflow: str) -> str:
    """The id of the collection in a folder: a new one, or the one that is resumed."""
    identity = _identity(config, workflow)
    if not _is_begun(folder):
        folder.mkdir(parents=True, exist_ok=True)
        run_id = f"pairwright_{os.urandom(4).hex()}"
        write_json(folder / FILE, {"run_id": run_id, "identity": identity})
        return run_id
    if not resume:
        raise CollectError(
            f"{folder.parent}: already has a collection: add --resume to go on with it, or choose another folder"
        )
    return _resume(folder, identity)


def check_resumable(folder: Path, config: Config, *, workflow: str) -> None:
    """Raise the errors of `begin_or_resume` without writing anything."""
    if _is_begun(folder):
        _resume(folder, _identity(config, workflow))


def _is_begun(folder: Path) -> bool:
    """Whether there is something to resume: a collection that ended before its first answer does not count."""
    logs = [folder / name for name in ("ledger.jsonl", "calls.jsonl")]
    return (folder / FILE).exists() and any(log.exists() and log.stat().st_size for log in logs)


def _resume(folder: Path, identity: Json) -> str:
    """The id of the collection in a folder, if its identity is the same."""
    known = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Any])
    before: Json = known["identity"]
    changed = [key for key in identity if before.get(key) != identity[key]]
    if changed:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {identity[key]!r}" for key in changed)
        raise CollectError(
            f"{folder.parent}: the collection there is another one ({changes}): restore the configuration, "
            "or choose another folder"
        )
    return str(known["run_id"])


def _variables(policy: Json) -> Json:
    variables = policy["chat_template_kwargs"]
    return {"chat_template_kwargs": variables} if variables else {}


def _identity(config: Config, workflow: str) -> Json:
    policy = config.policy.model_dump(mode="json")
    scorer = config.collect.scorer.model_dump(mode="json")
    judge = scorer["judge"]
    scorer["judge"] = {key: judge[key] for key in _SAMPLING} | _variables(judge)
    for key in ("timeout_seconds", "max_concurrency"):  # these may change on resume: they do not change results
        del scorer[key]
    identity: Json = {
        "seed": config.seed,
        "batch": config.collect.batch,
        "workflow": workflow,
        "scorer": scorer,
        **{f"policy.{key}": policy[key] for key in _SAMPLING},
        # null where there are none, as in collections that were begun before this key existed
        "policy.chat_template_kwargs": policy["chat_template_kwargs"] or None,
        "policy.tools_as_text": None if policy["tools_as_text"] == "off" else policy["tools_as_text"],
    }
    # a round trip through JSON, so that it compares equal to the file (tuples become lists)
    plain: Json = msgspec.json.decode(msgspec.json.encode(identity))
    return plain
