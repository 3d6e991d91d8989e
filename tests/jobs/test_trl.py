"""TRL: the written rows and arguments, the tokens that it trains, and refusals."""

import json
import sys

import polars as pl
import pytest
from ruamel.yaml import YAML
from safetensors.torch import load_file
from typer.testing import CliRunner

from generate.tiny_models import save_model
from handover.tool_runs import make_runs, make_tool_pairs, our_update, their_update
from jobs.made_pairs import pair_with_tool_results, pairs_table
from pairwright.cli.main import app
from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.jobs import BACKENDS, JobRequest, JobState
from pairwright.jobs.job import silent

backend = BACKENDS["trl"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("trl") / "model", context=2048)


def config_of(train=None, tokens=None, **section) -> Config:
    return Config.model_validate({"train": train or {}, "tokens": tokens or {}, "backend": {"trl": section}})


def prepared(tmp_path, model, config, pairs=None, *, launch=False, table=None, **sources):
    sources = sources or {"pairs": table or pairs_table(tmp_path / "pairs", pairs)}
    job = backend.submit(tmp_path / "run", JobRequest(model=str(model), launch=launch, **sources), config, silent)
    return job, YAML(typ="safe").load((tmp_path / "run" / "trl.yaml").read_text())


TRAIN = {"batch_size": 4, "micro_batch_size": 2, "epochs": 2, "learning_rate": 1e-3, "dpo": {"beta": 0.2, "label_smoothing": 0.1},
         "finetuning_type": "lora", "lora": {"adapter_dim": 4, "alpha": 8}}  # fmt: skip


def test_trls_own_arguments_take_what_was_asked_for(tmp_path, model):
    from trl import DPOConfig

    _, tree = prepared(tmp_path, model, config_of(TRAIN, options={"use_cpu": True}))
    training = DPOConfig(**tree["arguments"])
    assert (tree["kind"], tree["model"]) == ("dpo", str(model.resolve()))
    assert tree["terms"] == {"beta": 0.2, "label_smoothing": 0.1}
    assert training.max_length is None, "TRL would cut at its own length"
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 4
    assert (training.learning_rate, training.precompute_ref_log_probs) == (1e-3, True)
    assert (tree["lora"]["r"], tree["lora"]["lora_alpha"]) == (4, 8)
    assert training.output_dir == str(tmp_path / "run" / "model")
    rows = [pl.read_parquet(tree[split]) for split in ("train", "validation")]
    assert sum(map(len, rows)) == 20
    assert {split for part in rows for split in part["split"]} == {"train", "validation"}


@pytest.mark.parametrize(
    ("train", "section", "words"),
    [
        ({"dpo": {"loss": "kto"}}, {}, "train.dpo.loss kto"),
        ({"channels": {"dpo": 1, "sft": 0.5}}, {}, "train.channels"),
        ({"finetuning_type": "lora_merged"}, {}, "lora_merged"),
        ({"reference": "none"}, {}, "train.reference"),
        ({"dpo": {"anchor_weight": 0.1}}, {}, "train.dpo.anchor_weight"),
        ({"channels": {"dpo": 0, "kto": 1}}, {}, "--experience"),
        ({}, {"options": {"output_dir": "other"}}, "folder of the job"),
    ],
)
def test_what_trl_cannot_do_is_refused(tmp_path, model, train, section, words):
    with pytest.raises(ConfigError, match=words):
        prepared(tmp_path, model, config_of(train, **section))


def test_tool_results_recorded_ids_and_calls_are_trained_as_our_loop_trains_them(tmp_path, model, monkeypatch):
    """What this backend refused or encoded anew while TRL got text: ids, masks and the update are those of our loop."""
    from pairwright.trl import exact_trainers
    from pairwright.trl.__main__ import run

    dpo = {"beta": 0.3, "sft_loss_weight": 0.5, "preference_average_log_probs": True}
    train = {"dpo": dpo, "batch_size": 8, "micro_batch_size": 3, "max_steps": 1, "max_grad_norm": 0.0}
    data = make_tool_pairs(tmp_path, model)
    options = {"use_cpu": True, "bf16": False, "disable_tqdm": True, "per_device_train_batch_size": 3,
               "gradient_accumulation_steps": 3, "save_strategy": "no"}  # fmt: skip
    tokens = {"experience": [str(tmp_path / "runs")]}
    config = config_of({**train, "precision": "fp32"}, tokens, options=options, validation=0)
    prepared(tmp_path, model, config, table=tmp_path / "weighted")
    results = []
    begin = exact_trainers.DPOTrainer.train

    def watched(trainer):
        trainer.train = lambda: begin(trainer)
        results.append(their_update(trainer))

    monkeypatch.setattr(exact_trainers.DPOTrainer, "train", watched)
    run(str(tmp_path / "run" / "trl.yaml"))
    loss, gradient, seen = results[0]
    sides = [side for pair in data for side in (pair.chosen, pair.rejected)]
    assert sorted(seen) == sorted((side.ids.tolist(), side.mask.tolist()) for side in sides)
    ours, our_gradient = our_update(data, "dpo", model, model, dpo=dpo)
    assert loss == pytest.approx(ours, abs=1e-5)
    assert max(float((our_gradient[name] - gradient[name]).abs().max()) for name in gradient) < 1e-5


def test_pairs_that_are_split_here_keep_their_recorded_ids(tmp_path, model):
    data = make_tool_pairs(tmp_path, model)
    _, tree = prepared(tmp_path, model, config_of(), table=tmp_path / "pairs")
    rows = pl.concat([pl.read_parquet(tree[split]) for split in ("train", "validation")])
    assert sorted(rows["chosen_ids"].to_list()) == sorted(pair.chosen.ids.tolist() for pair in data)


def test_pairs_that_cannot_be_encoded_are_counted(tmp_path, model):
    folder = tmp_path / "no-template"
    save_model(folder, context=512)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(PairwrightError, match=r"no pair to train on \(20 × "):
        prepared(tmp_path, folder, config_of(), [pair_with_tool_results(task) for task in range(20)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "sft", "kto"])
def test_trl_really_trains_it(kind, tmp_path, model, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train = {**TRAIN, "epochs": 1, "channels": {"dpo": 0, kind: 1}}
    config = config_of(train, command=[sys.executable, "-m"], options={"use_cpu": True})
    sources = {"experience": make_runs(tmp_path / "runs", model, 4)} if kind == "kto" else {}
    job, _ = prepared(tmp_path, model, config, launch=True, **sources)
    status = backend.wait(tmp_path / "run", config, lambda _: None)
    assert status.state is JobState.COMPLETED, status.message
    assert status.step == status.num_steps == job.details["num_steps"]
    assert status.train_loss is not None
    assert (status.validation_loss is not None) == (kind != "kto")
    assert json.loads((tmp_path / "run" / "model" / "adapter_config.json").read_text())["r"] == 4
    assert any(value.abs().max() > 0 for name, value in load_file(
        tmp_path / "run" / "model" / "adapter_model.safetensors").items() if "lora_B" in name)  # fmt: skip


def train(*words, config):
    result = CliRunner().invoke(app, ["train", "--config", str(config), *map(str, words)])
    if isinstance(result.exception, PairwrightError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    "kind", ["dpo", pytest.param("sft", marks=pytest.mark.slow), pytest.param("kto", marks=pytest.mark.slow)]
)
def test_train_with_backend_trl_ends_at_the_weights_of_our_loop(kind, tmp_path, model, monkeypatch):
    """Two updates of 3 + 3 + 2 pairs of tool runs with recorded ids and weights; reference values come with the rows."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = make_tool_pairs(tmp_path, model)
    # All rows in each update, and an epsilon that makes a step proportional to its gradient: a difference shows.
    num_rows, passes = (16, 6) if kind == "kto" else (8, 3)
    tree = {
        "train": {"channels": {"dpo": 0, kind: 1}, "batch_size": num_rows, "micro_batch_size": 3,
                  "max_steps": 2, "epochs": 2, "learning_rate": 0.1, "schedule": "constant", "adam_epsilon": 1.0,
                  "max_grad_norm": 0.0, "device": "cpu", "threads": 1,
                  "dpo": {"beta": 0.3, "sft_loss_weight": 0.5, "contrast": "all"}, "kto": {"beta": 0.3, "sft_loss_weight": 0}},
        "tokens": {"experience": [str(tmp_path / "runs")]},
        "backend": {"trl": {"validation": 0, "options": {"per_device_train_batch_size": 3, "gradient_accumulation_steps": passes}}},
    }  # fmt: skip
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(tree))
    source = ("--experience", tmp_path / "runs") if kind == "kto" else ("--tokens", data.path)
    train("--model", model, *source, "-o", tmp_path / "ours", config=config)
    train("--model", model, *source, "-o", tmp_path / "theirs", "--backend", "trl", config=config)
    start, ours, theirs = (
        load_file(folder / "model.safetensors")
        for folder in (model, tmp_path / "ours" / "model", tmp_path / "theirs" / "model")
    )
    moved = max(float((ours[name] - start[name]).abs().max()) for name in start)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in start) < 1e-5 < moved / 100
    rows = pl.read_parquet(tmp_path / "theirs" / "exports" / "trl" / "train.parquet")
    assert kind == "sft" or rows["ref_model"].null_count() == 0
    if kind == "dpo":
        sides = [side for pair in data for side in (pair.chosen, pair.rejected)]
        written = rows["chosen_ids"].to_list() + rows["rejected_ids"].to_list()
        assert sorted(written) == sorted(side.ids.tolist() for side in sides)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "nemo-rl"), "use pairwright jobs submit --backend nemo-rl"),
        (("--backend", "trl", "--resume"), "--resume: the backend trl does not have it"),
        (("--backend", "trl", "--engine", "ray"), "--engine ray: the backend trl does not have it"),
        (("--backend", "trl", "train.dropout=true"), "TRL cannot do what these ask for: train.dropout"),
    ],
)
def test_train_refuses_what_another_backend_does_not_have(words, message, tmp_path, model):
    config = tmp_path / "config.yaml"
    config.write_text("{}")
    pairs = pairs_table(tmp_path / "pairs")
    with pytest.raises(ConfigError, match=message):
        train("--model", model, "--pairs", pairs, "-o", tmp_path / "run", *words, config=config)
    assert not (tmp_path / "run" / "model").exists()
