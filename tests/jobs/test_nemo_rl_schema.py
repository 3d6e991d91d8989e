"""The configuration that we write is one that NeMo RL accepts: by the types of its fields, as it has them since 0.7, and,
where PAIRWRIGHT_NEMO_RL names a checkout, by its own MasterConfig and its own loaders of preferences."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, NotRequired

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from typing_extensions import TypedDict

from generate.tiny_models import save_model
from jobs.made_pairs import pairs_table
from jobs.test_nemo_rl import backend, config_of
from pairwright.jobs import JobRequest
from pairwright.jobs.job import silent

CHECKOUT = os.environ.pop("PAIRWRIGHT_NEMO_RL", None)  # else it would be a key of a configuration
# The fields that NeMo RL reads of a DPO run, in our words; other keys are wrong.
_STRICT = ConfigDict(extra="forbid")


class Data(TypedDict):
    __pydantic_config__ = _STRICT
    dataset_name: str
    data_path: str
    prompt_key: NotRequired[str]
    chosen_key: NotRequired[str]
    rejected_key: NotRequired[str]
    subset: NotRequired[str | None]
    split: NotRequired[str]


class DataDefaults(TypedDict):
    __pydantic_config__ = _STRICT
    prompt_file: str | None
    system_prompt_file: str | None


class DataSection(TypedDict):
    __pydantic_config__ = _STRICT
    max_input_seq_length: int | None
    shuffle: bool
    num_workers: int
    train: Data
    validation: Data | None
    default: DataDefaults


class Lora(TypedDict):
    __pydantic_config__ = _STRICT
    enabled: bool
    target_modules: list[str]
    exclude_modules: list[str]
    match_all_linear: bool
    dim: int
    alpha: int
    dropout: float
    dropout_position: Literal["pre", "post"]
    lora_A_init: str
    use_triton: bool


class Dtensor(TypedDict):
    __pydantic_config__ = _STRICT
    enabled: Literal[True]
    _v2: bool
    env_vars: dict[str, str]
    cpu_offload: bool
    sequence_parallel: bool
    activation_checkpointing: bool
    tensor_parallel_size: int
    context_parallel_size: int
    custom_parallel_plan: str | None
    clear_cache_every_n_steps: int | None
    automodel_kwargs: dict[str, Any]
    lora_cfg: Lora


class Policy(TypedDict):
    __pydantic_config__ = _STRICT
    model_name: str
    tokenizer: dict[str, str | None]
    train_global_batch_size: int
    train_micro_batch_size: int
    max_total_sequence_length: int
    precision: Literal["bfloat16", "float32"]
    offload_optimizer_for_logprob: bool
    dtensor_cfg: Dtensor
    megatron_cfg: dict[Literal["enabled"], Literal[False]]
    dynamic_batching: dict[Literal["enabled"], Literal[False]]
    sequence_packing: dict[Literal["enabled"], Literal[False]]
    make_sequence_length_divisible_by: int
    max_grad_norm: float | None
    optimizer: dict[str, Any]
    scheduler: list[dict[str, Any]]


class Dpo(TypedDict):
    __pydantic_config__ = _STRICT
    max_num_epochs: int
    max_num_steps: int
    val_period: int
    val_batches: int
    val_global_batch_size: int
    val_micro_batch_size: int
    val_at_start: bool
    val_at_end: bool
    seed: int
    reference_policy_kl_penalty: float
    preference_average_log_probs: bool
    sft_average_log_probs: bool
    preference_loss_weight: float
    sft_loss_weight: float


class Checkpointing(TypedDict):
    __pydantic_config__ = _STRICT
    enabled: bool
    checkpoint_dir: str
    metric_name: str | None
    higher_is_better: bool
    keep_top_k: int
    save_period: int
    checkpoint_must_save_by: str | None


class Whole(TypedDict):
    __pydantic_config__ = _STRICT
    dpo: Dpo
    checkpointing: Checkpointing
    policy: Policy
    data: DataSection
    logger: dict[str, Any]
    cluster: dict[Literal["gpus_per_node", "num_nodes"], int]


CASES = {
    "plain": ({}, {}),
    "lora": ({"finetuning_type": "lora", "lora": {"target_modules": ["q_proj"]}}, {"dataset": "binary"}),
    "long": ({"schedule": "cosine", "warmup_steps": 2, "max_steps": 9, "save_every": 3, "precision": "bf16"}, {}),
    "no validation": ({}, {"validation": 0}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A configuration for each case."""
    folder = tmp_path_factory.mktemp("schema")
    model, pairs = save_model(folder / "model"), pairs_table(folder / "pairs", None)
    paths = []
    for name, (train, section) in CASES.items():
        config = config_of({"batch_size": 4, **train}, **section)
        request = JobRequest(model=str(model), pairs=pairs, launch=False)
        paths.append(Path(backend.submit(folder / name.replace(" ", "-"), request, config, silent).details["config"]))
    return dict(zip(CASES, paths, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_field_has_the_type_that_nemo_rl_wants(files, name):
    tree = YAML(typ="safe").load(files[name].read_text())
    TypeAdapter(Whole).validate_python(tree, strict=True)
    tree["data"]["train"]["split"] = None  # what NeMo RL refuses since 0.7
    with pytest.raises(ValidationError, match="split"):
        TypeAdapter(Whole).validate_python(tree)


@pytest.mark.slow
def test_nemo_rls_own_classes_and_loaders_take_it(files):
    if CHECKOUT is None:
        pytest.skip("PAIRWRIGHT_NEMO_RL names no checkout of NeMo RL")
    script = Path(__file__).with_name("nemo_rl_peer.py")
    done = subprocess.run(
        [sys.executable, script, *files.values()],
        env={**os.environ, "PYTHONPATH": CHECKOUT},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert not [answer for answer in answers if "error" in answer]
    for answer, path in zip(answers, files.values(), strict=True):
        rows = (path.parent / "exports" / "nemo-rl" / "train.jsonl").read_text().splitlines()
        assert (answer["rows"], answer["role"]) == (len(rows), "assistant")
        assert {"completions", "context", "task_name"} <= set(answer["keys"])
