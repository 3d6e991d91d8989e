"""A pretended device: real values on the CPU behind torch's PrivateUse1 key.

Tensors of it have the device type `pretended`. An operation that meets tensors of the CPU and of the device raises, as
a GPU does (numbers are fine), and so does float64, which Apple's GPU does not have. It cannot be removed again: install
it in a separate process, after models are loaded, and move them with `.to("pretended")`.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"


class Pretended(torch.Tensor):
    """A tensor of the device; `values` are on the CPU, and views share them."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "Pretended":
        if values.dtype in (torch.float64, torch.complex128):
            raise TypeError("the device has no float64")
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=f"{NAME}:0"
        )
        tensor.values = values
        return tensor

    def tolist(self) -> Any:
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation on tensors of the device: checked, then computed with the values on the CPU."""
        kwargs = dict(kwargs or {})
        found: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, found.append, (args, kwargs))
        name = op._schema.name
        others = [tensor for tensor in found if not isinstance(tensor, Pretended) and tensor.ndim]
        if others and name not in ("aten::copy_", "aten::_to_copy", "aten::to"):
            raise RuntimeError(f"{name}: tensors of the CPU and of the device meet")
        wanted: list[torch.device] = []
        tree_map_only(torch.device, wanted.append, (args, kwargs))
        args_there, kwargs_there = tree_map_only(torch.device, lambda _: torch.device("cpu"), _inside((args, kwargs)))
        result = op(*args_there, **kwargs_there)
        if name in ("aten::_to_copy", "aten::to") and wanted and wanted[0].type == "cpu":
            return result
        if name == "aten::copy_" and not isinstance(args[0], Pretended):
            return args[0]
        # an in-place operation returns its argument
        same = {id(tensor.values): tensor for tensor in found if isinstance(tensor, Pretended)}
        return tree_map_only(torch.Tensor, lambda t: same[id(t)] if id(t) in same else cls(t), result)


def _inside(tree: Any) -> Any:
    return tree_map_only(Pretended, lambda tensor: tensor.values, tree)


def install() -> None:
    """Register the device; tensors are made on it by factories and by `.to`."""
    module = _DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    for name in ("aten::empty.memory_format", "aten::empty_strided"):
        factory = torch.ops.aten.empty if "memory_format" in name else torch.ops.aten.empty_strided

        def make(*args: Any, factory: Any = factory, **kwargs: Any) -> Pretended:
            return Pretended(factory(*args, **{**kwargs, "device": "cpu"}))

        torch.library.impl(name, "PrivateUse1")(make)

    def copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        _inside(target).copy_(_inside(source))
        return target

    torch.library.impl("aten::_copy_from", "PrivateUse1")(copy)
