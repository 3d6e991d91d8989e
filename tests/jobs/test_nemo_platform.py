"""NeMo Platform: rows and bodies that its schemas accept, jobs that are found again, and tool calls that are not lost.

The platform of these tests checks everything that it gets. With PAIRWRIGHT_NEMO_PLATFORM=folder, the unpacked wheel of
nemo-platform, it does so with the classes of the wheel; else with the field list below, which we wrote.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from platform_peer import Platform, serve_platform
from pydantic import BaseModel, ConfigDict, TypeAdapter
from typer.testing import CliRunner

from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright import Message
from pairwright.cli import app
from pairwright.config import Config, load_config
from pairwright.errors import ConfigError
from pairwright.jobs import BACKENDS, BackendError, JobFailed, JobRequest, JobState, ServiceError, Unreachable, read_job
from pairwright.jobs.job import silent

backend = BACKENDS["nemo-platform"]
WHEEL = os.environ.pop("PAIRWRIGHT_NEMO_PLATFORM", None)  # else it would be a key of a configuration


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Parallelism(Strict):
    num_gpus_per_node: int = 1
    num_nodes: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    sequence_parallel: bool = False


class Training(Strict):
    type: Literal["dpo"]
    ref_policy_kl_penalty: float = 0.05
    preference_average_log_probs: bool = False
    sft_average_log_probs: bool = False
    preference_loss_weight: float = 1.0
    sft_loss_weight: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    max_steps: int | None = None
    batch_size: int = 32
    micro_batch_size: int = 1
    max_seq_length: int = 2048
    activation_checkpointing: bool = False
    seed: int | None = None
    optimizer_type: str | None = None
    learning_rate: float = 1e-4
    min_learning_rate: float | None = None
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-5
    warmup_steps: int = 0
    val_check_interval: float | None = None
    val_at_end: bool = True
    keep_top_k: int = 1
    parallelism: Parallelism | None = None
    execution_profile: str | None = None


class Output(Strict):
    name: str


class Spec(Strict):
    model: str
    dataset: str
    training: Training
    output: Output


class Body(Strict):
    spec: Spec
    description: str | None = None
    project: str | None = None
    custom_fields: dict[str, Any] | None = None


class ChatMessage(Strict):
    role: str
    content: str


class Row(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    prompt: str | list[ChatMessage]
    chosen: str
    rejected: str


def checks():
    """How bodies and rows are checked."""
    if WHEEL is None:
        return Body.model_validate, Row.model_validate
    sys.path.append(WHEEL)
    try:
        from nemo_rl_plugin.schema import RlJobInput
        from nmp.rl.tasks.training.datasets import schemas

        try:  # needs pydantic-settings in addition to the wheel
            from nmp.customization_common.sdk.types import CustomizationJobCreateRequest as Request
        except ModuleNotFoundError:
            Request = Body
    finally:
        sys.path.remove(WHEEL)

    def check_body(body):
        Request.model_validate(body)
        RlJobInput.model_validate(body["spec"])
        Body.model_validate(body)

    def check_row(row):
        assert schemas.get_preference_dataset_discriminator(row) == "BinaryPreferenceDataset"
        TypeAdapter(schemas.DPOPreferenceDatasetSchemaType).validate_python(row)
        Row.model_validate(row)

    return check_body, check_row


@pytest.fixture
def platform():
    with serve_platform(Platform(*checks())) as running:
        yield running


def config_of(platform, training=None, **section) -> Config:
    training = {"batch_size": 4, **(training or {})}
    section = {"base_url": f"{platform.url}/", "poll_interval_seconds": 0.01, "training": training, **section}
    return Config.model_validate({"seed": 5, "backend": {"name": "nemo-platform", "nemo_platform": section}})


def submit(tmp_path, config, pairs=None, **options):
    request = JobRequest(model="default/llama-3-2-1b", pairs=pairs_table(tmp_path / "pairs", pairs))
    return backend.submit(tmp_path / "run", request, config, options.get("say", silent))


def test_a_job_goes_from_pairs_to_a_completed_model(tmp_path, platform):
    task = {
        "name": "t",
        "status": "active",
        "status_details": {"step": 3, "max_steps": 12, "phase": "training", "metrics": {"loss": 0.5}},
    }
    steps = [
        {"name": "download", "status": "completed", "tasks": []},
        {"name": "dpo-training", "status": "active", "tasks": [task]},
    ]
    platform.statuses = [{"status": "pending"}, {"status": "active", "steps": steps}, {"status": "completed"}]
    platform.token = "secret"
    config = config_of(
        platform, {"ref_policy_kl_penalty": 0.1, "parallelism": {"num_gpus_per_node": 2}}, api_token="secret"
    )
    job = submit(tmp_path, config)
    assert (job.state, job.details["job_name"]) == (JobState.PENDING, "rl-00000000")
    ((workspace, fileset),) = platform.filesets
    assert (workspace, fileset) == ("default", job.details["fileset"])
    assert re.fullmatch(r"pairwright-dpo-[0-9a-f-]+", fileset)
    assert len(fileset) <= 63
    files = platform.filesets[workspace, fileset]
    assert set(files) == {"training.jsonl", "validation.jsonl"}
    row = json.loads(files["training.jsonl"].splitlines()[0])
    assert set(row) == {"prompt", "chosen", "rejected", "reward_gap", "chosen_reward", "rejected_reward"}
    assert row["prompt"][0]["role"] == "user"
    (stored,) = platform.jobs.values()
    spec = stored["spec"]
    assert (spec["model"], spec["dataset"]) == ("default/llama-3-2-1b", f"default/{fileset}")
    assert spec["output"]["name"] == job.details["output_model"]
    training = spec["training"]
    assert (training["type"], training["ref_policy_kl_penalty"], training["batch_size"], training["seed"]) == (
        "dpo",
        0.1,
        4,
        5,
    )
    assert stored["custom_fields"] == {"pairwright_job": job.id}
    shown = []
    status = backend.wait(tmp_path / "run", config, shown.append)
    assert status.state is JobState.COMPLETED
    running = shown[1]
    assert (running.step, running.num_steps, running.percentage, running.train_loss) == (3, 12, 25.0, 0.5)
    assert running.message == "training"
    assert list(backend.logs(tmp_path / "run", read_job(tmp_path / "run"), config, True)) == [
        "dpo-training: line 0", "dpo-training: line 1", "dpo-training: line 2",
    ]  # fmt: skip
    with pytest.raises(BackendError, match="deploy it there"):
        backend.deploy(tmp_path / "run", read_job(tmp_path / "run"), config, silent)
    assert "secret" not in (tmp_path / "run" / "job.json").read_text()


def test_training_fields_are_sent_as_they_are_and_the_rest_is_the_platforms_choice(tmp_path, platform):
    submit(tmp_path, config_of(platform, {"batch_size": 4, "learning_rate": 1e-5}))
    (job,) = platform.jobs.values()
    assert job["spec"]["training"] == {"type": "dpo", "seed": 5, "batch_size": 4, "learning_rate": 1e-5}


def test_tool_calls_are_refused_or_written_as_text(tmp_path, platform):
    pairs = [pair_with_tool_results(task) for task in range(8)] + [pair(task) for task in range(10, 40)]
    with pytest.raises(BackendError, match=r"tool_calls: text") as caught:
        submit(tmp_path, config_of(platform), pairs)
    assert "tool_calls_in_the_prompt 8" in str(caught.value)
    assert not platform.filesets
    job = submit(tmp_path, config_of(platform, tool_calls="text"), pairs)
    assert job.details["files"]["noted"]["tools_as_text"] == 8
    data = b"".join(next(iter(platform.filesets.values())).values()).decode()
    rows = [json.loads(line) for line in data.splitlines()]
    assert len(rows) == 38
    texts = [[message["content"] for message in row["prompt"]] for row in rows]
    assert sum('<tool_call>\n{"name": "add", "arguments": {"a": 1}}' in "".join(text) for text in texts) == 8
    assert sum("<tool_response>\n2\n</tool_response>" in "".join(text) for text in texts) == 8
    assert {message["role"] for row in rows for message in row["prompt"]} == {"user", "assistant"}


def test_a_lost_response_leaves_one_job_and_an_interrupted_submission_resumes(tmp_path, platform):
    path = "/apis/customization/v2/workspaces/default/rl/jobs"
    platform.script[("POST", path)] = ["drop"]
    job = submit(tmp_path, config_of(platform))
    assert len(platform.jobs) == 1
    assert job.details["job_name"] == "rl-00000000"
    again = tmp_path / "again"
    platform.script[("POST", path)] = [503]
    with pytest.raises(Unreachable, match="no job named"):
        submit(again, config_of(platform))
    assert read_job(again / "run").state is JobState.CREATED
    second = submit(again, config_of(platform))
    assert (len(platform.jobs), len(platform.filesets)) == (2, 2)
    assert second.details["job_name"] == "rl-00000001"


def test_an_upload_that_breaks_is_sent_again_whole(tmp_path, platform):
    config = config_of(platform)
    request = JobRequest(model="m", pairs=pairs_table(tmp_path / "pairs"))
    real = backend.submit

    def say(words):
        if words.startswith("exported"):
            fileset = read_job(tmp_path / "run").details["fileset"]
            for name in ("training.jsonl", "validation.jsonl"):
                platform.script[("PUT", f"/apis/files/v2/workspaces/default/filesets/{fileset}/-/{name}")] = [503]

    job = real(tmp_path / "run", request, config, say)
    files = next(iter(platform.filesets.values()))
    assert files["training.jsonl"] == Path(job.details["files"]["training"]).read_bytes()


def test_a_failed_job_says_why_and_a_cancelled_one_ends(tmp_path, platform):
    task = {"name": "t", "error_details": {"message": "CUDA out of memory"}, "error_stack": "Traceback\nOOM"}
    platform.statuses = [{"status": "error", "steps": [{"name": "dpo-training", "tasks": [task]}]}]
    config = config_of(platform)
    submit(tmp_path, config)
    with pytest.raises(JobFailed, match="CUDA out of memory"):
        backend.wait(tmp_path / "run", config, lambda _: None)
    platform.statuses = [{"status": "active"}]
    other = tmp_path / "other"
    submit(other, config)
    backend.cancel(other / "run", read_job(other / "run"), config)
    with pytest.raises(JobFailed, match="cancelled"):
        backend.wait(other / "run", config, lambda _: None)
    platform.statuses = [{"status": "strange"}]
    with pytest.raises(Unreachable, match="strange"):
        backend.status(other / "run", read_job(other / "run"), config)


@pytest.mark.parametrize(
    ("section", "error", "words"),
    [
        ({"base_url": None}, ConfigError, "base_url: not set"),
        ({"training": {"batch_size": 512}}, ConfigError, "choose a smaller one"),
        ({"api_token": "wrong"}, ServiceError, "check backend.nemo_platform.api_token"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(tmp_path, platform, section, error, words):
    platform.token = "right"
    section.setdefault("api_token", "right")
    with pytest.raises(error, match=words):
        submit(tmp_path, config_of(platform, **section))
    assert not platform.jobs


def test_pairs_without_text_are_refused(tmp_path, platform):
    def prompt(task):
        return [
            Message(
                "user", [{"type": "text", "text": str(task)}, {"type": "image_url", "image_url": {"url": "data:,"}}]
            )
        ]

    with pytest.raises(BackendError, match="content_is_not_text"):
        submit(tmp_path, config_of(platform), [pair(task, prompt=prompt(task)) for task in range(8)])


def test_the_commands_submit_attach_and_diagnose(tmp_path, platform):
    file = tmp_path / "config.yaml"
    training: dict[str, Any] = {"batch_size": 4}
    backend_section = {"name": "nemo-platform", "nemo_platform": {"base_url": platform.url, "training": training}}
    file.write_text(json.dumps({"backend": backend_section}))
    pairs = pairs_table(tmp_path / "pairs")
    run = CliRunner().invoke
    words = ["--pairs", str(pairs), "--model", "default/base", "-o", str(tmp_path / "run"), "--config", str(file)]
    done = run(app, ["jobs", "submit", *words, "--no-wait"])
    assert done.exit_code == 0, done.output
    done = run(app, ["jobs", "attach", str(tmp_path / "run"), "--config", str(file)])
    assert done.exit_code == 0, done.output
    assert read_job(tmp_path / "run").state is JobState.COMPLETED
    done = run(app, ["doctor", str(file), "--pairs", str(pairs), "--model", "default/base", "--json"])
    assert "trains with automodel, rl" in done.output


def test_the_configuration_of_the_page_loads(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "backends.md").read_text()
    (text,) = re.findall(r"```\n(backend:\n  name: nemo-platform\n.*?)```", page, re.S)
    (tmp_path / "config.yaml").write_text(text)
    loaded = load_config(tmp_path / "config.yaml", environment={"NMP_API_TOKEN": "secret"}).backend.nemo_platform
    assert loaded.api_token.get_secret_value() == "secret"
    assert (loaded.training, loaded.tool_calls) == (
        {
            "epochs": 1,
            "batch_size": 16,
            "learning_rate": 5e-6,
            "max_seq_length": 4096,
            "ref_policy_kl_penalty": 0.1,
            "parallelism": {"num_gpus_per_node": 1},
        },
        "refuse",
    )
