"""The loop: what it learns, what does not affect the result, how it stops and resumes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pairwright.config import Config, load_config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
from pairwright.training import BadLoss, Policy, read_batch, read_status, train
from pairwright.training.checkpoint import CheckpointError
from pairwright.training.model import reference
from pairwright.training.model.load_model import ModelError, read_weights
from pairwright.training.model.reference import branch_keys
from pairwright.training.run_dir import RunError
from training.made_runs import made_pair, make_model, make_pairs, make_runs


def settings(tokens=None, **changes) -> Config:
    base = {"batch_size": 8, "learning_rate": 1e-3, "threads": 1, "epochs": 2}
    return Config.model_validate({"train": base | changes, "tokens": tokens or {}})


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_weights(first, second, **tolerance):
    first, second = weights_of(first), weights_of(second)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        if tolerance:
            torch.testing.assert_close(tensor, second[name], **tolerance)
        else:
            assert torch.equal(tensor, second[name]), name


def test_64_pairs_drive_accuracy_to_1_and_flipped_pairs_the_other_way(model, tmp_path):
    for name, flipped in (("right", False), ("flipped", True)):
        pairs = make_pairs(tmp_path / name / "pairs", 64, flipped=flipped)
        result = train(settings(epochs=6, batch_size=16), model=model, pairs=pairs, output=tmp_path / name / "run")
        assert result.metrics["rewards/accuracies"] == 1.0
        assert result.metrics["rewards/margins"] > 1.0
    right, flipped = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "run/model") for name in ("right", "flipped")
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "right" / "run/model")
    ids = torch.tensor([tokenizer.apply_chat_template(
        [{"role": "user", "content": "red 0: say red"}, {"role": "assistant", "content": "it is red"}], return_dict=False
    )])  # fmt: skip
    with torch.no_grad():
        good, bad = (float(-m(input_ids=ids, labels=ids).loss) for m in (right, flipped))
    assert good > bad


def test_the_first_loss_is_ln_2_and_metrics_have_trls_names(model, pairs, tmp_path):
    train(settings(max_steps=1, dpo={"sft_loss_weight": 0}), model=model, pairs=pairs, output=tmp_path)
    row = rows_of(tmp_path)[0]
    assert row["loss"] == pytest.approx(np.log(2), abs=1e-6)
    names = {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected",
             "logits/chosen", "logits/rejected", "grad_norm", "learning_rate", "num_tokens", "mask_fraction", "step", "epoch"}  # fmt: skip
    assert names <= row.keys()
    assert read_status(tmp_path).state == "completed"


@pytest.mark.parametrize("change", [
    {"micro_batch_size": 1}, {"micro_batch_size": 3}, {"gradient_accumulation_steps": 4}, {"micro_batch_tokens": 40},
    {"prefix_sharing": False}, {"gradient_checkpointing": True},
], ids=str)  # fmt: skip
def test_how_a_batch_is_cut_does_not_change_the_update(change, model, pairs, tmp_path):
    one = train(settings(), model=model, pairs=pairs, output=tmp_path / "whole")
    other = train(settings(**change), model=model, pairs=pairs, output=tmp_path / "cut")
    assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-5)
    assert_same_weights(tmp_path / "whole/model", tmp_path / "cut/model", atol=2e-5, rtol=1e-3)


def test_weights_count_pairs_and_the_order_within_a_batch_does_not_matter(model, tmp_path):
    some = [made_pair(number, weight=1.0 + number % 2) for number in range(8)]
    write_pairs(tmp_path / "a", [pairs_to_batch(some)])
    write_pairs(tmp_path / "b", [pairs_to_batch(some[::-1])])
    write_pairs(tmp_path / "c", [pairs_to_batch([made_pair(number) for number in range(8)])])
    for name in "abc":
        train(settings(epochs=1, shuffle=False), model=model, pairs=tmp_path / name, output=tmp_path / f"run-{name}")
    assert_same_weights(tmp_path / "run-a/model", tmp_path / "run-b/model", atol=1e-6, rtol=1e-4)
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "run-a/model", tmp_path / "run-c/model", atol=1e-6, rtol=1e-4)


def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(model, pairs, tmp_path):
    config = settings(epochs=3, save_every=1, dropout=True)
    train(config, model=model, pairs=pairs, output=tmp_path / "whole")

    class Cut(Exception):
        pass

    def cut(event):
        if event["kind"] == "step" and event["step"] == 4:
            raise Cut

    with pytest.raises(Cut):
        train(config, model=model, pairs=pairs, output=tmp_path / "cut", progress=cut)
    assert read_status(tmp_path / "cut").state == "failed"
    with pytest.raises(RunError, match="--resume"):
        train(config, model=model, pairs=pairs, output=tmp_path / "cut")
    train(config, model=model, pairs=pairs, output=tmp_path / "cut", resume=True)
    assert_same_weights(tmp_path / "whole/model", tmp_path / "cut/model")
    assert [row["step"] for row in rows_of(tmp_path / "cut") if "loss" in row] == [1, 2, 3, 4, 5, 6]
    keys = ("loss", "grad_norm", "rewards/margins")
    assert [[row.get(key) for key in keys] for row in rows_of(tmp_path / "cut")] == [
        [row.get(key) for key in keys] for row in rows_of(tmp_path / "whole")
    ]


@pytest.mark.stress
def test_sigterm_finishes_the_step_saves_and_can_be_resumed(model, pairs, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("train: {batch_size: 2, epochs: 60, learning_rate: 0.001, threads: 1}\n")
    command = [
        sys.executable,
        "-m",
        "pairwright.cli",
        "train",
        "--config",
        str(config),
        "--model",
        str(model),
        "--pairs",
        str(pairs),
    ]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "--resume" in errors
    status = read_status(tmp_path / "run")
    assert status.state == "stopped"
    assert 0 < status.step < status.num_steps
    train(Config.model_validate({"train": {"batch_size": 2, "epochs": 60, "learning_rate": 0.001, "threads": 1}}),
          model=model, pairs=pairs, output=tmp_path / "run", resume=True)  # fmt: skip
    assert read_status(tmp_path / "run").state == "completed"


def test_validation_chooses_the_best_checkpoint_and_stops_early(model, tmp_path):
    """What is held out says the opposite, so that its loss rises after the first updates at the latest."""
    some = [made_pair(number) for number in range(8)] + [
        made_pair(n, flipped=True, split="validation") for n in range(8, 12)
    ]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(some)])
    pairs, tmp_path = tmp_path / "pairs", tmp_path / "run"
    config = settings(
        epochs=40, learning_rate=0.05, schedule="constant", val_check_interval=1, early_stopping_patience=3
    )
    result = train(config, model=model, pairs=pairs, output=tmp_path)
    rows = [row for row in rows_of(tmp_path) if "eval_loss" in row]
    best = min(rows, key=lambda row: row["eval_loss"])
    assert result.best_step == best["step"] == result.num_steps - 3
    assert result.num_steps < 80
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {f"step-{best['step']:08}", f"step-{result.num_steps:08}"}
    saved = load_file(tmp_path / "checkpoints" / f"step-{best['step']:08}" / "weights.safetensors")
    model_weights = weights_of(tmp_path / "model")
    assert all(torch.equal(model_weights[name], tensor) for name, tensor in saved.items() if name in model_weights)


def test_a_nan_loss_stops_the_training_and_saves_the_batch(model, pairs, tmp_path):
    config = settings(epochs=30, learning_rate=1e6, max_grad_norm=0)
    with pytest.raises(BadLoss, match=r"batches/bad-") as caught:
        train(config, model=model, pairs=pairs, output=tmp_path)
    assert "learning rate" in str(caught.value)
    (saved,) = (tmp_path / "batches").glob("bad-*.json")
    trees = read_batch(saved)["dpo"]
    assert len(trees) == 8
    scored = Policy(read_weights(model).eval()).score(trees)
    assert torch.isfinite(scored.logps_N).all()
    assert read_status(tmp_path).state == "failed"


def test_dumped_batches_replay_to_the_logged_log_probabilities(model, pairs, tmp_path):
    train(settings(max_steps=2, dump_batches=1), model=model, pairs=pairs, output=tmp_path)
    (saved,) = (tmp_path / "batches").iterdir()
    trees = read_batch(saved)["dpo"]
    assert all(row.uid and row.turns for tree in trees for row in tree.rows)  # which trace and turn a branch is of
    assert all(len(tree.rows) == 2 for tree in trees)
    with torch.no_grad():
        scored = Policy(read_weights(model).eval()).score(trees)
    sums = torch.zeros(scored.num_branches).index_add(0, scored.branch_N, scored.logps_N)
    assert float(sums[0::2].mean()) == pytest.approx(rows_of(tmp_path)[0]["logps/chosen"], abs=1e-3)


def test_dumped_batches_have_the_weights_of_their_pairs(model, tmp_path):
    weights = [0.5, 1.0, 2.0, 4.0]
    pairs = [made_pair(number, weight=weight) for number, weight in enumerate(weights)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    train(settings(max_steps=1, dump_batches=1), model=model, pairs=tmp_path / "pairs", output=tmp_path / "out")
    (saved,) = (tmp_path / "out" / "batches").iterdir()
    items = json.loads(saved.read_text())["channels"]["dpo"]
    assert {item["id"]: item["weight"] for item in items} == {pair.id: pair.weight for pair in pairs}


def test_the_reference_is_computed_once_and_found_again(model, pairs, tmp_path):
    seen = []
    train(settings(epochs=1), model=model, pairs=pairs, output=tmp_path, progress=seen.append)
    assert (
        sum(event["done"] for event in seen if event["kind"] == "reference" and event["done"] == event["total"]) == 20
    )
    seen.clear()
    train(settings(epochs=1), model=model, pairs=pairs, output=tmp_path, resume=True, progress=seen.append)
    assert not [event for event in seen if event["kind"] == "reference"]


def test_an_interrupted_reference_is_continued_with_the_batches_of_a_whole_one(model, pairs, tmp_path, monkeypatch):
    """The last bits of a value depend on its batch."""
    scored, score = [], reference._score_branches
    monkeypatch.setattr(
        reference,
        "_score_branches",
        lambda policy, trees: scored.append(list(map(branch_keys, trees))) or score(policy, trees),
    )

    def stop(event):
        if event["kind"] == "reference" and event["done"] >= 1:
            raise InterruptedError

    options = settings(max_steps=1, micro_batch_tokens=90)
    train(options, model=model, pairs=pairs, output=tmp_path / "whole")
    whole = scored.copy()
    assert len(whole) > 3
    scored.clear()
    with pytest.raises(InterruptedError):
        train(options, model=model, pairs=pairs, output=tmp_path / "cut", progress=stop)
    assert 0 < len(scored) < len(whole)
    train(options, model=model, pairs=pairs, output=tmp_path / "cut", resume=True)
    assert scored == whole


def test_another_models_reference_changes_the_loss(model, pairs, tmp_path):
    other = make_model(tmp_path / "other", seed=7)
    train(settings(max_steps=1, reference=str(other)), model=model, pairs=pairs, output=tmp_path / "run")
    assert abs(rows_of(tmp_path / "run")[0]["loss"] - np.log(2)) > 1e-3


@pytest.mark.parametrize("loss", ["robust", "ipo", "hinge", "apo_zero", "apo_down", "simpo", "orpo", "kto"])
def test_every_loss_trains(loss, model, pairs, tmp_path):
    options = {"loss": loss} | ({"label_smoothing": 0.1} if loss == "robust" else {})
    reference = "none" if loss in ("simpo", "orpo") else "initial"
    result = train(settings(epochs=3, dpo=options, reference=reference), model=model, pairs=pairs, output=tmp_path)
    assert result.metrics["eval_rewards/accuracies"] >= 0.5
    assert np.isfinite(result.metrics["loss"])


def test_margins_are_an_option_of_the_channel(model, pairs, tmp_path):
    for name, options in (("margin", {"use_margin": True}), ("plain", {})):
        train(settings(max_steps=2, shuffle=False, dpo=options), model=model, pairs=pairs, output=tmp_path / name)
    second = {name: rows_of(tmp_path / name)[1]["loss"] for name in ("margin", "plain")}
    assert second["margin"] != second["plain"]


def test_grpo_raises_the_better_runs_and_counts_flat_groups(model, tmp_path):
    runs = make_runs(tmp_path / "runs", 6, 3)
    result = train(
        settings(channels={"dpo": 0, "grpo": 1}, epochs=8), model=model, experience=runs, output=tmp_path / "run"
    )
    assert np.isfinite(result.metrics["loss"])
    rows = rows_of(tmp_path / "run")
    assert rows[0]["grpo/ratio"] == pytest.approx(1.0)
    status = read_status(tmp_path / "run")
    assert status.counts["grpo"]["flat_groups"] == 0
    assert status.counts["grpo"]["groups"] == 6


def test_grpo_with_kl_uses_the_reference(model, tmp_path):
    runs = make_runs(tmp_path / "runs", 4, 3)
    config = settings(channels={"dpo": 0, "grpo": 1}, epochs=4, grpo={"kl_weight": 0.5})
    train(config, model=model, experience=runs, output=tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert rows[0]["grpo/kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[-1]["grpo/kl"] > 0


def test_sft_on_chosen_raises_its_likelihood_alone(model, pairs, tmp_path):
    result = train(settings(training_type="sft", epochs=6), model=model, pairs=pairs, output=tmp_path)
    rows = [row for row in rows_of(tmp_path) if "nll" in row]
    assert rows[-1]["nll"] < rows[0]["nll"]
    assert "eval_nll" in result.metrics
    assert rows[0]["loss"] == pytest.approx(rows[0]["nll"], rel=1e-5)


def test_sft_on_runs_with_a_validation_table(model, tmp_path):
    runs, held = make_runs(tmp_path / "runs", 4, 1), make_runs(tmp_path / "held", 2, 1)
    result = train(
        settings(training_type="sft"), model=model, experience=runs, validation=held, output=tmp_path / "run"
    )
    assert result.metrics["eval_nll"] > 0


def test_channels_add_up(model, pairs, tmp_path):
    runs = make_runs(tmp_path / "runs", 4, 3)
    alone = {"dpo": {"sft_loss_weight": 0}, "grpo": {"sft_loss_weight": 0}}
    config = settings(channels={"dpo": 0.5, "grpo": 0.25, "sft": 0.25}, max_steps=2, shuffle=False, **alone)
    train(config, model=model, pairs=pairs, experience=runs, output=tmp_path / "run")
    row = rows_of(tmp_path / "run")[0]
    assert row["loss"] == pytest.approx(0.5 * np.log(2) + 0.25 * row["nll"], abs=0.02)


def test_lora_saves_an_adapter_and_merged_a_whole_model(model, pairs, tmp_path):
    from peft import AutoPeftModelForCausalLM

    for kind in ("lora", "lora_merged"):
        config = settings(finetuning_type=kind, epochs=4, learning_rate=1e-2, lora={"adapter_dim": 4})
        result = train(config, model=model, pairs=pairs, output=tmp_path / kind)
        assert result.metrics["rewards/margins"] > 0
    assert (tmp_path / "lora/adapter/adapter_config.json").exists()
    assert not (tmp_path / "lora/model").exists()
    adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "lora/adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "lora_merged/model")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    torch.testing.assert_close(adapted(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(model)
    assert not torch.allclose(base(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-3)


def test_a_lora_run_is_resumed_bit_for_bit(model, pairs, tmp_path):
    config = settings(finetuning_type="lora_merged", epochs=2, save_every=1)
    train(config, model=model, pairs=pairs, output=tmp_path / "whole")
    with pytest.raises(RuntimeError):
        train(config, model=model, pairs=pairs, output=tmp_path / "cut", progress=_fail_at(3))
    train(config, model=model, pairs=pairs, output=tmp_path / "cut", resume=True)
    assert_same_weights(tmp_path / "whole/model", tmp_path / "cut/model")


def _fail_at(step):
    def progress(event):
        if event["kind"] == "step" and event["step"] == step:
            raise RuntimeError

    return progress


def test_bf16_and_adafactor_train(model, pairs, tmp_path):
    config = settings(precision="bf16", optimizer="adafactor", learning_rate=1e-2, epochs=3)
    result = train(config, model=model, pairs=pairs, output=tmp_path)
    assert result.metrics["rewards/margins"] > 0
    assert weights_of(tmp_path / "model")["model.norm.weight"].dtype == torch.float32


def test_a_pair_longer_than_the_cap_is_counted_and_a_batch_of_one_works(model, pairs, tmp_path):
    config = settings({"max_length": 36, "truncation": "drop"}, batch_size=1, max_steps=2)
    train(config, model=model, pairs=pairs, output=tmp_path)
    assert read_status(tmp_path).counts["dpo"]["refused: too_long"] > 0


def test_no_pair_left_is_one_line_that_says_why(model, pairs, tmp_path):
    with pytest.raises(PairwrightError, match="too_long"):
        train(settings({"max_length": 3}), model=model, pairs=pairs, output=tmp_path)


def test_an_unknown_loss_is_one_line_with_the_known_names():
    with pytest.raises(ConfigError, match=r"train\.dpo\.loss: .*expected one of sigmoid"):
        load_config(overrides=[("train.dpo.loss", "dpoo")], environment={})


def test_a_tokenizer_of_another_model_is_refused(pairs, tmp_path):
    folder = make_model(tmp_path / "small")
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                        bos_token_id=1, eos_token_id=1)  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(folder)
    with pytest.raises(PairwrightError, match="20 embeddings"):
        train(settings(), model=folder, pairs=pairs, output=tmp_path / "run")


def test_missing_and_broken_weights_are_refused(model, pairs, tmp_path):
    import shutil

    from safetensors.torch import save_file

    shutil.copytree(model, tmp_path / "gap")
    weights = weights_of(model)
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, tmp_path / "gap/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing.*up_proj"):
        train(settings(), model=tmp_path / "gap", pairs=pairs, output=tmp_path / "run")
    shutil.copytree(model, tmp_path / "torn")
    data = (model / "model.safetensors").read_bytes()
    (tmp_path / "torn/model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="not a model that can be loaded"):
        train(settings(), model=tmp_path / "torn", pairs=pairs, output=tmp_path / "run2")
    with pytest.raises(ModelError, match=r"no config\.json"):
        train(settings(), model=tmp_path, pairs=pairs, output=tmp_path / "run3")


def test_a_damaged_checkpoint_is_one_line_with_the_way_out(model, pairs, tmp_path):
    config = settings(save_every=1)
    with pytest.raises(RuntimeError):
        train(config, model=model, pairs=pairs, output=tmp_path, progress=_fail_at(2))
    (place,) = (tmp_path / "checkpoints").iterdir()
    path = place / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"weights.safetensors: damaged.*Remove step-"):
        train(config, model=model, pairs=pairs, output=tmp_path, resume=True)


def test_a_checkpoint_of_other_data_is_refused(model, pairs, tmp_path):
    train(settings(), model=model, pairs=pairs, output=tmp_path / "run")
    other = make_pairs(tmp_path / "other", 8)
    with pytest.raises(CheckpointError, match="another configuration, model or data"):
        train(settings(), model=model, pairs=other, output=tmp_path / "run", resume=True)


def test_a_full_disk_leaves_the_old_checkpoint_as_it_was(model, pairs, tmp_path):
    """In a process whose files may not grow beyond a limit that the second checkpoint exceeds."""
    code = f"""
import resource, signal, sys
from pairwright.config import Config
from pairwright.training import train
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def progress(event):
    if event["kind"] == "step" and event["step"] == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
config = Config.model_validate({{"train": {{"batch_size": 8, "threads": 1, "save_every": 1}}}})
from pathlib import Path
train(config, model=Path({str(model)!r}), pairs=Path({str(pairs)!r}), output=Path({str(tmp_path)!r}), progress=progress)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode != 0
    assert "the checkpoint was not saved; those before it are intact" in done.stderr, done.stderr
    (place,) = [path for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith(".")]
    assert place.name == "step-00000001"
    config = Config.model_validate({"train": {"batch_size": 8, "threads": 1, "save_every": 1}})
    train(config, model=model, pairs=pairs, output=tmp_path, resume=True)


def test_tensorboard_gets_what_metrics_jsonl_has_and_an_absent_reporter_is_an_error(model, pairs, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(settings(max_steps=2, report_to=["tensorboard"]), model=model, pairs=pairs, output=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("loss")]
    assert logged == pytest.approx([row["loss"] for row in rows_of(tmp_path / "run") if "loss" in row])
    with pytest.raises(ConfigError, match="pip install wandb"):
        train(settings(report_to=["wandb"]), model=model, pairs=pairs, output=tmp_path / "other")
