"""TRL's DPOTrainer on pairs built by pairwright, with TRL's tokenization and masks: all after the prompt is trained.

`train: trl_baseline.py:train` in recipes.yaml. Number of updates, pairs per update, learning rate, β and the weight of
the SFT term are those of the configuration.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pairwright as pw


def train(data: dict[str, Path], model: Path, folder: Path, config: Any) -> Path:
    import torch
    from datasets import Dataset, disable_progress_bars
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    disable_progress_bars()
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    pw.export_pairs(data["pairs"], "trl", folder / "pairs.jsonl")
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    settings, terms = config.train, config.train.dpo
    trainer = DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list(rows),
        args=DPOConfig(
            output_dir=str(folder / "trl"), max_steps=settings.max_steps, seed=config.seed,
            per_device_train_batch_size=settings.batch_size, learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup_steps, lr_scheduler_type=settings.schedule, weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm, beta=terms.beta, loss_type=["sigmoid", "sft"],
            loss_weights=[1.0, terms.sft_loss_weight], max_length=None, gradient_checkpointing=False, bf16=False,
            use_cpu=True, report_to="none", save_strategy="no", logging_steps=20, disable_tqdm=True,
        ),
    )  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):  # keep stdout for the table of `pairwright compare`
        trainer.train()
    trainer.save_model(str(folder / "model"))
    return folder / "model"
