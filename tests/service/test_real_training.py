"""Jobs with the real trainer: every kind that the service offers, and one that is interrupted."""

import json
import sys
from pathlib import Path

import pytest
from service_process import CONFIG, ROW, Service, kill_process, until, worker_of

pytestmark = pytest.mark.slow
SUPERVISED = [{"prompt": f"Order {number}?", "completion": "yes"} for number in range(6)] + [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    for module in ("torch", "transformers", "peft"):
        pytest.importorskip(module)
    sys.path.insert(0, str(Path(__file__).parent.parent / "generate"))
    try:
        from tiny_models import save_model
    finally:
        sys.path.pop(0)
    return save_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="module")
def service(small_model, tmp_path_factory):
    data = tmp_path_factory.mktemp("service") / "data"
    command = [sys.executable, "-m", "pairwright.cli", "serve", "jobs", "--data", str(data), "--port", "0"]
    with Service(data, command=command) as running:
        running.add_target(small_model)
        rows = [{**ROW, "prompt": f"Order {number}?"} for number in range(12)]
        held = "".join(json.dumps(row) + "\n" for row in rows[:3]).encode()
        running.upload(rows=rows, **{"validation/validation_file.jsonl": held})
        running.upload(name="answers", rows=SUPERVISED)
        yield running


def knobs(**given) -> dict:
    return {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, **given}


@pytest.mark.parametrize(
    ("dataset", "training", "tuning", "result"),
    [
        ("pairs", "dpo", "all_weights", "model"),
        ("pairs", "dpo", "lora_merged", "model"),
        ("answers", "sft", "all_weights", "model"),
        ("answers", "sft", "lora", "adapter"),
    ],
)
def test_every_kind_of_training_ends_with_a_model(service, dataset, training, tuning, result):
    given = knobs(training_type=training, finetuning_type=tuning, lora={"adapter_dim": 4})
    job = service.job(dataset=f"default/{dataset}", hyperparameters=given)
    details = service.wait_for(job, "completed")
    assert details["train_loss"] > 0
    assert (details["val_loss"] is not None) == (dataset == "pairs")
    folder = service.data / "jobs" / job / "run" / result
    assert list(folder.glob("*.safetensors"))


def test_a_job_goes_on_from_its_checkpoint_after_service_and_worker_were_killed(service):
    given = knobs(training_type="dpo", finetuning_type="all_weights", epochs=20)
    job = service.job(hyperparameters=given)
    run = service.data / "jobs" / job / "run"
    until(lambda: list(run.glob("checkpoints/step-*")))
    service.kill()
    kill_process(worker_of(service, job))
    service.start()
    details = service.wait_for(job, "completed")
    assert details["steps_completed"] == 60
    steps = [point["step"] for point in details["metrics"]["metrics"]["train_loss"]]
    assert steps == list(range(1, 61))
    assert CONFIG in service.get(f"/v1/customization/jobs/{job}")["config"]


def test_a_row_above_the_longest_sequence_is_cut_and_counted(service):
    rows = [{**ROW, "prompt": f"Order {number}?"} for number in range(4)] + [{**ROW, "prompt": "order " * 3000}]
    service.upload(name="long", rows=rows)
    given = knobs(training_type="dpo", finetuning_type="all_weights")
    config = {"target": CONFIG, "max_seq_length": 64}
    job = service.job(dataset="default/long", hyperparameters=given, config=config)
    details = service.wait_for(job, "completed")
    assert (details["truncated_sequences"], details["refused_rows"]) == (2, 0)  # both sides of the pair


def test_openai_goes_from_supervised_rows_to_a_chat(service):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0, timeout=300) as client:
        content = "".join(json.dumps(row) + "\n" for row in SUPERVISED[-1:] * 8).encode()
        file = client.files.create(file=("chat.jsonl", content), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(model=CONFIG, training_file=file.id, hyperparameters={"n_epochs": 1})
        until(lambda: client.fine_tuning.jobs.retrieve(job.id).status in ("succeeded", "failed"))
        done = client.fine_tuning.jobs.retrieve(job.id)
        assert done.status == "succeeded", done.error
        assert done.trained_tokens > 0
        answer = client.chat.completions.create(
            model=done.fine_tuned_model, messages=[{"role": "user", "content": "hi"}], max_tokens=3, temperature=0
        )
        assert answer.model == done.fine_tuned_model
        assert answer.choices[0].message.content is not None
