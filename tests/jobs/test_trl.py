"""TRL: what its parser reads, what it really trains, and what is refused."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from generate.tiny_models import save_model
from jobs.made_pairs import pair, pair_with_tool_results, pairs_table
from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.jobs import BACKENDS, BackendError, JobRequest, JobState
from pairwright.jobs.job import silent
from pairwright.jobs.trl import LOSSES
from pairwright.records.messages import Message, ToolCall

backend = BACKENDS["trl"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("trl") / "model", context=512)


def config_of(train=None, **section) -> Config:
    return Config.model_validate(
        {"train": train or {}, "backend": {"trl": section, "local": {"poll_interval_seconds": 0.2}}}
    )


def prepared(tmp_path, model, config, pairs=None, *, launch=False):
    request = JobRequest(model=str(model), pairs=pairs_table(tmp_path / "pairs", pairs), launch=launch)
    job = backend.submit(tmp_path / "run", request, config, silent)
    return job, YAML(typ="safe").load((tmp_path / "run" / "trl-dpo.yaml").read_text())


TRAIN = {"batch_size": 4, "micro_batch_size": 2, "epochs": 2, "learning_rate": 1e-3, "dpo": {"beta": 0.2, "label_smoothing": 0.1},
         "finetuning_type": "lora", "lora": {"adapter_dim": 4, "alpha": 8}}  # fmt: skip


def test_trls_own_parser_reads_the_file_and_gets_what_was_asked_for(tmp_path, model):
    from trl import DPOConfig, ModelConfig, ScriptArguments, TrlParser

    prepared(tmp_path, model, config_of(TRAIN))
    script, training, named = TrlParser((ScriptArguments, DPOConfig, ModelConfig)).parse_args_and_config(
        ["--config", str(tmp_path / "run" / "trl-dpo.yaml")]
    )
    assert script.dataset_name == str(tmp_path / "run" / "exports" / "trl")
    assert named.model_name_or_path == str(model.resolve())
    assert (training.beta, training.label_smoothing, training.loss_type) == (0.2, 0.1, ["sigmoid"])
    assert training.max_length is None, "TRL would cut at its own length"
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 4
    assert training.learning_rate == 1e-3
    assert (named.use_peft, named.lora_r, named.lora_alpha) == (True, 4, 8)
    assert training.output_dir == str(tmp_path / "run" / "model")


def test_the_dataset_loads_with_both_splits(tmp_path, model, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    import datasets

    _, tree = prepared(tmp_path, model, config_of())
    loaded = datasets.load_dataset(tree["dataset_name"], cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {tree["dataset_train_split"], tree["dataset_test_split"]}
    assert len(loaded["train"]) + len(loaded["validation"]) == 20
    assert loaded["train"][0]["chosen"][0]["role"] == "assistant"


def test_our_losses_are_ones_that_trl_has():
    from trl import DPOConfig

    for name in LOSSES:
        DPOConfig(loss_type=[name], report_to="none", use_cpu=True, bf16=False)


@pytest.mark.parametrize(
    ("train", "section", "words"),
    [
        ({"dpo": {"loss": "simpo"}}, {}, "simpo"),
        ({"dpo": {"sft_loss_weight": 1}}, {}, "sft_loss_weight"),
        ({"dpo": {"preference_average_log_probs": True}}, {}, "preference_average_log_probs"),
        ({"finetuning_type": "lora_merged"}, {}, "lora_merged"),
        ({"reference": "none"}, {}, "train.reference"),
        ({}, {"options": {"dataset_name": "other"}}, "other data"),
        ({}, {"options": {"model_name_or_path": "other"}}, "another model"),
    ],
)
def test_what_trl_cannot_do_is_refused(tmp_path, model, train, section, words):
    with pytest.raises(ConfigError, match=words):
        prepared(tmp_path, model, config_of(train, **section))


def test_tool_results_that_trl_would_train_are_refused(tmp_path, model):
    with pytest.raises(BackendError, match="accept_other_data"):
        prepared(tmp_path, model, config_of(), [pair_with_tool_results(task) for task in range(20)])


CALLS = """{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}
{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments ARGUMENTS }}}{% endfor %}</s>{% endfor %}"""


@pytest.mark.parametrize("as_is", [False, True])
def test_calls_that_the_template_would_encode_twice_are_refused(tmp_path, model, as_is):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    template = CALLS.replace("ARGUMENTS", "if c.function.arguments is string else ''" if as_is else "| tojson")
    (folder / "chat_template.jinja").write_text(template)
    call = Message("assistant", None, tool_calls=(ToolCall("add", '{"a": 1}', id="1"),))
    pairs = [pair(task, chosen=[call], rejected=[Message("assistant", "3")]) for task in range(20)]
    if as_is:
        assert prepared(tmp_path, folder, config_of(), pairs)[0].state is JobState.PREPARED
    else:
        with pytest.raises(BackendError, match=r"arguments_as_text 20.*accept_other_data"):
            prepared(tmp_path, folder, config_of(), pairs)


@pytest.mark.slow
def test_trl_really_trains_it(tmp_path, model, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = str(Path(sys.executable).with_name("trl"))
    config = config_of({**TRAIN, "epochs": 1}, command=[program], options={"use_cpu": True})
    job, _ = prepared(tmp_path, model, config, launch=True)
    status = backend.wait(tmp_path / "run", config, lambda _: None)
    assert status.state is JobState.COMPLETED
    assert status.step == status.num_steps == job.details["num_steps"]
    assert status.train_loss is not None
    assert status.validation_loss is not None
    assert json.loads((tmp_path / "run" / "model" / "adapter_config.json").read_text())["r"] == 4
