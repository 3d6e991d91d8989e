"""Trains every channel on the CPU and then on a pretended device, and generates there; prints what differs as JSON.

python pretended_script.py FOLDER
"""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch

from pairwright.generate import Engine, Request, Sampling
from pairwright.generate.model_folder import load_tokenizer
from pairwright.training import loop
from pairwright.training.model import load_model
from training import pretended_device
from training.made_runs import make_failed_runs, make_model, make_pairs
from training.test_channel_guarantees import CHANNELS, run

CASES = {**{name: {} for name in CHANNELS}, "dpo lora": {"finetuning_type": "lora", "lora": {"adapter_dim": 4}}}
CASES["dpo padded"] = {"prefix_sharing": False}


def generate(model, folder, device):
    engine = Engine(model.to(device), load_tokenizer(folder))
    prompts = [np.arange(3, 20), np.arange(40, 90)]
    answers = []
    for sampling in (
        Sampling(temperature=0.0, max_tokens=8),
        Sampling(temperature=0.8, top_p=0.9, max_tokens=8, seed=3),
    ):
        results = engine.generate([Request(ids, sampling) for ids in prompts])
        answers += [result.choices[0].tokens.tolist() for result in results]
    return answers


def guards() -> list[str]:
    """What the device raises where a GPU would: tensors that meet, float64 moved there and made there."""
    there = torch.ones(3).to(pretended_device.NAME)
    raised = []
    for mistake in (
        lambda: there + torch.ones(3),
        lambda: torch.ones(3, dtype=torch.float64).to(pretended_device.NAME),
        lambda: there.double(),
    ):
        try:
            mistake()
        except (RuntimeError, TypeError) as error:
            raised.append(type(error).__name__)
    return raised


def main(folder: Path) -> None:
    model = make_model(folder / "model")
    data = {"pairs": make_pairs(folder / "pairs", 5), "experience": make_failed_runs(folder / "runs", 3, 2)}
    CHANNELS.update({name: CHANNELS.get(name, {}) for name in CASES})
    loaded = load_model.read_weights(model)
    load_model.read_weights = lambda *args, **options: copy.deepcopy(loaded)
    save = loop.save_model
    # tensors of the device have no memory that transformers could look at
    loop.save_model = lambda model, *args, **options: save(model.to("cpu"), *args, **options)
    pretended_device.install()
    report = {}
    # the device first: autograd counts its devices in the first backward pass
    for name, more in CASES.items():
        changes = {"epochs": 1, **more}
        found = run(model, data, folder / f"device {name}", name, changes | {"device": pretended_device.NAME})
        wanted = run(model, data, folder / f"cpu {name}", name, changes | {"device": "cpu"})
        report[name] = max(
            abs(row[key] - other[key]) / max(abs(other[key]), 1e-6)
            for row, other in zip(found, wanted, strict=True)
            for key in ("loss", "grad_norm")
        )
    answers = [generate(copy.deepcopy(loaded), model, device) for device in ("cpu", pretended_device.NAME)]
    report["generation"] = float(answers[0] != answers[1])
    print(json.dumps(report | {"guards": guards()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
