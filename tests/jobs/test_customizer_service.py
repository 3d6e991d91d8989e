"""The nemo-customizer backend against our own service: a stand-in trainer for the protocol, the real one for the proof."""

import json
import os
import subprocess
import sys

import pytest

from generate.tiny_models import save_model
from jobs.made_pairs import pair, pairs_table
from pairwright.config import Config
from pairwright.jobs import BACKENDS, BackendError, JobRequest, JobState, ServiceError, read_job
from pairwright.jobs.job import silent
from service.service_process import CONFIG, Service

pytestmark = pytest.mark.stress

backend = BACKENDS["nemo-customizer"]


def settings(service, **more) -> Config:
    section = {
        "entity_host": service.url,
        "namespace": "shop",
        "customization_config": CONFIG,
        "poll_interval_seconds": 0.05,
        **more,
    }
    return Config.model_validate({"backend": {"name": "nemo-customizer", "nemo_customizer": section}})


def test_a_job_goes_through_our_service_and_each_run_keeps_its_own_revision(tmp_path):
    with Service(tmp_path / "data") as service:
        service.add_target(save_model(tmp_path / "base"))
        config = settings(service)
        revisions = []
        for number, validation in enumerate((0.2, 0.0)):
            folder = tmp_path / f"run{number}"
            table = pairs_table(tmp_path / f"pairs{number}", [pair(task + 50 * number) for task in range(12)])
            once = settings(service, validation=validation)
            job = backend.submit(folder, JobRequest(model="unused", pairs=table), once, silent)
            seen = []
            assert backend.wait(folder, config, seen.append).state is JobState.COMPLETED
            revisions.append(job.details["revision"])
            shown = service.get(f"/v1/customization/jobs/{job.details['job_id']}")
            assert shown["dataset"]["files_url"].endswith(f"@{revisions[-1]}")
            assert shown["output_model"] == read_job(folder).details["output_model"]
            assert list(backend.logs(folder, read_job(folder), config, False))
        assert revisions[0] != revisions[1]
        assert (tmp_path / "run0" / "metrics.jsonl").exists()
        service.kill()
        service.start()
        assert backend.status(tmp_path / "run0", read_job(tmp_path / "run0"), config).state is JobState.COMPLETED


def test_refusals_of_our_service_are_reported_in_its_words(tmp_path):
    with Service(tmp_path / "data") as service:
        table = pairs_table(tmp_path / "pairs")
        with pytest.raises(ServiceError, match="meta/unknown"):
            backend.submit(
                tmp_path / "run",
                JobRequest(model="m", pairs=table),
                settings(service, customization_config="meta/unknown"),
                silent,
            )
        with pytest.raises(BackendError, match="was never created"):
            backend.status(tmp_path / "run", read_job(tmp_path / "run"), settings(service))


@pytest.mark.slow
def test_the_command_trains_deploys_and_the_model_answers(tmp_path):
    import openai

    data, command = tmp_path / "data", [sys.executable, "-m", "pairwright.cli"]
    model = save_model(tmp_path / "model")
    subprocess.run([*command, "serve", "targets", "add", CONFIG, str(model), "--data", str(data)], check=True)
    created = subprocess.run([*command, "serve", "token", "create", "--data", str(data), "--name", "me", "--scope", "shop"],
                             check=True, capture_output=True, text=True)  # fmt: skip
    token = created.stdout.strip()
    with Service(data, command=[*command, "serve", "jobs", "--data", str(data), "--port", "0"], token=token) as service:
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({"backend": {"name": "nemo-customizer", "nemo_customizer": {
            "entity_host": service.url, "namespace": "shop", "customization_config": CONFIG, "hf_token": "${SHOP_TOKEN}",
            "poll_interval_seconds": 0.5, "deploy_on_completion": True,
            "hyperparameters": {"epochs": 1, "finetuning_type": "lora", "learning_rate": 1e-3}}}}))  # fmt: skip
        table = pairs_table(tmp_path / "pairs")
        environment = os.environ | {"SHOP_TOKEN": token}
        checked = subprocess.run(
            [*command, "doctor", str(path), "--pairs", str(table)], env=environment, capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        done = subprocess.run(
            [*command, "jobs", "submit", "--pairs", str(table), "--model", CONFIG, "-o", str(tmp_path / "run"), "--config", str(path), "--json"],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert token not in done.stdout + done.stderr
        job = json.loads(done.stdout)
        assert job["state"] == "completed"
        with openai.OpenAI(base_url=f"{job['deployment']['url']}/v1", api_key=token, max_retries=0) as client:
            answer = client.chat.completions.create(
                model=job["details"]["output_model"], messages=[{"role": "user", "content": "the"}], max_tokens=3
            )
        assert answer.usage.completion_tokens >= 1


@pytest.mark.slow
def test_a_whole_run_trains_on_the_service_and_deploys(tmp_path):
    import openai

    data, command = tmp_path / "data", [sys.executable, "-m", "pairwright.cli"]
    model = save_model(tmp_path / "model")
    subprocess.run([*command, "serve", "targets", "add", CONFIG, str(model), "--data", str(data)], check=True)
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What is {n} + {n}?"}],
            "chosen": [{"role": "assistant", "content": f"It is {2 * n}."}],
            "rejected": [{"role": "assistant", "content": f"It is {2 * n + 1}."}],
        }
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Service(data, command=[*command, "serve", "jobs", "--data", str(data), "--port", "0"]) as service:
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({
            "name": "shop", "model": str(model), "sources": {"paths": [str(tmp_path / "rows.jsonl")]},
            "pairs": {"strategy": "given"}, "loop": {"rounds": 1, "evaluate": "never", "deploy": True},
            "backend": {"name": "nemo-customizer", "nemo_customizer": {
                "entity_host": service.url, "namespace": "default", "customization_config": CONFIG, "poll_interval_seconds": 0.5,
                "hyperparameters": {"epochs": 1, "finetuning_type": "lora", "learning_rate": 1e-3}}}}))  # fmt: skip
        done = subprocess.run([*command, "run", str(path), "--output", str(tmp_path / "run"), "--json"],
                              capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
        assert done.returncode == 0, done.stderr
        deployment = json.loads(done.stdout)["deployment"]
        with openai.OpenAI(base_url=f"{deployment['url']}/v1", api_key="x", max_retries=0) as client:
            answer = client.chat.completions.create(
                model=deployment["models"][0], messages=[{"role": "user", "content": "the"}], max_tokens=3
            )
        assert answer.usage.completion_tokens >= 1
        again = subprocess.run([*command, "run", str(path), "--output", str(tmp_path / "run"), "--json"],
                               capture_output=True, text=True, cwd=tmp_path)  # fmt: skip
        assert again.returncode == 0, again.stderr
        assert len(service.get("/v1/customization/jobs")["data"]) == 1, "the same run again starts no second job"
