"""`pairwright_trainer`: collects pairs in several runs, filters all of them with the funnel, and trains on them.

    OUT = finetuning.output_dir
    OUT/data_collection_progress.jsonl, collection_history.json, final_metrics.json   as NAT's trainer writes them
    OUT/pairwright_trainer.json           state: the same command with the same configuration resumes
    OUT/pairwright/<run id>_run<n>/       the run folders of the builder, each with its trajectories.jsonl
    OUT/pairwright/<run id>/selection/    pairs of all runs with funnel.json: duplicates, contradictions, sample
    OUT/pairwright/<run id>/train/        the job

Finished collection runs are never repeated, and a submitted job is awaited, not started twice.
"""

import json
import logging
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from nat.data_models.finetuning import (
    FinetuneConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.finetuning_runner import Trainer
from pydantic import BaseModel

from pairwright.collection.nat_files import FINAL, HISTORY, PROGRESS, final_metrics, now
from pairwright.config.nat_keys import COMPONENTS
from pairwright.errors import PairwrightError
from pairwright.nat.nat_options import PairwrightTrainerConfig
from pairwright.nat.nat_trajectories import drops_of, select_trajectories
from pairwright.nat.trainer_adapter import NOT_REACHED
from pairwright.pairs.funnel import read_funnel
from pairwright.paths import append_synced, write_bytes, write_json
from pairwright.records.messages import Json, content_hash

logger = logging.getLogger(__name__)

STATE = "pairwright_trainer.json"
TRAJECTORIES = "trajectories.jsonl"
# Options that may change on resume: they do not affect finished runs. A larger num_runs extends the collection.
_MAY_CHANGE = {
    "reward",
    "num_runs",
    "wait_for_completion",
    "resume",
    "hf_token",
    "api_token",
    "poll_interval_seconds",
    "training_timeout_seconds",
    "deployment_timeout_seconds",
    "max_consecutive_status_failures",
    "deploy_on_completion",
    "deployment_config",
}
_SECTIONS = {"finetuning", *COMPONENTS}  # of NAT's configuration


class PairwrightTrainer(Trainer):  # type: ignore[misc]
    """Runs a finetuning: collection, funnel, job."""

    def __init__(self, trainer_config: PairwrightTrainerConfig, **kwargs: Any) -> None:
        super().__init__(trainer_config)
        self.trainer_config: PairwrightTrainerConfig = trainer_config
        self._run_id: str | None = None
        self._job_ref: TrainingJobRef | None = None
        self._all_trajectories: list[list[Trajectory]] = []
        self._run_metrics: list[Json] = []
        self._collection_history: list[Json] = []
        self._failure: str | None = None  # why the run has no job
        self._finished_runs: dict[int, Json] = {}  # metrics by run number; empty for a run without pairs
        self._hints: list[str] = []  # why runs have no pairs

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Initialize builder and adapter, and find an interrupted run to resume. There is no curriculum."""
        self.run_config = run_config
        self.trainer_config.reward = run_config.reward_function
        self.curriculum_config = None
        self._curriculum_state = {
            "current_percentile": 1.0,
            "last_expansion_epoch": -1,
            "total_groups": 0,
            "included_groups": set(),
        }
        if run_config.curriculum_learning.enabled:
            logger.warning("finetuning.curriculum_learning: not used, as in NAT's DPO trainer; see pairs.curriculum")
        await self.trajectory_builder.initialize(run_config)
        await self.trainer_adapter.initialize(run_config)
        if not self._resume():
            self._run_id = f"nemo_dpo_{uuid.uuid4().hex[:8]}"
            self._write_state("collecting")
        logger.info("run %s: files are in %s", self._run_id, run_config.output_dir)

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        """Collect, select, submit and wait; returns the status of the job, which is `failed` if there is nothing to
        train on or the job could not be submitted. Raises RuntimeError if the job failed.

        `num_epochs` is not used: `num_runs` is the number of collections, the hyperparameters have the epochs.
        """
        if not self._run_id:
            raise RuntimeError("Trainer not initialized. Call initialize() first.")
        if self._job_ref is not None:
            status = await self.trainer_adapter.status(self._job_ref)
            is_lost = (status.message or "").startswith(NOT_REACHED)
            if status.status in (TrainingStatusEnum.FAILED, TrainingStatusEnum.CANCELED) and not is_lost:
                logger.info("run %s: its job has failed; its pairs are submitted again", self._run_id)
                self._job_ref = None
        if self._job_ref is None:
            failure = await self._collect() or await self._submit()
            if failure is not None:
                return [failure]
        assert self._job_ref is not None
        if not self.trainer_config.wait_for_completion:
            status = self._status(TrainingStatusEnum.RUNNING, "Training job submitted (not waiting for completion)")
            self._log_final_metrics(status)
            return [status]
        try:
            final = await self.trainer_adapter.wait_until_complete(self._job_ref)
        except Exception as error:
            failed = self._status(TrainingStatusEnum.FAILED, str(error))
            self._log_final_metrics(failed)
            raise
        self._log_final_metrics(final)
        self._write_state("done")
        return [final]

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef | None:
        """Collect the pairs of one run; nothing is submitted."""
        meta = {"run_number": epoch, "run_id": run_id, "trainer_config": self.trainer_config.model_dump()}
        name = f"{run_id}_run{epoch}"
        await self.trajectory_builder.start_run(run_id=name, meta=meta)
        collection = await self.trajectory_builder.finalize(run_id=name, meta=meta)
        if not collection.trajectories:
            logger.warning("run %d: no pairs", epoch)
            if hint := getattr(self.trajectory_builder, "hint", None):
                self._hints.append(f"run {epoch}: {hint}")
            self._finished_runs[epoch] = {}
            return None
        trajectories = [trajectory for group in collection.trajectories for trajectory in group]
        rewards = [trajectory.reward for trajectory in trajectories]
        metrics = {
            "run_number": epoch,
            "num_trajectories": len(trajectories),
            "num_dpo_pairs": sum(len(trajectory.episode) for trajectory in trajectories),
            "avg_reward": sum(rewards) / len(rewards),
            "min_reward": min(rewards),
            "max_reward": max(rewards),
            "timestamp": now(),
        }
        lines = (json.dumps([one.model_dump(mode="json") for one in group]) for group in collection.trajectories)
        write_bytes(self._root() / name / TRAJECTORIES, "".join(f"{line}\n" for line in lines).encode())
        self._run_metrics.append(metrics)
        self._all_trajectories.extend(collection.trajectories)
        self._finished_runs[epoch] = metrics
        self.log_progress(epoch, metrics)
        return None

    async def get_metrics(self, run_id: str) -> Json:
        """Return the metrics of the collection and of the job.

        Raises PairwrightError for a run that failed before its job: NAT only logs the failed status, and without an
        error in this last call it would exit with code 0.
        """
        if self._failure is not None:
            raise PairwrightError(self._failure)
        metrics: Json = {
            "run_id": run_id,
            "num_collection_runs": len(self._run_metrics),
            "collection_runs": self._run_metrics,
            "total_trajectory_groups": len(self._all_trajectories),
        }
        if self._job_ref is not None:
            try:
                status = await self.trainer_adapter.status(self._job_ref)
                metrics["training_job"] = {
                    "job_id": (self._job_ref.metadata or {}).get("job_id"),
                    "status": status.status.value,
                    "progress": status.progress,
                    "message": status.message,
                }
            except Exception as error:  # metrics must not fail a finished run
                metrics["training_job"] = {"error": str(error)}
        return metrics

    async def cleanup(self) -> None:
        """Cancel running evaluations and clear collected data in memory; the files stay."""
        for run_id, task in getattr(self.trajectory_builder, "evaluation_runs", {}).items():
            if not task.done():
                logger.info("run %s: evaluation is cancelled", run_id)
                task.cancel()
        self._all_trajectories.clear()
        self._run_metrics.clear()

    def log_progress(self, epoch: int, metrics: Json, output_dir: str | None = None) -> None:
        """Write the progress of the collection as NAT's trainer does."""
        folder = Path(output_dir) if output_dir else Path(self.run_config.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        entry = {"run_number": epoch, "timestamp": now(), "run_id": self._run_id, **metrics}
        self._collection_history.append(entry)
        append_synced(folder / PROGRESS, msgspec.json.encode(entry) + b"\n")
        write_json(folder / HISTORY, self._collection_history)
        num_pairs, mean = metrics.get("num_dpo_pairs", 0), metrics.get("avg_reward", 0)
        logger.info("run %d: %d pairs, mean reward %.4f", epoch + 1, num_pairs, mean)

    async def _collect(self) -> TrainingJobStatus | None:
        """Collect the runs that are not done; returns a status if there is nothing to train on."""
        assert self._run_id is not None
        errors: list[str] = []
        for number in range(self.trainer_config.num_runs):
            if number in self._finished_runs:
                continue
            try:
                await self.run_epoch(number, self._run_id)
            except Exception as error:  # any error of a workflow: the option decides
                logger.error("run %d of the collection failed: %s", number, error)
                if not self.trainer_config.continue_on_collection_error:
                    return self._fail(f"Data collection failed at run {number}: {error}", {"run_number": number})
                errors.append(f"run {number}: {error}")
            self._write_state("collecting")
        if not self._all_trajectories:
            reasons = f" ({'; '.join([*errors, *self._hints])})" if errors or self._hints else ""
            self._write_state("empty")  # nothing to resume: the next run starts from scratch
            return self._fail(f"No trajectories collected{reasons}; see {self._root()}")
        return None

    async def _submit(self) -> TrainingJobStatus | None:
        """Select among the pairs of all runs and submit them; returns a status on failure."""
        config = self.trainer_config
        collection = TrajectoryCollection(trajectories=self._all_trajectories, run_id=self._run_id)
        folder = self._root() / str(self._run_id) / "selection"
        shutil.rmtree(folder, ignore_errors=True)  # of a submission that was interrupted
        try:
            collection, funnel = select_trajectories(
                collection,
                folder,
                seed=config.seed,
                dedupe=config.deduplicate_pairs,
                contradictions=config.contradictions,
                max_pairs=config.max_pairs,
            )
            drops = dict(drops_of(funnel))
            logger.info("%d pairs of all runs; dropped: %s; see %s", funnel["pairs"], drops or "none", folder)
            if not collection.trajectories:
                raise PairwrightError(f"no pair is left: {drops}; see {folder / 'pairs' / 'funnel.json'}")
            self._job_ref = await self.trainer_adapter.submit(collection)
        except Exception as error:
            logger.error("the job was not submitted: %s", error)
            return self._fail(f"Failed to submit training job: {error}")
        self._write_state("submitted")
        return None

    def _fail(self, message: str, metadata: Json | None = None) -> TrainingJobStatus:
        """Return a failed status, and write it to final_metrics.json."""
        self._failure = message
        status = self._status(TrainingStatusEnum.FAILED, message, metadata)
        self._log_final_metrics(status)
        return status

    def _status(self, status: TrainingStatusEnum, message: str, metadata: Json | None = None) -> TrainingJobStatus:
        backend = self._job_ref.backend if self._job_ref is not None else "nemo-customizer"
        known = metadata if metadata is not None else self._job_ref and self._job_ref.metadata
        return TrainingJobStatus(run_id=self._run_id, backend=backend, status=status, message=message, metadata=known)

    def _log_final_metrics(self, final: TrainingJobStatus) -> None:
        job = {**((self._job_ref and self._job_ref.metadata) or {}), **(final.metadata or {})}
        metrics = final_metrics(
            self._run_id,
            self._run_metrics,
            status=final.status.value,
            message=final.message,
            progress=final.progress,
            num_groups=len(self._all_trajectories),
        )
        metrics["pairs"] = self._count_pairs()
        metrics["job_metadata"] = {**job, "status": final.status.value} if self._job_ref is not None else None
        write_json(Path(self.run_config.output_dir) / FINAL, metrics)

    def _count_pairs(self) -> Json:
        """Count the pairs: collected, removed by reason, trained and held out for validation; the counts add up."""
        removed: Counter[str] = Counter()
        selected = self._root() / str(self._run_id) / "selection" / "pairs"
        if selected.exists():
            removed.update(drops_of(read_funnel(selected)))
        counts: Json = {"trained": 0, "validation": 0}
        if self._job_ref is not None:  # other adapters do not report counts
            counts = (self._job_ref.metadata or {}).get("pairs") or {}
        removed.update(counts.get("removed", {}))
        return {
            "collected": sum(run["num_dpo_pairs"] for run in self._run_metrics),
            "removed": dict(removed),
            "trained": counts.get("trained"),
            "validation": counts.get("validation"),
        }

    def _root(self) -> Path:
        return Path(self.run_config.output_dir) / "pairwright"

    def _write_state(self, phase: str) -> None:
        state = {
            "run_id": self._run_id,
            "identity": self._identity(),
            "phase": phase,
            "runs": [{"number": number, "metrics": metrics} for number, metrics in self._finished_runs.items()],
            "job": None if self._job_ref is None else self._job_ref.model_dump(mode="json"),
        }
        write_json(Path(self.run_config.output_dir) / STATE, state)

    def _resume(self) -> bool:
        """Resume an interrupted run of this configuration; returns False if there is none. STATE lists its finished
        collection runs, and the folder of each has its trajectories."""
        path = Path(self.run_config.output_dir) / STATE
        if not self.trainer_config.resume or not path.exists():
            return False
        state = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if state["phase"] in ("done", "empty"):
            return False
        if state["identity"] != self._identity():
            logger.info("%s: an interrupted run of another configuration; a new one is started", path)
            return False
        self._run_id = state["run_id"]
        self._job_ref = None if state["job"] is None else TrainingJobRef.model_validate(state["job"])
        for run in state["runs"]:
            self._finished_runs[run["number"]] = run["metrics"]
            if run["metrics"]:
                self._run_metrics.append(run["metrics"])
                lines = (self._root() / f"{self._run_id}_run{run['number']}" / TRAJECTORIES).read_text(encoding="utf-8")
                self._all_trajectories.extend(
                    [Trajectory.model_validate(trajectory) for trajectory in json.loads(line)]
                    for line in lines.splitlines()
                )
        self._collection_history = [{"run_id": self._run_id, **metrics} for metrics in self._run_metrics]
        logger.info("run %s: resumed with %d runs of the collection done", self._run_id, len(self._finished_runs))
        return True

    def _identity(self) -> str:
        """Return a hash of everything that must not change on resume: options of the components, workflow and data."""
        components = (
            self.trainer_config,
            getattr(self.trajectory_builder, "trajectory_builder_config", None),
            getattr(self.trainer_adapter, "adapter_config", None),
        )
        parts: list[Any] = [
            config.model_dump(mode="json", exclude=_MAY_CHANGE) if isinstance(config, BaseModel) else None
            for config in components
        ]
        run = self.run_config.run_configuration
        if run is not None:
            source = run.config_file
            if isinstance(source, BaseModel):
                # `finetuning` contains the configuration itself, since the command line sets run_configuration there
                parts.append(source.model_dump(mode="json", exclude=_SECTIONS, fallback=str, warnings=False))
            else:
                parts.append(None if source is None else Path(source).read_text(encoding="utf-8"))
            parts.append([str(run.dataset), run.result_json_path, run.endpoint])
        return content_hash(parts)
