"""Sharded tensors: gather, distribute, write as safetensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

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
    """Gather the whole tensor in every process."""
    return tensor.full_tensor() if is_in_pieces(tensor) else tensor


def like(value: Tensor, parameter: Any) -> Any:
    """Shard a whole value like a parameter; scalars are unchanged, and other shapes are replicated."""
    if not is_in_pieces(parameter) or not value.ndim:
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = parameter.device_mesh
    placements = parameter.placements if value.shape == parameter.shape else [Replicate()]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)  # all have it: nothing is sent


@torch.no_grad()
def put(value: Tensor, parameter: Any) -> None:
    """Copy a whole value into a parameter; each process copies its shard."""
    parameter.copy_(like(value, parameter))


def write_tensors(
    path: Path, tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None, is_writer: bool = True
) -> None:
    """Write a safetensors file tensor by tensor, so that no process holds more than one whole tensor.

    Other processes than the writer take part in the gathering.
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
