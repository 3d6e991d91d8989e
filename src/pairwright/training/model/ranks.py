"""Several processes that train one model: distribution of work, and sums over processes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pairwright.training.metrics import Sums, add


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> "Ranks":
        """Return the ranks of the process group; start one if torchrun or accelerate launched this process."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # One GPU for each local rank.
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share_neighbours(self, items: Any) -> Any:
        """Return this process's share of the items: a contiguous slice."""
        start, stop = (len(items) * number // self.size for number in (self.rank, self.rank + 1))
        return items[start:stop]

    def sum_gradients(self, parameters: Iterable[Any]) -> None:
        """Sum the gradients of all processes in place; a missing gradient counts as zero."""
        if self.size == 1:
            return
        tensors = list(parameters)
        for tensor in tensors:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        # One reduction for all gradients: many small ones cost more than a copy.
        flat = torch.cat([tensor.grad.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        at = 0
        for tensor in tensors:
            tensor.grad.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()

    def sum_values(self, values: Sums) -> Sums:
        """Sum named (sum, count) pairs over all processes; names may be missing in some."""
        if self.size == 1:
            return values
        # Names may differ between processes, so dicts are exchanged, not tensors.
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, values)
        total: Sums = {}
        for part in gathered:
            add(total, part)
        return total

    def any(self, value: bool) -> bool:
        """Return whether the value is True in any process."""
        return bool(self.sum_values({"any": (float(value), 1.0)})["any"][0])

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()
