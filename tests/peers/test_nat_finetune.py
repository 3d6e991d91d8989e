"""`nat finetune` with the real packages: a workflow that pushes TTC steps, our components, and a model at the end."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pairwright.jobs import process
from service.service_process import CONFIG, Service

pytestmark = pytest.mark.slow

COMPONENTS = """
workflow: {{_type: pairwright_test_colours}}
eval:
  general:
    output_dir: {folder}/eval
    dataset: {{_type: json, file_path: {dataset}}}
trajectory_builders:
  builder: {{_type: pairwright_traj_builder, min_score_diff: 0.05}}
trainers:
  trainer: {{_type: pairwright_trainer, num_runs: 2}}
finetuning:
  enabled: true
  trainer: trainer
  trajectory_builder: builder
  trainer_adapter: adapter
  output_dir: {folder}/out
trainer_adapters:
  adapter:
    _type: pairwright_trainer_adapter
    poll_interval_seconds: 0.5
    hyperparameters: {{epochs: 1, batch_size: 4, learning_rate: 1e-3}}
    deploy_on_completion: true
"""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    pytest.importorskip("torch")
    from generate.tiny_models import save_model

    return save_model(tmp_path_factory.mktemp("model") / "small")


def finetune(python: Path, config: Path, environment: dict[str, str], *overrides: str) -> subprocess.CompletedProcess:
    """Run the command with an interpreter that has NAT."""
    start = "import sys; from nat.cli.main import run_cli; sys.argv[0] = 'nat'; run_cli()"
    command = [str(python), "-c", start, "finetune", f"--config_file={config}", *overrides]
    return subprocess.run(command, env=environment, cwd=config.parent, capture_output=True, text=True, check=False)


def write_config(folder: Path, dataset: Path, **options: str) -> Path:
    lines = "".join(f"    {name}: {value}\n" for name, value in options.items())
    path = folder / "nat.yml"
    path.write_text(COMPONENTS.format(folder=folder, dataset=dataset) + lines)
    return path


def test_a_model_is_trained_here_and_served(nat_python, nat_environment, nat_dataset, small_model, tmp_path):
    config = write_config(tmp_path, nat_dataset, backend="local", model=str(small_model), train="{threads: 1}")
    done = finetune(nat_python, config, nat_environment)
    assert done.returncode == 0, done.stderr[-5000:]
    out = tmp_path / "out"
    final = json.loads((out / "final_metrics.json").read_text())
    assert final["status"] == "completed"
    assert final["num_collection_runs"] == 2
    # 4 questions with 3 pairs a turn, one with 1 (its third score is NaN), none of the tie; 2 turns; 2 runs
    assert final["collection_summary"]["total_dpo_pairs"] == 2 * (4 * 3 + 1) * 2
    job = final["job_metadata"]
    assert job["status"] == "completed"
    assert (Path(job["output_model"]) / "config.json").exists()
    try:
        assert httpx.get(f"{job['deployment']['url']}/health").is_success
    finally:
        process.stop(Path(job["folder"]) / "server", grace_seconds=10)
    progress = [json.loads(line) for line in (out / "data_collection_progress.jsonl").read_text().splitlines()]
    assert [line["num_dpo_pairs"] for line in progress] == [26, 26]
    (built,) = out.glob("dpo_trajectory_builder_*_run0.jsonl")
    metrics = json.loads(built.read_text())
    assert metrics["dropped"] == {"tied rewards": 2, "unscored: no reward, NaN or infinite": 2}
    # the second run gave the same pairs
    funnel = json.loads(next(out.glob("pairwright/*/selection/pairs/funnel.json")).read_text())
    assert funnel["pairs"] == 26
    assert funnel["stages"][-1]["drops"][0] == {"reason": "duplicate pair", "count": 26} | {
        "examples": funnel["stages"][-1]["drops"][0]["examples"]
    }


def test_the_guides_options_end_in_a_deployed_model_of_a_service_with_a_token(
    nat_python, nat_environment, nat_dataset, small_model, tmp_path
):
    data = tmp_path / "data"
    command = [sys.executable, "-m", "pairwright.cli", "serve"]
    subprocess.run([*command, "targets", "add", CONFIG, str(small_model), "--data", str(data)], check=True)
    create = [*command, "token", "create", "--data", str(data), "--name", "nat", "--scope", "nat-dpo"]
    token = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()
    with Service(data, command=[*command, "jobs", "--data", str(data), "--port", "0"], token=token) as service:
        config = write_config(
            tmp_path,
            nat_dataset,
            entity_host=service.url,
            datastore_host=service.url,
            hf_token=token,
            namespace="nat-dpo",
            customization_config=CONFIG,
            dataset_output_dir=str(tmp_path / "files"),
            use_full_message_history="true",
        )
        done = finetune(nat_python, config, {**nat_environment, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")})
        assert done.returncode == 0, done.stderr[-5000:]
        final = json.loads((tmp_path / "out" / "final_metrics.json").read_text())
        job = final["job_metadata"]
        assert service.status(job["job_id"])["status"] == "completed"
    assert job["output_model"].startswith("nat-dpo/")
    assert job["dataset_name"] == "nat-dpo"
    assert job["deployment"]["status"] == "ready"
    assert token not in done.stdout + done.stderr
    assert token not in (tmp_path / "out" / "pairwright_trainer.json").read_text()
    (rows,) = (tmp_path / "files").glob("*/training_file.jsonl")
    row = json.loads(rows.read_text().splitlines()[0])
    assert set(row) == {"prompt", "chosen_response", "rejected_response"}


def test_a_run_that_was_interrupted_is_resumed_and_a_failed_one_ends_with_an_exit_code(
    nat_python, nat_environment, nat_dataset, small_model, tmp_path
):
    config = write_config(
        tmp_path, nat_dataset, backend="local", model=str(small_model), train="{threads: 1, max_steps: 1}"
    )
    config.write_text(config.read_text().replace("deploy_on_completion: true", "deploy_on_completion: false"))
    waits = ("-o", "trainers.trainer.wait_for_completion", "false")
    broken = finetune(nat_python, config, {**nat_environment, "COLOURS_FAIL": "1"}, *waits)
    assert broken.returncode == 1, "a run in which nothing was collected is no success"
    assert "No trajectories collected" in broken.stderr
    state = json.loads((tmp_path / "out" / "pairwright_trainer.json").read_text())
    first = finetune(nat_python, config, nat_environment, *waits)
    assert first.returncode == 0, first.stderr[-5000:]
    submitted = json.loads((tmp_path / "out" / "pairwright_trainer.json").read_text())
    assert submitted["run_id"] != state["run_id"], "a run without any pair is not gone on with"
    assert submitted["phase"] == "submitted"
    second = finetune(nat_python, config, nat_environment)
    assert second.returncode == 0, second.stderr[-5000:]
    assert "evaluation started" not in second.stderr, "what was collected is not collected again"
    done = json.loads((tmp_path / "out" / "pairwright_trainer.json").read_text())
    assert (done["phase"], done["job"], done["run_id"]) == ("done", submitted["job"], submitted["run_id"])
    assert len(list((tmp_path / "out").glob("pairwright/*/train/job.json"))) == 1
