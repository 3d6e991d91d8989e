"""Exact batches in TRL: a TRL script changes only its trainer's import and its dataset.

    from pairwright.trl import DPOConfig, DPOTrainer, Encoded

    dataset = Encoded("runs/first/tokens", "models/qwen").to_trl("dpo")
    trainer = DPOTrainer(model="models/qwen", args=DPOConfig("out", max_length=None), train_dataset=dataset)
    trainer.train()

TRL takes seconds to load, so it is imported lazily.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pairwright.tokens.stage.stage import Encoded
from pairwright.training.token_rows import make_dataset

if TYPE_CHECKING:
    from trl import DPOConfig, KTOConfig, SFTConfig

    from pairwright.trl.exact_trainers import DPOTrainer, KTOTrainer, SFTTrainer

__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "Encoded",
    "KTOConfig",
    "KTOTrainer",
    "SFTConfig",
    "SFTTrainer",
    "make_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pairwright.trl' has no attribute {name!r}")
    return getattr(import_module("trl" if name.endswith("Config") else "pairwright.trl.exact_trainers"), name)
