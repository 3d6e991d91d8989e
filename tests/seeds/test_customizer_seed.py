"""NAT's guide to DPO with NeMo Customizer: its tables of options and defaults, its configuration, rows, job and deployment.

The tables and the configuration are read from the guide itself where it is at hand. What needs NAT's own classes is
skipped where NAT is not installed; `tests/peers/test_nat_exam.py` runs it with an interpreter that has NAT.
"""

import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pairwright.config import Config
from pairwright.config.customizer_config import CustomizerHyperparameters, DpoHyperparameters, NemoCustomizerConfig
from pairwright.config.from_nat import from_nat, read_nat

GUIDE = Path(__file__).resolve().parents[2].parent / "shared" / "seeds" / "003_0ba55d63228f32f4.txt"
needs_guide = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is not at hand")
NEEDED = object()  # an option without a default

BUILDER = {
    "ttc_step_name": "dpo_candidate_move", "exhaustive_pairs": True, "min_score_diff": 0.0, "max_pairs_per_turn": None,
    "reward_from_score_diff": True, "require_multiple_candidates": True,
}  # fmt: skip
TRAINER = {
    "num_runs": 1, "continue_on_collection_error": False, "deduplicate_pairs": True, "max_pairs": None,
    "wait_for_completion": True,
}  # fmt: skip
ADAPTER = {
    "entity_host": NEEDED, "datastore_host": NEEDED, "hf_token": "", "namespace": NEEDED, "dataset_name": "nat-dpo",
    "dataset_output_dir": None, "create_namespace_if_missing": True, "customization_config": NEEDED,
    "use_full_message_history": False, "deploy_on_completion": False, "poll_interval_seconds": 30.0,
    "deployment_timeout_seconds": 1800.0,
}  # fmt: skip
HYPERPARAMETERS = {
    "training_type": "dpo", "finetuning_type": "all_weights", "epochs": 3, "batch_size": 4, "learning_rate": 5e-5,
}  # fmt: skip
DPO = {
    "ref_policy_kl_penalty": 0.1, "preference_loss_weight": 1.0, "preference_average_log_probs": False,
    "sft_loss_weight": 0.0,
}  # fmt: skip
DEPLOYMENT = {
    "image_name": "nvcr.io/nim/meta/llama-3.1-8b-instruct", "image_tag": "latest", "gpu": 1, "deployment_name": None,
    "description": "Fine-tuned model deployment",
}  # fmt: skip
FILES = ("data_collection_progress.jsonl", "collection_history.json", "final_metrics.json")


def guide_blocks() -> list[dict]:
    """The configurations of the guide, in order."""
    return [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S)]


@needs_guide
def test_the_tables_of_the_guide_are_those_of_this_file():
    rows = re.findall(r"^\| `([\w.]+)` \| `[^|]*(?:\\\|[^|]*)*` \| (.*?) \|", GUIDE.read_text(), re.M)
    found = {name: NEEDED if "required" in value else json.loads(value.strip("`")) for name, value in rows}
    deployment = {f"deployment_config.{name}": value for name, value in DEPLOYMENT.items()}
    assert found == BUILDER | TRAINER | ADAPTER | HYPERPARAMETERS | DPO | deployment
    assert all(name in GUIDE.read_text() for name in FILES)


def test_our_own_configuration_has_the_names_and_defaults():
    asked, dpo = CustomizerHyperparameters(), DpoHyperparameters()
    assert {name: getattr(asked, name) for name in HYPERPARAMETERS} == HYPERPARAMETERS
    assert {name: getattr(dpo, name) for name in DPO} == DPO
    service = NemoCustomizerConfig()
    same = (
        "create_namespace_if_missing",
        "use_full_message_history",
        "poll_interval_seconds",
        "deployment_timeout_seconds",
    )
    assert {name: getattr(service, name) for name in same} == {name: ADAPTER[name] for name in same}
    assert set(ADAPTER) - {"deploy_on_completion"} <= set(NemoCustomizerConfig.model_fields)
    for kind in ("sft", "dpo"):
        assert CustomizerHyperparameters(training_type=kind).options()["training_type"] == kind
    for kind in ("lora", "all_weights"):
        assert CustomizerHyperparameters(finetuning_type=kind).finetuning_type == kind


@needs_guide
def test_the_guides_configuration_is_converted_whole(tmp_path):
    (tmp_path / "nat.yml").write_text(re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S)[0])
    converted = from_nat(read_nat(tmp_path / "nat.yml"))
    assert [entry.key for entry in converted.unmapped] == [
        "eval.evaluators.game_evaluator", "eval.general.output_dir", "finetuning.output_dir",
        "finetuning.reward_function", "trajectory_builders.dpo_builder.ttc_step_name", "workflow",
    ]  # fmt: skip
    config = Config.model_validate(converted.tree)
    pairs = config.pairs
    assert (pairs.strategy, pairs.min_gap, pairs.max_pairs_per_group, pairs.max_pairs) == ("all", 0.05, 10, 5000)
    assert (pairs.dedupe, pairs.contradictions, pairs.within_run, pairs.weight) == (True, "keep", True, "gap")
    assert (config.collect.num_runs, config.collect.max_concurrency) == (3, 8)
    service = config.backend.nemo_customizer
    assert (service.namespace, service.dataset_name) == ("my-dpo-project", "dpo-training-data")
    assert (service.use_full_message_history, service.wait_for_completion) == (True, True)
    assert service.hyperparameters.options() == {
        **HYPERPARAMETERS, "learning_rate": 5e-6, "dpo": {**DPO, "sft_average_log_probs": False},
    }  # fmt: skip


@pytest.mark.parametrize("history", [False, True])
def test_a_job_has_the_guides_rows_files_and_body(tmp_path, history, monkeypatch):
    # The upload goes to a server on this machine, although the tests run offline.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    customizer_peer, made_pairs = pytest.importorskip("jobs.customizer_peer"), pytest.importorskip("jobs.made_pairs")
    from pairwright.jobs import BACKENDS, JobRequest, JobState
    from pairwright.jobs.job import read_job, silent

    with customizer_peer.running(customizer_peer.Peer()) as peer:
        theirs = {"entity_host": peer.url, "datastore_host": peer.url, "namespace": "my-project",
                  "customization_config": "meta/llama-3.1-8b-instruct@v1.0.0+A100", "use_full_message_history": history,
                  "poll_interval_seconds": 0.01, "deploy_on_completion": True}  # fmt: skip
        tree = from_nat({"trainer_adapters": {"a": {"_type": "nemo_customizer_trainer_adapter", **theirs}}}).tree
        config = Config.model_validate(tree)
        backend, folder = BACKENDS["nemo-customizer"], tmp_path / "job"
        request = JobRequest(model="m", pairs=made_pairs.pairs_table(tmp_path / "pairs", None))
        backend.submit(folder, request, config, silent)
        files = peer.repos["my-project/nat-dpo"][-1]
        assert set(files) == {"training/training_file.jsonl", "validation/validation_file.jsonl"}
        rows = [json.loads(line) for line in files["training/training_file.jsonl"].splitlines()]
        assert all(set(row) == {"prompt", "chosen_response", "rejected_response"} for row in rows)
        assert all(isinstance(row["prompt"], list if history else str) for row in rows)
        (body,) = peer.bodies("POST", "/v1/customization/jobs")
        assert (body["config"], body["dataset"]["name"], body["dataset"]["namespace"]) == (
            theirs["customization_config"],
            "nat-dpo",
            "my-project",
        )
        assert body["hyperparameters"].items() >= HYPERPARAMETERS.items()
        assert body["hyperparameters"]["dpo"].items() >= DPO.items()
        assert backend.wait(folder, config, silent).state is JobState.COMPLETED
        deployment = backend.deploy(folder, read_job(folder), config, silent)
        (wanted,) = (entry for entry in peer.configs.values())
        assert deployment["status"] == "ready"
        assert wanted["nim_deployment"] == {name: DEPLOYMENT[name] for name in ("image_name", "image_tag", "gpu")}


def components():
    pytest.importorskip("nat.data_models.finetuning", reason="NeMo Agent Toolkit is not installed")
    from pairwright import nat

    return nat


SERVICE = {"entity_host": "https://nmp.example.com", "datastore_host": "https://datastore.example.com",
           "namespace": "my-project", "customization_config": "meta/llama-3.1-8b-instruct@v1.0.0+A100"}  # fmt: skip


def test_the_components_have_the_names_and_defaults():
    nat = components()
    adapter = nat.PairwrightTrainerAdapterConfig(**SERVICE)
    for config, defaults in (
        (nat.PairwrightTrajectoryBuilderConfig(), BUILDER),
        (nat.PairwrightTrainerConfig(), TRAINER),
        (adapter, {**ADAPTER, **SERVICE}),
        (adapter.hyperparameters, HYPERPARAMETERS),
        (adapter.hyperparameters.dpo, DPO),
        (adapter.deployment_config, DEPLOYMENT),
    ):
        assert {name: getattr(config, name) for name in defaults} == defaults
    for name, value in ADAPTER.items():
        if value is NEEDED:
            with pytest.raises(ValueError, match=name):
                nat.PairwrightTrainerAdapterConfig(**{key: item for key, item in SERVICE.items() if key != name})


@needs_guide
def test_the_components_take_every_configuration_of_the_guide():
    nat = components()
    kinds = {
        "trajectory_builders": nat.PairwrightTrajectoryBuilderConfig,
        "trainers": nat.PairwrightTrainerConfig,
        "trainer_adapters": nat.PairwrightTrainerAdapterConfig,
    }
    number = 0
    for block in guide_blocks():
        for section, kind in kinds.items():
            for entry in block.get(section, {}).values():
                options = {key: value for key, value in entry.items() if key != "_type"}
                kind(**(SERVICE | options if section == "trainer_adapters" else options))
                number += 1
    assert number >= 10
