"""Training: one readable loop, channels whose losses add up, and a plain Hugging Face folder as the result.

train            the loop
Policy           the loop's view of a model: trees of tokens in, log-probabilities out
CHANNELS         dpo, sft, grpo, sdpo, kto
"""

from pairwright.ledger.run_status import Status, read_status
from pairwright.tokens.batch.collate import Tree
from pairwright.training.channels.channels import CHANNELS
from pairwright.training.loop import BadLoss, Stopped, TrainResult
from pairwright.training.model.policy_model import Policy
from pairwright.training.run_dir import read_batch
from pairwright.training.training import train

__all__ = [
    "CHANNELS",
    "BadLoss",
    "Policy",
    "Status",
    "Stopped",
    "TrainResult",
    "Tree",
    "read_batch",
    "read_status",
    "train",
]
