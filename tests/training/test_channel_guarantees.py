"""What holds for every channel on batches that share tokens: how a batch is cut changes nothing, since every normaliser
is of the whole batch; and a run that was cut off ends with the same bytes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from pairwright.config import Config
from pairwright.training import train
from training.made_runs import make_failed_runs, make_pairs

CHANNELS = {
    "dpo": {},
    "sft": {},
    "grpo": {"grpo": {"kl_weight": 0.1}},
    "grpo by sequence": {"grpo": {"aggregation": "sequence", "advantage": "dr_grpo"}},
    "kto": {"kto": {"beta": 0.5, "sft_loss_weight": 0.1}},
    "sdpo": {"sdpo": {"teacher": "initial"}},
    "sdpo in one pass": {"sdpo": {"teacher": "same"}},
}
CUTS = {
    "one by one": {"micro_batch_size": 1},
    "by tokens": {"micro_batch_tokens": 60},
    "in parts": {"gradient_accumulation_steps": 2},
    "padded": {"prefix_sharing": False, "micro_batch_size": 3},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pairs and runs of different lengths; the runs of a task share all but their last turn."""
    folder = tmp_path_factory.mktemp("data")
    return {"pairs": make_pairs(folder / "pairs", 9), "experience": make_failed_runs(folder / "runs", 5, 2)}


def run(model, data, output, channel, changes=None, **options):
    name = channel.split()[0]
    # Adam divides by the gradient's own size: without a large epsilon, rounding of a tiny gradient is a whole step.
    base = {"batch_size": 7, "learning_rate": 1e-3, "threads": 1, "epochs": 2, "save_every": 1, "keep_top_k": 9}
    base["adam_epsilon"] = 1e-4
    weights = {"channels": {"dpo": 0, name: 1}}
    config = Config.model_validate({"train": base | weights | CHANNELS[channel] | (changes or {})})
    source = {"pairs": data["pairs"]} if name == "dpo" else {"experience": data["experience"]}
    train(config, model=model, output=output, **source, **options)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("channel", CHANNELS)
def test_how_a_batch_is_cut_changes_no_update_of_any_channel(channel, model, data, tmp_path):
    expected = run(model, data, tmp_path / "whole", channel)
    weights = load_file(tmp_path / "whole/model/model.safetensors")
    for cut, changes in CUTS.items():
        rows = run(model, data, tmp_path / cut, channel, changes)
        for row, other in zip(rows, expected, strict=True):
            for name in ("loss", "grad_norm"):
                assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), (cut, name)
        for name, tensor in load_file(tmp_path / cut / "model/model.safetensors").items():
            torch.testing.assert_close(tensor, weights[name], atol=2e-5, rtol=1e-3, msg=f"{cut}: {name}")


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_run_of_any_channel_that_was_cut_off_ends_with_the_same_bytes(channel, model, data, tmp_path):
    changes = {"micro_batch_tokens": 60}
    expected = run(model, data, tmp_path / "whole", channel, changes)

    class Cut(Exception):
        pass

    def cut(event):
        if event["kind"] == "step" and event["step"] == 3:
            raise Cut

    with pytest.raises(Cut):
        run(model, data, tmp_path / "cut", channel, changes, progress=cut)
    rows = run(model, data, tmp_path / "cut", channel, changes, resume=True)
    assert [(row["step"], row["loss"], row["grad_norm"]) for row in rows] == [
        (row["step"], row["loss"], row["grad_norm"]) for row in expected
    ]
    assert len(rows) == 4
    for name in ("weights.safetensors", "optimizer.safetensors"):
        files = [tmp_path / side / "checkpoints" / "step-00000004" / name for side in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
