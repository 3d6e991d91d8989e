"""A sharded model (torch's FSDP), trained by several processes.

Every process holds its shard of each weight, gradient and optimizer state.

A unit is a decoder block; the rest (embeddings, last norm, head) is one more unit. A unit is gathered only while it is
computed. Its gradient is reduced right after its backward pass, in every part of a batch, so no process holds a whole
gradient for longer.

Invariants: gradients are sums over processes, never means, since every normaliser is that of the whole batch (`Ranks`).
Names and values are those of the whole model. Every pass is a collective operation, so all processes make the same
passes in the same order (`Ranks.in_step`).
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pairwright.config.train_config import TrainConfig
from pairwright.generate.devices import choose_device
from pairwright.training.model.load_model import ModelError, load_model, plain_model, trainable
from pairwright.training.model.ranks import Ranks, T
from pairwright.training.model.sharded_tensors import whole

_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1 << 20  # glibc's number of the option, and the smallest block to give back


class Root(torch.nn.Module):  # type: ignore[misc]
    """FSDP's root module: every computation with the model runs inside its forward.

    A policy runs the backbone, then applies the head at trained tokens. So the root unit, which has the head, stays
    gathered from a forward pass to the end of its backward pass, or until `settle`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], T]) -> T:
        return work()

    def settle(self) -> None:
        """Release gathered weights, also after a failed pass; then weights may be read and written."""
        self.reset_iter_state()


def load_sharded(folder: Path, settings: TrainConfig, ranks: Ranks, *, is_trained: bool = True) -> Root:
    """Load a sharded model. The first process reads it into CPU memory and sends it unit by unit: other processes hold
    at most their shards and one unit."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ModelError(f"sharding needs torch 2.13 or newer, this is {torch.__version__}: set it to none, or update")
    device = torch.device(choose_device(settings.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        # Make glibc return a unit's memory as soon as it is freed. By default it keeps blocks of up to 32 MB, and a
        # process on the CPU would end up with more memory than the whole model.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    source = None
    if ranks.is_first:
        source = load_model(folder, settings, device=torch.device("cpu"), is_trained=is_trained)
    model = load_model(folder, settings, device=torch.device("meta"), is_trained=is_trained)
    mesh = init_device_mesh(device.type, (ranks.size,))
    filling = _Filling(source, device)
    root = Root(model)
    try:
        for name, block in _blocks(model).items():
            filling.fill(block, name)
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        filling.fill(model, "")
        fully_shard(root, mesh=mesh, reshard_after_forward=False)
    except (NotImplementedError, ValueError) as error:  # a number as a parameter, weights shared by blocks
        raise ModelError(f"{type(plain_model(model)).__name__} cannot be sharded: {error}") from error
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the only one that gloo has
    root.set_reduce_scatter_unused_params(True)  # experts that only some processes used
    return root


def gather_model(folder: Path, settings: TrainConfig, weights: dict[str, Any], ranks: Ranks) -> Any:
    """Return the whole model with the trained weights in the first process; None in the others."""
    model = load_model(folder, settings, device=torch.device("cpu")) if ranks.is_first else None
    places = {} if model is None else trainable(model)
    with torch.no_grad():
        for name, tensor in weights.items():
            value = whole(tensor)
            if model is not None:
                places[name].copy_(value)
    return model


class _Filling:
    """Fills meta tensors with the values that the first process has read."""

    def __init__(self, source: Any, device: torch.device) -> None:
        self.source, self.device = source, device

    def fill(self, module: Any, prefix: str) -> None:
        """Fill a unit. Its tensors are whole until it is sharded, so no references to them may be kept."""
        filled: dict[int, tuple[Any, Any]] = {}  # by id of the meta tensor: tied weights stay tied
        for name, holder, key, empty in list(_without_memory(module, prefix)):
            if id(empty) not in filled:
                filled[id(empty)] = (empty, self._receive(name, key, empty))
            holder[key] = filled[id(empty)][1]

    def _receive(self, name: str, key: str, empty: Any) -> Any:
        value = torch.empty(empty.shape, dtype=empty.dtype, device=self.device)
        if self.source is not None:
            owner = self.source.get_submodule(name)
            source = getattr(owner, key)
            if source.shape != empty.shape:
                raise ModelError(f"{name}.{key} has the shape {tuple(source.shape)}, expected {tuple(empty.shape)}")
            value.copy_(source.detach())
            source.data = source.data.new_empty(0)  # free the source's copy
        dist.broadcast(value, 0)
        return torch.nn.Parameter(value, empty.requires_grad) if isinstance(empty, torch.nn.Parameter) else value


def _without_memory(module: Any, prefix: str) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """Yield (module name, its dict, key, tensor) of meta tensors in parameters, buffers and plain attributes."""
    for name, owner in module.named_modules(prefix=prefix):
        for holder in (owner._parameters, owner._buffers, vars(owner)):
            for key, tensor in list(holder.items()):
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    yield name, holder, key, tensor


def _blocks(model: Any) -> dict[str, Any]:
    """Return the decoder blocks by name: transformers' `_no_split_modules`, else the longest list of modules."""
    kinds = set(plain_model(model)._no_split_modules or ())
    modules = dict(model.named_modules())
    blocks = {name: module for name, module in modules.items() if type(module).__name__ in kinds}
    if not blocks:
        lists = [name for name, module in modules.items() if isinstance(module, torch.nn.ModuleList)]
        longest = max(lists, key=lambda name: len(modules[name]), default=None)
        if longest is not None:
            blocks = {f"{longest}.{number}": module for number, module in enumerate(modules[longest])}
    return {
        name: module
        for name, module in blocks.items()
        if any(True for _ in module.parameters()) and not any(name.startswith(f"{other}.") for other in blocks)
    }
