"""`python -m pairwright.trl FILE`: train from a file of the backend `trl`; also with torchrun and accelerate."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pairwright.config.train_config import PreferenceConfig


def run(path: str) -> None:
    """Train as described by the file, and save the model in its `output_dir`."""
    import peft
    import trl
    from datasets import Dataset

    from pairwright.trl.exact_trainers import DPOTrainer, KTOTrainer, SFTTrainer

    with open(path, encoding="utf-8") as file:
        tree = YAML(typ="safe").load(file)
    trainers: dict[str, tuple[Any, Any]] = {
        "dpo": (trl.DPOConfig, DPOTrainer),
        "sft": (trl.SFTConfig, SFTTrainer),
        "kto": (trl.KTOConfig, KTOTrainer),
    }
    # The Parquet rows are cached as memory-mapped Arrow beside the file.
    read = partial(Dataset.from_parquet, cache_dir=str(Path(path).with_name("arrow")))
    make_arguments, make_trainer = trainers[tree["kind"]]
    more: dict[str, Any] = {} if tree["terms"] is None else {"terms": PreferenceConfig(**tree["terms"])}
    trainer = make_trainer(
        model=tree["model"],
        args=make_arguments(**tree["arguments"]),
        train_dataset=read(tree["train"]),
        eval_dataset=None if tree["validation"] is None else read(tree["validation"]),
        peft_config=None if tree["lora"] is None else peft.LoraConfig(**tree["lora"]),
        **more,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    run(sys.argv[1])
