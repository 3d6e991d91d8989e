"""The real SDKs against the real service with the real trainer and model server, on a model made here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from service_process import CONFIG, Service

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    for module in ("torch", "transformers", "nemo_microservices", "huggingface_hub", "datasets", "openai"):
        pytest.importorskip(module)
    sys.path.insert(0, str(HERE.parent / "generate"))
    try:
        from tiny_models import save_model
    finally:
        sys.path.pop(0)
    return save_model(tmp_path_factory.mktemp("model") / "small")


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sdk_hub_datasets_and_openai_go_from_namespace_to_chat(small_model, tmp_path):
    data = tmp_path / "data"
    command = ("-m", "pairwright.cli", "serve")
    run(*command, "targets", "add", CONFIG, str(small_model), "--data", str(data))
    token = run(*command, "token", "create", "--data", str(data), "--name", "tester", "--scope", "shop").strip()
    serve = [sys.executable, *command, "jobs", "--data", str(data), "--port", "0"]
    with Service(data, command=serve, token=token) as service:
        seen = json.loads(
            run(
                str(HERE / "real_clients.py"), service.url, CONFIG, token, HF_HUB_OFFLINE="0", HF_HOME=str(tmp_path / "hf"),
                HF_ENDPOINT=f"{service.url}/v1/hf", DO_NOT_TRACK="1", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1",
            ).splitlines()[-1]
        )  # fmt: skip
    found, job = seen["data"], seen["job"]
    assert found["second_namespace"] == 409
    assert found["unchanged_upload"] == found["revision"]
    assert found["downloaded"]
    assert found["snapshot"] == ["training/training_file.jsonl", "validation/validation_file.jsonl"]
    assert found["tree"] == ["training", *found["snapshot"][:1], "validation", *found["snapshot"][1:]]
    assert found["loaded"] == {"train": 8, "validation": 2}
    assert found["first_row"]["chosen_response"] == "yes"
    assert seen["hub"] == {
        "branches": True, "tags": ["v1"], "on_branch": True, "on_main": False, "on_tag": False,
        "commits": "Upload notes.json with huggingface_hub", "datasets": ["shop/pushed", "shop/tickets"],
        "pushed_rows": 4, "pushed_files": ["README.md", "data/train-00000-of-00001.parquet"],
    }  # fmt: skip
    assert job["status"] == "completed", job
    model = seen["model"]
    wanted = {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
    assert wanted <= set(model["files"])
    assert (model["same"], model["base"]) == (True, "meta/llama-3.2-1b-instruct")
    assert job["id"] in model["card"]
    assert model["models"] == [job["output_model"].partition("@")[0]]
    assert seen["managed"] == {
        "project": "e", "dataset": "changed", "namespace": "changed", "model": "ours", "updated": "changed",
        "models": [job["output_model"].partition("/")[2], "entry"], "inline": job["output_model"],
        "listed": {"dataset": 1, "training_type": 1, "other_type": 0, "configs": 1},
    }  # fmt: skip
    assert job["percentages"] == sorted(job["percentages"])
    assert job["percentages"][-1] == 100
    assert job["output_model"] == f"shop/llama-3.2-1b-instruct-tickets-lora@{job['id']}"
    assert len(job["losses"]) == 4  # 8 pairs, batches of 4, 2 epochs
    assert job["losses"][-1] < job["losses"][0]
    assert len(job["val_losses"]) == 2
    assert job["listed"] == [job["id"]]
    assert job["configs"] == ["llama-3.2-1b-instruct@v1.0.0+A100"]
    assert "8 rows to train on, 2 to validate on" in job["log"]
    assert seen["deployment"]["deployment"] == "ready", seen["deployment"]
    assert seen["deployment"]["model"] == job["output_model"]
    assert seen["deployment"]["streamed"] == seen["deployment"]["answer"]
