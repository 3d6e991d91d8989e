"""Queries of the page over runs and evaluations: outcome, funnel, training curves, tasks before and after."""

import csv
import itertools
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

from pairwright.errors import PairwrightError
from pairwright.evaluation.evaluation import TASKS_NAME, read_evaluation
from pairwright.evaluation.held_out_runs import SIDES
from pairwright.ledger.run_status import read_status
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME
from pairwright.report.run_folder import RunFolder, find_side, read_json
from pairwright.report.training_section import metric_curve, metric_names, metric_rows
from pairwright.store.table import Table
from pairwright.view.experience_queries import ExperienceQueries, plain
from pairwright.view.facets import quote
from pairwright.view.library import Item, Library, open_begun_run

MAX_TASKS = 100_000  # maximum listed tasks of an evaluation
MAX_RUNS_OF_TASK = 20
_TASK_COLUMNS = {"task": str, "runs": int, "before": float, "after": float, "difference": float, "outcome": str}
_METRIC = ("name", "better", "tasks", "before", "after", "difference", "wins", "draws", "losses", "num_regressions")
_OUTCOMES = {"loss": 0, "draw": 1, "win": 2}  # regressions first


class RunQueries:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._sides: dict[Path, ExperienceQueries] = {}  # tables of evaluations, by folder

    def list_runs(self) -> list[dict[str, Any]]:
        return [self._summarize(item) for item in self._library.of_kind("run")]

    def read_run(self, key: str) -> dict[str, Any]:
        """Return one run: its summary, metrics, funnels, curves and stages."""
        item = self._library.get(key, "run")
        run, evaluation = _open(item)
        manifest = read_json(run.manifest) if run.manifest is not None else {}
        stages = manifest.get("stages", {}) if isinstance(manifest, dict) else {}
        return {
            **self._summarize(item),
            "metrics": _metrics(evaluation),
            "gate": plain(evaluation.get("gate")),
            "funnels": self._funnels(run),
            "curves": _curves(run),
            "stages": [
                {
                    "name": name,
                    "state": stage.get("state"),
                    "seconds": stage.get("seconds"),
                    "result": plain(stage.get("result")),
                }
                for name, stage in stages.items()
                if isinstance(stage, dict)
            ],
            "items": [entry for entry in self._library.as_json() if entry["run"] == key],
        }

    def _summarize(self, item: Item) -> dict[str, Any]:
        run, evaluation = _open(item)
        own = [other for other in self._library.items.values() if other.run == item.key]
        tables = [other for other in own if other.kind == "experiences" and "/evaluation/" not in other.key]
        pairs = [other for other in own if other.kind == "pairs"]
        statuses = [read_status(stages.train.parent, strict=False) for stages in run.rounds if stages.train]
        return {
            "key": item.key,
            "rounds": sum(bool(stages.name) for stages in run.rounds),
            "experiences": sum(Table(table.path, create=False).count() for table in tables),
            "pairs": sum(pq.read_metadata(table.path / PAIRS_NAME).num_rows for table in pairs),
            "state": statuses[-1].state if statuses and statuses[-1] is not None else None,
            "passed": evaluation["gate"]["passed"] if evaluation.get("gate") else None,
            "metric": next(iter(_metrics(evaluation)), None),
            "modified": item.path.stat().st_mtime,
            "evaluation": next((other.key for other in reversed(own) if other.kind == "evaluation"), None),
        }

    def _funnels(self, run: RunFolder) -> list[dict[str, Any]]:
        funnels = []
        for stages in reversed(run.rounds):
            if stages.pairs is None:
                continue
            try:
                funnel = read_funnel(stages.pairs)
            except PairwrightError:  # pairs of other origin have no funnel
                continue
            path, stage_counts = stages.pairs.resolve(), funnel.get("stages", [])
            source = next((known for known in self._library.of_kind("pairs") if known.path == path), None)
            tables = self._library.tables_of_pairs(source) if source else []
            drops = [drop["reason"] for stage in stage_counts for drop in stage["drops"]]
            funnels.append(
                {
                    "name": stages.name,
                    "stages": stage_counts,
                    "pairs": source.key if source else None,
                    "table": tables[0].key if tables else None,
                    # The condition on experiences behind each bar.
                    "where": {reason: f"outcome = {quote(reason)}" for reason in drops},
                    "hint": funnel.get("hint"),
                }
            )
        return funnels

    def list_tasks(self, key: str, metric: str, offset: int, limit: int, text: str) -> dict[str, Any]:
        """Return the tasks of an evaluation by one metric, regressions first."""
        item = self._library.get(key, "evaluation")
        evaluation = read_evaluation(item.path)
        names = [entry["name"] for entry in evaluation.get("metrics") or []]
        wanted = metric if metric in names else (names[0] if names else "")
        try:
            with (item.path / TASKS_NAME).open(newline="", encoding="utf-8") as file:
                rows = list(itertools.islice(csv.DictReader(file), MAX_TASKS * max(1, len(names))))
        except OSError as error:
            raise PairwrightError(f"{item.path / TASKS_NAME}: {error.strerror or error}") from None
        own: list[dict[str, Any]] = [
            {name: kind(row[name]) for name, kind in _TASK_COLUMNS.items()}
            for row in rows
            if row["metric"] == wanted and text.lower() in row["task"].lower()
        ]
        own.sort(key=lambda row: (_OUTCOMES.get(row["outcome"], 1), -abs(row["difference"]), row["task"]))
        return {
            "matches": len(own),
            "offset": offset,
            "rows": own[offset : offset + limit],
            "metric": wanted,
            "metrics": _metrics(evaluation),
            "gate": plain(evaluation.get("gate")),
            "before": evaluation.get("before"),
            "after": evaluation.get("after"),
            "transcripts": all(self._side_table(item, side) is not None for side in SIDES),
        }

    def read_task(self, key: str, task: str) -> dict[str, Any]:
        item = self._library.get(key, "evaluation")
        sides: dict[str, Any] = {}
        for side in SIDES:
            folder = self._side_table(item, side)
            if folder is None:
                sides[side] = None
                continue
            if folder not in self._sides:
                self._sides[folder] = ExperienceQueries(Item(str(folder), "experiences", folder), self._library)
            sides[side] = self._sides[folder].read_task(task, MAX_RUNS_OF_TASK)
        return {"task": task, **sides}

    def _side_table(self, item: Item, side: str) -> Path | None:
        return find_side(item.path, read_evaluation(item.path), side)


def _open(item: Item) -> tuple[RunFolder, dict[str, Any]]:
    """Return a run and its evaluation, {} if it has none."""
    run = open_begun_run(item.path)
    return run, {} if run.evaluation is None else read_evaluation(run.evaluation)


def _metrics(evaluation: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: plain(metric.get(name)) for name in _METRIC} for metric in evaluation.get("metrics") or []]


def _curves(run: RunFolder) -> list[dict[str, Any]]:
    """Return every training metric as points, downsampled to means of neighbours."""
    rows, _ = metric_rows(run)
    curves = []
    for name in metric_names(rows):
        for key in (name, f"eval_{name}"):
            curve = metric_curve(rows, key)
            if not curve.steps:
                continue
            curves.append({"name": key, "points": [(fmean(steps), fmean(ys)) for steps, ys in curve.windows()]})
    return curves
