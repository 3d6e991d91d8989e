"""NeMo RL: the files that it reads, the commands that start it, and what is refused."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from generate.tiny_models import save_model
from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright.config import Config, load_config
from pairwright.errors import ConfigError
from pairwright.jobs import BACKENDS, BackendError, JobFailed, JobRequest, JobState, read_job
from pairwright.jobs.job import silent

backend = BACKENDS["nemo-rl"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("nemo") / "model")


def config_of(train=None, tokens=None, **section) -> Config:
    return Config.model_validate({"seed": 5, "train": train or {}, "tokens": tokens or {}, "backend": {
        "nemo_rl": section}})  # fmt: skip


def prepared(tmp_path, model, config, pairs=None, *, launch=False):
    request = JobRequest(model=str(model), pairs=pairs_table(tmp_path / "pairs", pairs), launch=launch)
    job = backend.submit(tmp_path / "run", request, config, silent)
    return job, YAML(typ="safe").load((tmp_path / "run" / "nemo-rl-dpo.yaml").read_text())


def test_the_configuration_names_our_data_model_and_tokenizer_and_inherits_nothing(tmp_path, model):
    job, tree = prepared(tmp_path, model, config_of({"batch_size": 4, "epochs": 2, "dpo": {"beta": 0.05}}))
    assert job.state is JobState.PREPARED
    assert "defaults" not in tree
    assert tree["policy"]["model_name"] == tree["policy"]["tokenizer"]["name"] == str(model.resolve())
    assert tree["data"]["train"] == {
        "dataset_name": "PreferenceDataset", "data_path": str((tmp_path / "run/exports/nemo-rl/train.jsonl").resolve()),
    }  # fmt: skip
    assert tree["data"]["validation"]["data_path"].endswith("validation.jsonl")
    rows = [json.loads(line) for line in Path(tree["data"]["train"]["data_path"]).read_text().splitlines()]
    assert set(rows[0]) == {"context", "completions"}
    per_epoch = len(rows) // 4
    assert tree["dpo"]["max_num_steps"] == 2 * per_epoch, "not NeMo RL's own 150"
    assert (tree["dpo"]["max_num_epochs"], tree["dpo"]["reference_policy_kl_penalty"]) == (2, 0.05)
    assert tree["dpo"]["val_period"] == tree["checkpointing"]["save_period"] == per_epoch
    assert tree["checkpointing"]["metric_name"] == "val:validation-default_loss"
    assert tree["dpo"]["seed"] == 5
    assert tree["cluster"] == {"gpus_per_node": 1, "num_nodes": 1}


@pytest.mark.parametrize(
    ("dpo", "expected"),
    [
        ({}, False),
        ({"preference_average_log_probs": True}, True),
        ({"preference_average_log_probs": True, "sft_average_log_probs": False}, False),
        ({"sft_average_log_probs": True}, True),
    ],
)
def test_the_sft_term_is_averaged_as_the_preference_term_unless_it_is_set(tmp_path, model, dpo, expected):
    _, tree = prepared(tmp_path, model, config_of({"batch_size": 4, "dpo": dpo}))
    assert tree["dpo"]["sft_average_log_probs"] is expected


def test_every_option_of_train_arrives(tmp_path, model):
    _, tree = prepared(tmp_path, model, config_of(
        {"batch_size": 4, "micro_batch_size": 2, "learning_rate": 1e-4, "schedule": "cosine", "warmup_steps": 3,
         "min_learning_rate": 1e-5, "weight_decay": 0.1, "precision": "bf16", "finetuning_type": "lora",
         "lora": {"adapter_dim": 4, "alpha": 8, "target_modules": ["q_proj"]}, "val_check_interval": 0.5,
         "dpo": {"preference_average_log_probs": True, "sft_loss_weight": 0.5, "preference_loss_weight": 2.0}},
        {"max_length": 200}, dataset="binary", overrides={"policy.dtensor_cfg.tensor_parallel_size": 1, "logger.monitor_gpus": True},
    ))  # fmt: skip
    policy = tree["policy"]
    assert (policy["train_global_batch_size"], policy["train_micro_batch_size"]) == (4, 2)
    assert policy["optimizer"]["kwargs"]["lr"] == 1e-4
    assert [item.get("name", item).rpartition(".")[2] for item in policy["scheduler"][:2]] == [
        "LinearLR",
        "CosineAnnealingLR",
    ]
    assert policy["scheduler"][-1] == {"milestones": [3]}
    assert policy["precision"] == "bfloat16"
    assert policy["max_total_sequence_length"] == tree["data"]["max_input_seq_length"] == 200
    lora = policy["dtensor_cfg"]["lora_cfg"]
    assert policy["dtensor_cfg"]["_v2"] is True, "the first DTensor worker has no LoRA"
    assert (lora["enabled"], lora["dim"], lora["target_modules"], lora["match_all_linear"]) == (
        True,
        4,
        ["q_proj"],
        False,
    )
    assert (tree["dpo"]["sft_loss_weight"], tree["dpo"]["preference_loss_weight"]) == (0.5, 2.0)
    assert tree["data"]["train"]["dataset_name"] == "BinaryPreferenceDataset"
    assert (tree["data"]["train"]["prompt_key"], tree["data"]["train"]["chosen_key"]) == ("prompt", "chosen")
    assert tree["logger"]["monitor_gpus"] is True


@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_torch_accepts_the_schedule_and_it_does_what_its_name_says(tmp_path, model, schedule, warmup):
    import torch

    train = {"batch_size": 4, "epochs": 4, "schedule": schedule, "warmup_steps": warmup, "min_learning_rate": 1e-6}
    _, tree = prepared(tmp_path, model, config_of(train))
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], **tree["policy"]["optimizer"]["kwargs"])
    *parts, last = tree["policy"]["scheduler"]
    kinds = [getattr(torch.optim.lr_scheduler, part["name"].rpartition(".")[2]) for part in parts]
    made = [kind(optimizer, **part["kwargs"]) for kind, part in zip(kinds, parts, strict=True)]
    following = torch.optim.lr_scheduler.SequentialLR(optimizer, made, **last)
    rates = []
    for _ in range(tree["dpo"]["max_num_steps"]):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        following.step()
    assert max(rates) == rates[warmup] == pytest.approx(5e-6)
    assert rates[:warmup] == sorted(set(rates[:warmup]))
    ends = optimizer.param_groups[0]["lr"]
    assert ends == pytest.approx(5e-6 if schedule == "constant" else 1e-6)


@pytest.mark.parametrize(
    ("train", "section", "words"),
    [
        ({}, {"overrides": {"data.train.data_path": "x"}}, "other data"),
        ({}, {"overrides": {"policy.tokenizer.name": "x"}}, "another tokenizer"),
        ({}, {"overrides": {"policy.model_name": "x"}}, "another model"),
        ({}, {"overrides": {"data": {}}}, "other data"),
        ({"dpo": {"loss": "ipo"}}, {}, "train.dpo.loss 'ipo'"),
        ({"channels": {"sft": 1}}, {}, "train.channels"),
        ({"optimizer": "adafactor"}, {}, "train.optimizer"),
        ({"credit": "value"}, {}, "train.credit"),
        ({"min_probability": 0.02}, {}, "train.min_probability"),
        ({"dpo": {"contrast": "decisions"}}, {}, "train.dpo.contrast"),
        ({"dpo": {"anchor_weight": 0.1}}, {}, "train.dpo.anchor_weight"),
        ({"early_stop": True}, {}, "train.early_stop"),
        ({"dpo": {"label_smoothing": 0.1}}, {}, "label_smoothing"),
        ({"batch_size": 1000}, {}, "smaller"),
        ({"batch_size": 4}, {"gpus_per_node": 3}, "cannot be shared"),
    ],
)  # fmt: skip
def test_what_would_train_something_else_is_refused(tmp_path, model, train, section, words):
    with pytest.raises(ConfigError, match=words):
        prepared(tmp_path, model, config_of({"batch_size": 4, **train}, **section))
    assert not (tmp_path / "run" / "nemo-rl-dpo.yaml").exists()


def test_pairs_that_nemo_rl_would_leave_out_or_cut_are_refused_unless_accepted(tmp_path, model):
    from pairwright import Message

    long = pair(99, chosen=[Message("assistant", "long " * 300)])
    several = [pair_with_tool_results(task) for task in range(20)]
    for pairs, words in (
        ([long, *(pair(n) for n in range(20))], "1 pairs have more than 100 tokens"),
        (several, "several_messages_a_side"),
    ):
        with pytest.raises(BackendError, match=words):
            prepared(tmp_path, model, config_of({"batch_size": 2}, max_total_sequence_length=100), pairs)
        job, _ = prepared(
            tmp_path, model, config_of({"batch_size": 2}, max_total_sequence_length=100, accept_other_data=True), pairs
        )
        assert job.state is JobState.PREPARED


def test_an_adapter_and_a_model_without_its_template_are_refused(tmp_path, model):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match="merge it first"):
        prepared(tmp_path, tmp_path / "adapter", config_of())
    (tmp_path / "bare").mkdir()
    with pytest.raises(BackendError, match="own template"):
        prepared(tmp_path, tmp_path / "bare", config_of())


def test_the_launch_file_runs_the_configuration_on_the_nodes_of_the_section(tmp_path, model):
    config = config_of({"batch_size": 16}, gpus_per_node=8, num_nodes=2)
    job, _ = prepared(tmp_path, model, config, [pair(n) for n in range(60)])
    script = Path(job.details["script"]).read_text()
    flags, command = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert flags == "set -euo pipefail"
    path = tmp_path / "run" / "nemo-rl-dpo.yaml"
    assert command == f"uv run examples/run_dpo.py --config {path} cluster.gpus_per_node=8 cluster.num_nodes=2"


def test_the_shell_runs_nothing_that_comes_from_the_configuration(tmp_path, model, checkout):
    """The folder of the run asks the shell to make a file."""
    _program(tmp_path / "bin" / "uv", 'printf "%s\\n" "$@"')
    folder = tmp_path / f"`touch\t{str(tmp_path).replace('/', '_')}_ran-2` $(touch ran-6)"
    pairs = pairs_table(tmp_path / "pairs", None)
    request = JobRequest(model=str(model), pairs=pairs, launch=False)
    job = backend.submit(folder, request, config_of({"batch_size": 4}), silent)
    done = subprocess.run(["bash", job.details["script"]], cwd=checkout, capture_output=True, text=True, check=True)
    assert not [path for place in (tmp_path, checkout) for path in place.glob("*ran-*") if path != folder]
    assert f"{folder.resolve()}/nemo-rl-dpo.yaml\n" in done.stdout


@pytest.mark.parametrize(
    ("key", "value", "words"), [("launcher", "slurm", "to sbatch"), ("slurm.account", "me", "those of sbatch")]
)
def test_keys_of_a_launch_on_slurm_are_refused_with_what_replaces_them(key, value, words):
    with pytest.raises(ConfigError, match=words):
        load_config(overrides=[(f"backend.nemo_rl.{key}", value)], environment={})


def test_pairs_that_an_epoch_leaves_out_are_counted(tmp_path, model):
    said = []
    request = JobRequest(model=str(model), pairs=pairs_table(tmp_path / "pairs", None), launch=False)
    job = backend.submit(tmp_path / "run", request, config_of({"batch_size": 7}), said.append)
    rest = job.details["files"]["num_training"] % 7
    assert rest
    assert job.details["dropped_an_epoch"] == rest
    assert f"{rest} of {job.details['files']['num_training']} pairs are not trained in each epoch" in " ".join(said)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like a checkout of NeMo RL, and a stand-in for `uv`, since there is no GPU."""
    (tmp_path / "nemo" / "examples").mkdir(parents=True)
    (tmp_path / "nemo" / "examples" / "run_dpo.py").write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()
    checkpoint = tmp_path / "run" / "nemo-rl" / "checkpoints" / "step_4"
    _program(programs / "uv", f"echo ran $PWD $@; [ -e {tmp_path}/fail ] && exit 7; mkdir -p {checkpoint}")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "nemo"


def _program(path, text):
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def test_a_launch_runs_in_the_checkout_and_is_followed(tmp_path, model, checkout):
    config = config_of({"batch_size": 4}, directory=str(checkout))
    prepared(tmp_path, model, config, launch=True)
    status = backend.wait(tmp_path / "run", config, lambda _: None)
    assert (status.state, status.step) == (JobState.COMPLETED, 4)
    (line,) = backend.logs(tmp_path / "run", read_job(tmp_path / "run"), config, False)
    assert line.startswith(f"ran {checkout} run examples/run_dpo.py --config {tmp_path / 'run' / 'nemo-rl-dpo.yaml'}")
    with pytest.raises(BackendError, match="convert_dcp_to_hf"):
        backend.deploy(tmp_path / "run", read_job(tmp_path / "run"), config, silent)


def test_a_launch_that_fails_is_a_failed_job(tmp_path, model, checkout):
    (tmp_path / "fail").touch()
    config = config_of({"batch_size": 4}, directory=str(checkout))
    prepared(tmp_path, model, config, launch=True)
    with pytest.raises(JobFailed, match="exit code 7"):
        backend.wait(tmp_path / "run", config, lambda _: None)


def test_a_launch_without_a_checkout_or_its_program_is_refused(tmp_path, model, checkout, monkeypatch):
    with pytest.raises(ConfigError, match="directory: not set"):
        prepared(tmp_path, model, config_of({"batch_size": 4}), launch=True)
    with pytest.raises(ConfigError, match="not a checkout"):
        prepared(tmp_path, model, config_of({"batch_size": 4}, directory=str(tmp_path)), launch=True)
    with pytest.raises(ConfigError, match="only one node"):
        prepared(tmp_path, model, config_of({"batch_size": 4}, directory=str(checkout), num_nodes=2), launch=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="uv: not installed"):
        prepared(tmp_path, model, config_of({"batch_size": 4}, directory=str(checkout)), launch=True)


@pytest.mark.stress
def test_a_running_launch_is_cancelled(tmp_path, model, checkout):
    _program(tmp_path / "bin" / "uv", f"exec {sys.executable} -c 'import time; time.sleep(600)'")
    config = config_of({"batch_size": 4}, directory=str(checkout))
    prepared(tmp_path, model, config, launch=True)
    time.sleep(0.1)
    backend.cancel(tmp_path / "run", read_job(tmp_path / "run"), config)
    with pytest.raises(JobFailed, match="cancelled"):
        backend.wait(tmp_path / "run", config, lambda _: None)
