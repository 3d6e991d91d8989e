"""`pairwright_trainer_adapter`: trains NAT's trajectories with our jobs: local, on Ray or on a Customizer service.

    JOB = <output_dir>/<run id>:   preferences/  pairs/  train/ (job.json, the model, logs)

A job outlives the process that submitted it. Submitting the same run again, after a crash, finds the job instead of
starting a second one; `pairwright jobs attach JOB/train` and its siblings work on it from a shell.
"""

import asyncio
import logging
import shutil
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import msgspec
from nat.data_models.finetuning import (
    FinetuneConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter

from pairwright.collection.nat_files import now
from pairwright.config import Config
from pairwright.config.config_file import adjust_config
from pairwright.errors import PairwrightError
from pairwright.jobs import BackendError, Job, JobRequest, JobState, Status, find_backend, is_submitted, read_job
from pairwright.jobs.customizer import service_status
from pairwright.jobs.job import follow_status
from pairwright.jobs.local import model_of_job
from pairwright.nat.nat_options import PairwrightTrainerAdapterConfig
from pairwright.nat.nat_trajectories import drops_of, read_preferences, store_preferences
from pairwright.nat.trajectory_builder import DEFAULT_DIR, check_name, output_dir
from pairwright.pairs.build import build_pairs
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.options import pair_options
from pairwright.paths import append_synced
from pairwright.records.messages import Json, prompt_hash

logger = logging.getLogger(__name__)

# A job that is being cancelled still runs: NAT polls until one of `_ENDED`.
_STATES = {
    JobState.PREPARED: TrainingStatusEnum.PENDING,
    JobState.CREATED: TrainingStatusEnum.PENDING,
    JobState.PENDING: TrainingStatusEnum.PENDING,
    JobState.RUNNING: TrainingStatusEnum.RUNNING,
    JobState.CANCELLING: TrainingStatusEnum.RUNNING,
    JobState.CANCELLED: TrainingStatusEnum.CANCELED,
    JobState.FAILED: TrainingStatusEnum.FAILED,
    JobState.COMPLETED: TrainingStatusEnum.COMPLETED,
}
_ENDED = (TrainingStatusEnum.COMPLETED, TrainingStatusEnum.FAILED, TrainingStatusEnum.CANCELED)
# NAT's prefix for a failed status call, as opposed to a failed job.
NOT_REACHED = "Error getting status:"
_HEALTH_SECONDS = 10
# Multiple of the validation share above which examples that share prompts are split by prompt.
_MOST_HELD_OUT = 1.5


class PairwrightTrainerAdapter(TrainerAdapter):  # type: ignore[misc]
    """Submits trajectories as a training job."""

    def __init__(self, adapter_config: PairwrightTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.adapter_config: PairwrightTrainerAdapterConfig = adapter_config
        self._active_jobs: dict[str, str] = {}  # job ids by run id
        self._job_output_models: dict[str, str | None] = {}

    @property
    def backend(self) -> str:
        return self.adapter_config.backend

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Set the configuration of the run. Raises ConnectionError if the backend cannot be used."""
        await super().initialize(run_config)
        problem = await self._find_problem()
        if problem is not None:
            raise ConnectionError(f"backend {self.backend}: {problem}")

    async def is_healthy(self) -> bool:
        """Return whether the service answers, or the requirements of local training are installed."""
        problem = await self._find_problem()
        if problem is not None:
            logger.warning("backend %s: %s", self.backend, problem)
        return problem is None

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Start a job for a collection. Raises ValueError if its run has one in this process."""
        run_id = check_name(trajectories.run_id)
        if run_id in self._active_jobs:
            raise ValueError(f"Training job for run {run_id} already exists")
        # Building pairs and submitting block, so they run in a thread.
        ref = await asyncio.to_thread(self._submit, trajectories)
        self._active_jobs[run_id] = ref.metadata["job_id"]
        self._job_output_models[run_id] = ref.metadata["output_model"]
        return ref

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Return the status of a job. As in NAT, a failed call gives the status `failed` with a message."""
        # A job of another process has its id only in the metadata of the reference.
        job_id = self._active_jobs.get(ref.run_id) or (ref.metadata or {}).get("job_id")
        folder = self._job_folder(ref)
        if job_id is None and not is_submitted(folder):
            raise ValueError(f"No training job found for run {ref.run_id}")
        try:
            status, job = await asyncio.to_thread(self._ask, folder, job_id)
        except (PairwrightError, OSError) as error:
            logger.error("job %s: its status cannot be read: %s", job_id, error)
            failed, message = TrainingStatusEnum.FAILED, f"{NOT_REACHED} {error}"
            return TrainingJobStatus(run_id=ref.run_id, backend=ref.backend, status=failed, message=message)
        return TrainingJobStatus(
            run_id=ref.run_id,
            backend=ref.backend,
            status=_STATES[status.state],
            progress=status.percentage,
            message=_describe(status),
            metadata=self._metadata(ref, job_id, job, status),
        )

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float | None = None) -> TrainingJobStatus:
        """Poll a job until it ends, and deploy its model if that is configured. Raises RuntimeError if the job failed
        or timed out, or was cancelled although its model should be deployed."""
        interval = poll_interval or self.adapter_config.poll_interval_seconds
        started, num_failures, last = time.monotonic(), 0, None
        while True:
            status = await self.status(ref)
            # The call failed, not the job: retry with increasing pauses.
            is_lost = status.status == TrainingStatusEnum.FAILED and (status.message or "").startswith(NOT_REACHED)
            num_failures = num_failures + 1 if is_lost else 0
            if is_lost and num_failures < self.adapter_config.max_consecutive_status_failures:
                await asyncio.sleep(interval * 1.5**num_failures)
                continue
            state = (status.status, status.progress)
            # Each change is logged once.
            if state != last:
                logger.info("job of run %s: %s", ref.run_id, status.message or status.status.value)
                self.log_progress(ref, {"status": status.status.value, "progress": status.progress})
                last = state
            if status.status in _ENDED:
                return await self._end(ref, status)
            # The limit ends only the wait: the job is not cancelled.
            limit = self.adapter_config.training_timeout_seconds
            if limit is not None and time.monotonic() - started > limit:
                raise RuntimeError(
                    f"Training job {ref.run_id} failed: not done after {limit:g} s. It may be going on; wait on with: "
                    f"pairwright jobs attach {self._job_folder(ref)}"
                )
            await asyncio.sleep(interval)

    def log_progress(self, ref: TrainingJobRef, metrics: Json, output_dir: str | None = None) -> None:
        """Append a line to `nemo_customizer_<run_id>.jsonl` (of other backends: `<backend>_<run_id>.jsonl`)."""
        default = DEFAULT_DIR / "trainer_adapter" if self.run_config is None else self.run_config.output_dir
        folder = Path(output_dir or default)
        folder.mkdir(parents=True, exist_ok=True)
        config = self.adapter_config
        entry = {
            "timestamp": now(),
            "run_id": ref.run_id,
            "backend": ref.backend,
            "config": {
                "namespace": config.namespace,
                "customization_config": config.customization_config or config.model,
            },
            **metrics,
        }
        name = f"{self.backend.replace('-', '_')}_{check_name(ref.run_id)}.jsonl"
        append_synced(folder / name, msgspec.json.encode(entry, enc_hook=str) + b"\n")

    async def _find_problem(self) -> str | None:
        config = self.adapter_config
        if self.backend == "nemo-customizer":
            return await _find_service_problem(str(config.entity_host))
        if not (Path(str(config.model)) / "config.json").exists():
            return f"model: {config.model} is not the folder of a model (no config.json)"
        needed = ("torch", "transformers", *(("ray",) if self.backend == "ray" else ()))
        missing = [name for name in needed if find_spec(name) is None]
        extra = "ray,train" if self.backend == "ray" else "train"
        return f"{', '.join(missing)} not installed: pip install 'pairwright[{extra}]'" if missing else None

    def _submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        config, run_id = self.adapter_config, trajectories.run_id
        root = self._output_dir() / run_id
        folder, backend = root / "train", find_backend(self.backend)
        # A job that ended without a model is replaced; any other is reused.
        if is_submitted(folder) and read_job(folder).state in (JobState.FAILED, JobState.CANCELLED):
            folder.rename(folder.with_name(f"train-{read_job(folder).id}"))  # its log stays
        if is_submitted(folder):
            logger.info("run %s: its job was submitted before: %s", run_id, folder)
        else:
            pairs = self._store_pairs(trajectories, root)
            request = JobRequest(
                model=str(config.model or config.customization_config), pairs=pairs, launch=True, resume=False
            )
            backend.submit(folder, request, config.job_config(), logger.info)
            self._copy_dataset(folder, run_id)
        job = read_job(folder)
        return TrainingJobRef(
            run_id=run_id,
            backend=self.backend,
            metadata={
                "job_id": job.details.get("job_id") or job.id,
                "output_model": self._output_model(folder, job),
                "dataset_name": config.dataset_name if self.backend == "nemo-customizer" else str(root / "pairs"),
                "folder": str(folder),
                "pairs": _count_pairs(root / "pairs", job),
            },
        )

    def _store_pairs(self, trajectories: TrajectoryCollection, root: Path) -> Path:
        """Write a collection as pairs, with their split; returns their folder.

        Pairs of one example or one prompt are in the same split. If examples share prompts (games have the same start),
        this may link most of them; then only pairs of one prompt are kept together.
        """
        config, run_id = self.adapter_config, trajectories.run_id
        # As in NAT for the Customizer: the last message of each prompt, unless the whole history is configured.
        whole = config.use_full_message_history or self.backend != "nemo-customizer"
        summary: Json = {}
        for by_prompt in (False, True):
            for name in ("preferences", "pairs"):  # of the first try, or of an interrupted submission
                shutil.rmtree(root / name, ignore_errors=True)
            preferences = read_preferences(trajectories, whole_prompt=whole, by_prompt=by_prompt)
            table = store_preferences(preferences, root / "preferences")
            # a single prompt cannot be held out: it is trained on
            prompts = {prompt_hash(record.prompt, record.tools) for record in preferences.experiences}
            share = 0.0 if len(prompts) == 1 else config.validation
            options = {"strategy": "imported", "verbatim": True, "validation": share}
            own = pair_options(adjust_config(Config(), seed=config.seed, pairs=options))
            summary = build_pairs([table], root / "pairs", own)
            # Accept the split if the held-out share is near the configured one; else repeat with prompts as tasks.
            if not share or 0 < summary["validation"] <= _MOST_HELD_OUT * share * summary["pairs"]:
                break
        if not summary["train"]:
            raise PairwrightError(f"no pair to train on: {summary['hint'] or summary['stages']}; see {root / 'pairs'}")
        if preferences.num_cut:
            counts = f"{preferences.num_cut} of {len(preferences.experiences)} prompts"
            hint = "use_full_message_history: true keeps them whole"
            logger.warning("run %s: %s are cut to their last message; %s", run_id, counts, hint)
        if config.validation and not summary["validation"]:
            logger.warning("run %s: no pair is held out for validation: all have one prompt", run_id)
        logger.info("run %s: %d pairs to train on, %d held out", run_id, summary["train"], summary["validation"])
        return root / "pairs"

    def _copy_dataset(self, folder: Path, run_id: str) -> None:
        """Copy the uploaded files to `dataset_output_dir/<run_id>`, under NAT's names."""
        target = self.adapter_config.dataset_output_dir
        files = read_job(folder).details.get("files") or {}
        for name in ("training", "validation"):
            if target is not None and files.get(name):
                (Path(target) / run_id).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files[name], Path(target) / run_id / f"{name}_file.jsonl")

    def _ask(self, folder: Path, job_id: str | None) -> tuple[Status, Job | None]:
        """Return the status from the backend; without a local job file, from the service by job id."""
        if is_submitted(folder):
            config = self.adapter_config.job_config()
            status = find_backend(self.backend).status(folder, read_job(folder), config)
            return status, follow_status(folder, read_job(folder), status)
        if self.backend != "nemo-customizer" or job_id is None:
            raise BackendError(f"{folder}: no job here")
        return service_status(job_id, self.adapter_config.job_config().backend.nemo_customizer), None

    def _metadata(self, ref: TrainingJobRef, job_id: str | None, job: Job | None, status: Status) -> Json:
        folder = self._job_folder(ref)
        known = self._job_output_models.get(ref.run_id) or (ref.metadata or {}).get("output_model")
        return {
            "job_id": job_id or (job and job.id),
            "nemo_status": str(status.state),
            "output_model": known if job is None else self._output_model(folder, job) or known,
            "step": status.step,
            "train_loss": status.train_loss,
            "deployment": None if job is None else job.deployment,
        }

    async def _end(self, ref: TrainingJobRef, status: TrainingJobStatus) -> TrainingJobStatus:
        """Return the last status of a job, with its deployment; raise if there is no model."""
        # From here on, `submit` accepts this run again.
        self._active_jobs.pop(ref.run_id, None)
        folder = self._job_folder(ref)
        reason = status.message or "no reason given"
        if status.status == TrainingStatusEnum.FAILED:
            raise RuntimeError(f"Training job {ref.run_id} failed: {reason}; see: pairwright jobs logs {folder}")
        if status.status == TrainingStatusEnum.CANCELED:
            if self.adapter_config.deploy_on_completion:
                raise RuntimeError(f"Training job {ref.run_id} was canceled: {reason}; there is no model to deploy")
            logger.warning("job of run %s was cancelled: %s", ref.run_id, reason)
            return status
        deployment = None
        if self.adapter_config.deploy_on_completion:
            backend, config = find_backend(self.backend), self.adapter_config.job_config()
            deployment = await asyncio.to_thread(backend.deploy, folder, read_job(folder), config, logger.info)
        elif not is_submitted(folder):  # a job of the service, known only by its id
            return status
        job = read_job(folder)
        metadata = {
            **(status.metadata or {}),
            "output_model": self._output_model(folder, job),
            "deployment": deployment,
        }
        logger.info("job of run %s: the model is %s", ref.run_id, metadata["output_model"])
        return status.model_copy(update={"metadata": metadata})

    def _output_model(self, folder: Path, job: Job) -> str | None:
        if self.backend == "nemo-customizer":
            name = job.details.get("output_model")
            return None if name is None else str(name)
        return str(model_of_job(folder, job))

    def _job_folder(self, ref: TrainingJobRef) -> Path:
        """Return the folder of a job: the one of its run, unless its reference names another."""
        named = (ref.metadata or {}).get("folder")
        return Path(named) if isinstance(named, str) else self._output_dir() / check_name(ref.run_id) / "train"

    def _output_dir(self) -> Path:
        return output_dir(self.adapter_config.output_dir, self.run_config)


def _count_pairs(pairs: Path, job: Job) -> Json:
    funnel, files = read_funnel(pairs), job.details.get("files") or {}
    removed = drops_of(funnel) + Counter(files.get("refused") or {})
    trained, held_out = (
        int(files.get(f"num_{split}", funnel[name])) for split, name in (("training", "train"), ("validation",) * 2)
    )
    return {"trained": trained, "validation": held_out, "removed": dict(removed)}


def _describe(status: Status) -> str:
    words = [f"Status: {status.state}"]
    if status.percentage is not None:
        words.append(f"{status.percentage:.0f}%")
    if status.step is not None:
        words.append(f"step {status.step}" + ("" if status.num_steps is None else f" of {status.num_steps}"))
    if status.train_loss is not None:
        words.append(f"loss {status.train_loss:.4g}")
    return ", ".join(words) + (f": {status.message}" if status.message else "")


async def _find_service_problem(host: str) -> str | None:
    """Return why a service cannot be used, or None. Any status below 500 passes: routes and tokens differ."""
    import httpx

    try:
        async with httpx.AsyncClient(timeout=_HEALTH_SECONDS) as client:
            answer = await client.get(f"{host}/v1/customization/configs")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{host}: {type(error).__name__}: {error}"
    return f"{host}: answers {answer.status_code}" if answer.status_code >= 500 else None
