"""Several processes: their sums (`Ranks`), and a model in shards (torch's FSDP).

Every process holds its piece of each weight, gradient and optimizer state; tensors are read and written in pieces.

A unit is a decoder block; what is left (embeddings, last norm, head) is one more. A unit is gathered for as long as it
is computed. Its gradient is reduced right after its backward pass, in every part of a batch, so that no process ever
holds a gradient that is whole for longer than that.

Invariants: gradients are sums over processes, never means, since every normaliser is of the whole batch (`Ranks`).
Names and values are those of the whole model. Every pass is a collective, so all processes make the same ones, in the
same order: `Ranks.in_step` ensures it.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from pairwright.config.train_config import TrainConfig
from pairwright.train.model.load_model import ModelError, default_device, load_model, plain_model, trainable

# Several processes that train one model: who takes what, and sums over all of them.
#
# Every process computes sums, and every normaliser is of the whole batch, so that adding up gradients gives the
# update that one process would make. A process alone is rank 0 of 1, and nothing here costs it anything.
#
# Where the model is in shards (sharding.py), a pass through it is made by all processes at once: `in_step` has those
# that are done go along until all are.


T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    is_sharded: bool = False

    @classmethod
    def here(cls, *, sharding: bool = False) -> "Ranks":
        """Of the process group that is up; one is started where torchrun or accelerate launched this process."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # torchrun numbers the processes of a machine: one GPU each.
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if not dist.is_initialized():
            return cls()
        size = dist.get_world_size()
        return cls(dist.get_rank(), size, is_sharded=sharding and size > 1)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, items: Any) -> Any:
        """The items of this process: every size-th one."""
        return items[self.rank :: self.size]

    def share_neighbours(self, items: Any) -> Any:
        """The items of this process: those that stand together."""
        start, stop = (len(items) * number // self.size for number in (self.rank, self.rank + 1))
        return items[start:stop]

    def in_step(self, parts: Iterable[T], spare: Callable[[], T]) -> Iterator[tuple[T, bool]]:
        """Each part, and that it counts. Of a model in shards all take as many: who has no more takes spare ones,
        which do not count."""
        # `any` is a collective: every process asks it once before each pass, with True while it has parts left.
        for part in parts:
            if self.is_sharded:
                self.any(True)
            yield part, True
        while self.is_sharded and self.any(False):
            yield spare(), False

    def sum_gradients(self, parameters: Iterable[Any]) -> None:
        """Add up the gradients of all processes, in place; a process without one adds zero.

        Those of a model in shards were added up in the backward pass.
        """
        if self.size == 1 or self.is_sharded:
            return
        tensors = list(parameters)
        for tensor in tensors:
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        # One collective for all gradients: many small ones cost more than a copy.
        flat = torch.cat([tensor.grad.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        at = 0
        for tensor in tensors:
            tensor.grad.copy_(flat[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()

    def sum_values(self, values: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Add up named (sum, count) pairs over all processes; a name may be missing in some."""
        if self.size == 1:
            return values
        # Names may differ between processes, so dicts are exchanged, not tensors.
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, values)
        total: dict[str, tuple[float, float]] = {}
        for part in gathered:
            for name, (value, count) in part.items():
                before = total.get(name, (0.0, 0.0))
                total[name] = (before[0] + value, before[1] + count)
        return total

    def any(self, value: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.sum_values({"any": (float(value), 1.0)})["any"][0])

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


# Tensors of which every process holds a piece: gathered, distributed, written as safetensors.

# as safetensors names them
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def is_in_pieces(tensor: Any) -> bool:
    if not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(tensor: Any) -> Tensor:
    """The whole tensor, in every process."""
    return tensor.full_tensor() if is_in_pieces(tensor) else tensor


def like(value: Tensor, parameter: Any) -> Any:
    """A whole value, cut as a parameter is cut; numbers stay as they are, and other shapes go to every process."""
    if not is_in_pieces(parameter) or not value.ndim:
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = parameter.device_mesh
    placements = parameter.placements if value.shape == parameter.shape else [Replicate()]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)  # all have it: nothing is sent


@torch.no_grad()
def put(value: Tensor, parameter: Any) -> None:
    """Copy a whole value into a parameter, each process its piece."""
    parameter.copy_(like(value, parameter))


def write_tensors(
    path: Path, tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None, is_writer: bool = True
) -> None:
    """A safetensors file, written tensor by tensor, so that no process holds more than one that is whole.

    Those that are not the writer take part in the gathering.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps all aligned
    if not is_writer:
        for _, tensor in ordered:
            whole(tensor.detach())
        return
    with open(path, "wb") as file:
        file.write(_header(ordered, metadata))
        for _, tensor in ordered:
            value = whole(tensor.detach()).cpu().contiguous()
            file.write(memoryview(value.reshape(-1).view(torch.uint8).numpy()))


def _header(tensors: list[tuple[str, Any]], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors:
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text


# The sharded model.

_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1 << 20  # glibc's number of the option, and the smallest block to give back


class Root(torch.nn.Module):  # type: ignore[misc]
    """What FSDP takes for the whole model: whatever is computed with it is computed in this forward.

    A policy runs the backbone and then uses the head where a token is trained. So the last unit, which has the head,
    stays gathered from a forward pass to the end of its backward pass, or until `settle`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], T]) -> T:
        return work()

    def settle(self) -> None:
        """Give back what is still gathered, also after a pass that failed; weights may be read and written then."""
        self.reset_iter_state()


def load_sharded(folder: Path, settings: TrainConfig, ranks: Ranks, *, is_trained: bool = True) -> Root:
    """The model of a folder in shards. The first process reads it, into the machine's memory, and the others get
    theirs unit by unit: besides the first, none holds more than its shards and one unit."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ModelError(f"sharding needs torch 2.13 or newer, this is {torch.__version__}: set it to none, or update")
    device = default_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        _give_back_freed_memory()
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
    """In the first process the model of the folder with the weights that were trained, whole; None in the others."""
    model = load_model(folder, settings, device=torch.device("cpu")) if ranks.is_first else None
    places = {} if model is None else trainable(model)
    with torch.no_grad():
        for name, tensor in weights.items():
            value = whole(tensor)
            if model is not None:
                places[name].copy_(value)
    return model


def _give_back_freed_memory() -> None:
    """Have glibc return what a unit took as soon as it is freed. By itself it keeps blocks of up to 32 MB for later,
    and gathering unit after unit leaves a process on the CPU with more than the whole model would take."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


class _Filling:
    """Gives tensors that have no memory yet the values that the first process has read."""

    def __init__(self, source: Any, device: torch.device) -> None:
        self.source, self.device = source, device

    def fill(self, module: Any, prefix: str) -> None:
        """A unit: what is in it is whole until it is sharded, so nothing here may hold on to it."""
        filled: dict[int, tuple[Any, Any]] = {}  # by the tensor before: tied weights are one, before and after
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
            source.data = source.data.new_empty(0)  # sent: the first process needs no second copy of it
        dist.broadcast(value, 0)
        return torch.nn.Parameter(value, empty.requires_grad) if isinstance(empty, torch.nn.Parameter) else value


def _without_memory(module: Any, prefix: str) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    """(name of the owner, where it keeps it, key, tensor) of parameters, buffers and plain attributes."""
    for name, owner in module.named_modules(prefix=prefix):
        for holder in (owner._parameters, owner._buffers, vars(owner)):
            for key, tensor in list(holder.items()):
                if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                    yield name, holder, key, tensor


def _blocks(model: Any) -> dict[str, Any]:
    """The decoder blocks by name: what transformers says is not to be split, else the longest list of modules."""
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
