"""One update of a trainer as one of two processes: `torchrun two_processes.py KIND PLACE OUTPUT`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import load_from_disk
from transformers import AutoModelForCausalLM

from handover.tool_runs import their_arguments, their_update
from pairwright.trl import DPOTrainer, KTOTrainer, SFTTrainer


def main(kind: str, place: Path, output: Path) -> None:
    rows, options = load_from_disk(str(output / "rows")), json.loads((output / "options.json").read_text())
    known = {} if kind == "sft" else {"precompute_ref_log_probs": True}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    trainer_class = {"dpo": DPOTrainer, "sft": SFTTrainer, "kto": KTOTrainer}[kind]

    def open_trainer(dataset):
        args = their_arguments(kind, output / "out", **(sizes | known | options))
        more = {} if kind == "sft" else {"ref_model": AutoModelForCausalLM.from_pretrained(place / "reference")}
        return trainer_class(
            model=AutoModelForCausalLM.from_pretrained(place / "model"), args=args, train_dataset=dataset, **more
        )

    trainer = open_trainer(rows)
    loss, gradient, _ = their_update(trainer)
    # Every process has its share of the loss, as often as there are processes.
    total = torch.tensor(loss)
    dist.all_reduce(total)
    odd = open_trainer(rows.select(range(7)))
    _, _, mine = their_update(odd)
    everyone: list = [None, None]
    dist.all_gather_object(everyone, [tuple(ids) for ids, _ in mine])
    seen = [ids for one in everyone for ids in one]
    num_sequences = 2 if kind == "dpo" else 1
    if dist.get_rank() == 0:
        counts = {"repeated": odd.repeated_rows, "rows_seen": len(seen) // num_sequences}
        counts["distinct"] = len(set(seen)) // num_sequences
        gradient = {name.removeprefix("module."): value for name, value in gradient.items()}
        result = {"loss": float(total) / 2, "gradient": gradient, "repeated": trainer.repeated_rows, "odd": counts}
        torch.save(result, output / "update.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
