"""A pytest plugin that gives our components the import names of NAT's DPO plugin, so that its own tests run on ours.

    python -m pytest -p nat_names -o asyncio_mode=auto FOLDER

Three things are translated beside the names: private functions of theirs that their tests call and that are spread
differently here, the objects of NVIDIA's SDK that they mock (we speak HTTP ourselves), and the folder of our files.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import nemo_microservices
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.data_models.finetuning import DPOItem, Trajectory, TrajectoryCollection

from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.jobs import BACKENDS, customizer
from pairwright.nat import (
    CandidateStep,
    CustomizerHyperparameters,
    DpoHyperparameters,
    NimDeploymentConfig,
    PairwrightTrainer,
    PairwrightTrainerAdapter,
    PairwrightTrainerAdapterConfig,
    PairwrightTrainerConfig,
    PairwrightTrajectoryBuilder,
    PairwrightTrajectoryBuilderConfig,
    PreferencePair,
)
from pairwright.nat.nat_trajectories import read_preferences, select_trajectories, to_prompt
from pairwright.sources.shapes.any_messages import conversation


class Builder(PairwrightTrajectoryBuilder):
    """Our builder with two private functions of theirs."""

    def _parse_candidate(self, example_id: str, step: Any) -> CandidateStep | None:
        item = EvalInputItem(
            id=example_id, input_obj=None, expected_output_obj=None, full_dataset_entry={}, trajectory=[step]
        )
        result = SimpleNamespace(eval_input=EvalInput(eval_input_items=[item]))
        turns = list(self._collect_candidates(result).values())
        return turns[0][0] if turns else None

    def _extract_prompt(self, value: Any) -> Any:
        return to_prompt(conversation(value, "data.input", role="user", objects_as_text=True))


class Adapter(PairwrightTrainerAdapter):
    """Our adapter with their SDK clients, which their tests replace by mocks."""

    def __init__(self, adapter_config: PairwrightTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self._folder = TemporaryDirectory()  # their runs have one id, and a job of that id is found again
        self._entity_client: Any = None
        self._hf_api: Any = None

    @property
    def entity_client(self) -> Any:
        module = sys.modules["nat.plugins.customizer.dpo.trainer_adapter"]
        return self._entity_client or module.NeMoMicroservices(base_url=self.adapter_config.entity_host)

    def _output_dir(self) -> Path:
        return Path(self._folder.name)

    async def _setup_dataset(self, *_: Any) -> str:
        return self.adapter_config.dataset_name

    async def submit(self, trajectories: Any) -> Any:
        _Sdk.adapter = self
        return await super().submit(trajectories)

    async def status(self, ref: Any) -> Any:
        _Sdk.adapter = self
        return await super().status(ref)

    def _format_prompt(self, prompt: Any) -> Any:
        """The prompt of the line that our exporter writes for it."""
        item = DPOItem(prompt=prompt, chosen_response="chosen", rejected_response="rejected")
        group = [Trajectory(episode=[item], reward=1.0, metadata={})]
        lines, _ = self._trajectory_to_dpo_jsonl(TrajectoryCollection(trajectories=[group], run_id="prompt"))
        return json.loads(lines)["prompt"]

    def _trajectory_to_dpo_jsonl(self, trajectories: Any) -> tuple[str, str]:
        if not read_preferences(trajectories).experiences:
            raise ValueError("No DPO items found in trajectories")
        with TemporaryDirectory() as folder:
            pairs = self._store_pairs(trajectories, Path(folder))
            settings = self.adapter_config.job_config().backend.nemo_customizer
            here = SimpleNamespace(settings=settings.model_copy(update={"dataset_output_dir": None}))
            dataset = customizer.CustomizerApi.export(here, pairs, Path(folder) / "files", seed=0)  # type: ignore[arg-type]
            validation = dataset.training if dataset.validation is None else dataset.validation
            return dataset.training.read_text(), validation.read_text()


class _Sdk(customizer.CustomizerApi):
    """Our dialect in front of the SDK objects of an adapter."""

    adapter: Adapter

    def __init__(self, settings: NemoCustomizerConfig) -> None:
        self.settings = settings
        self.host = settings.entity_host
        self.client = self.adapter.entity_client

    def __enter__(self) -> "_Sdk":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_namespace(self, namespace: str) -> None:
        self.client.namespaces.create(id=namespace)

    def create_dataset(self, namespace: str, name: str) -> None:
        self.client.datasets.create(name=name, namespace=namespace)

    def send_job(self, body: dict[str, Any]) -> dict[str, Any]:
        job = self.client.customization.jobs.create(
            **{name: body[name] for name in ("config", "dataset", "hyperparameters")}
        )
        return {"id": job.id, "output_model": job.output_model}

    def find_job(self, details: dict[str, Any]) -> None:
        return None

    def job_status(self, job_id: str) -> dict[str, Any]:
        status = self.client.customization.jobs.status(job_id)
        return {"status": status.status, "percentage_done": status.percentage_done}

    def upload_files(self, dataset: Any, *, message: str) -> str:
        hub = self.adapter._hf_api
        if hub is not None:
            repo = f"{self.settings.namespace}/{self.settings.dataset_name}"
            hub.create_repo(repo, repo_type="dataset", exist_ok=True)
            for path in filter(None, (dataset.training, dataset.validation)):
                hub.upload_file(path_or_fileobj=str(path))
        return "revision"


class Trainer(PairwrightTrainer):
    """Our trainer with two private functions of theirs: the selection in parts."""

    def _deduplicate_trajectories(self, collection: Any) -> Any:
        with TemporaryDirectory() as folder:
            return select_trajectories(collection, Path(folder), dedupe=True, contradictions="keep")[0]

    def _sample_trajectories(self, collection: Any, max_pairs: int) -> Any:
        with TemporaryDirectory() as folder:
            return select_trajectories(
                collection, Path(folder), dedupe=False, contradictions="keep", max_pairs=max_pairs
            )[0]


_MODULES = {
    "config": {
        "DPOTrajectoryBuilderConfig": PairwrightTrajectoryBuilderConfig,
        "DPOSpecificHyperparameters": DpoHyperparameters,
        "NeMoCustomizerHyperparameters": CustomizerHyperparameters,
        "NeMoCustomizerTrainerAdapterConfig": PairwrightTrainerAdapterConfig,
        "NeMoCustomizerTrainerConfig": PairwrightTrainerConfig,
        "NIMDeploymentConfig": NimDeploymentConfig,
    },
    "trajectory_builder": {
        "CandidateStep": CandidateStep,
        "DPOTrajectoryBuilder": Builder,
        "PreferencePair": PreferencePair,
    },
    "trainer_adapter": {
        "NeMoCustomizerTrainerAdapter": Adapter,
        "NeMoMicroservices": nemo_microservices.NeMoMicroservices,
    },
    "trainer": {"NeMoCustomizerTrainer": Trainer},
}


def pytest_configure(config: Any) -> None:
    """Put our classes where the tests import theirs from."""
    base = "nat.plugins.customizer"
    for name in (base, f"{base}.dpo", *(f"{base}.dpo.{part}" for part in _MODULES)):
        sys.modules[name] = ModuleType(name)
    for part, names in _MODULES.items():
        vars(sys.modules[f"{base}.dpo.{part}"]).update(names)
        setattr(sys.modules[f"{base}.dpo"], part, sys.modules[f"{base}.dpo.{part}"])
    sys.modules[base].dpo = sys.modules[f"{base}.dpo"]  # type: ignore[attr-defined]
    customizer.CustomizerApi = _Sdk  # type: ignore[misc]
    BACKENDS["nemo-customizer"] = _Sdk.as_backend()
