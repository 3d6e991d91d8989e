"""Runs a few kinds of training one after the other, alone or as one of several processes.

`python -m training.cases_script FOLDER NAME`: the folder has the models, pairs and runs; each case ends in
FOLDER/NAME/CASE.
"""

import sys
from pathlib import Path

import torch

from pairwright.config import Config
from pairwright.training import train
from pairwright.training.loop import BadLoss

SHARED = {"batch_size": 5, "learning_rate": 1e-3, "threads": 1, "micro_batch_size": 1}
CASES = {
    "lora": {"finetuning_type": "lora", "learning_rate": 1e-2, "lora": {"adapter_dim": 4}},
    "merged": {"finetuning_type": "lora_merged", "learning_rate": 1e-2, "lora": {"adapter_dim": 4}},
    "recomputed": {"gradient_checkpointing": True},
    "padded": {"prefix_sharing": False},
    "decayed": {"weight_decay": 0.1, "max_grad_norm": 0.1},
    "kto": {"dpo": {"loss": "kto"}},
    "channels": {"channels": {"dpo": 1, "sft": 0.5, "grpo": 0.5, "sdpo": 0.5}, "grpo": {"kl_weight": 0.1}},
    "unpaired": {"channels": {"dpo": 0, "kto": 1}, "kto": {"beta": 0.5, "sft_loss_weight": 0.1}},
    "sdpo": {"channels": {"dpo": 0, "sdpo": 1}, "sdpo": {"teacher": "initial"}},
    "referred": {"reference": "other"},
    "few": {"batch_size": 1, "max_steps": 2},
    "tied": {},
    "experts": {},
    "capped": {},
    "gpt2": {"dropout": True, "max_steps": 1},  # at random: only that it runs, and shares prompts, can be compared
}
MODELS = {"tied", "experts", "capped", "gpt2"}  # cases with a model of that name


def main(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    for case, changes in CASES.items():
        settings = SHARED | changes
        if "reference" in settings:
            settings["reference"] = str(folder / settings["reference"])
        train(
            Config.model_validate({"seed": 3, "train": settings}),
            model=folder / (case if case in MODELS else "model"),
            pairs=folder / "pairs",
            experience=folder / "failed",
            output=folder / name / case,
        )
    try:
        config = Config.model_validate({"train": SHARED | {"max_loss": 0.1}})
        train(config, model=folder / "model", pairs=folder / "pairs", output=folder / name / "bad")
    except BadLoss:
        return
    raise AssertionError("a loss above the limit stops the run")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
