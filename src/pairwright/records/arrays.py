"""Arrays of a record: stored as numpy; torch tensors and lists are accepted on input.

Invariant: `as_array` keeps values and dtype of an array or tensor, bfloat16 included (as `ml_dtypes.bfloat16`, bit for
bit). A list gets the default dtype of its field: an integer dtype must hold its values exactly, a float dtype rounds.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pairwright.errors import RecordError

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64", "bfloat16")
DTYPE_NAMES = ("bool", *INTEGERS, *FLOATS)

# `dtype.name` takes microseconds and is needed for every array of every record: a lookup by dtype is faster.
_NAMES: dict[np.dtype[Any], str] = {np.dtype(name): name for name in DTYPE_NAMES if name != "bfloat16"}


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name; bfloat16 comes from ml_dtypes, which is loaded on first use."""
    if name not in DTYPE_NAMES:
        raise RecordError("dtype", name, f"one of {', '.join(DTYPE_NAMES)}")
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def dtype_name(array: Array, field: str = "array") -> str:
    """Return the name of an array's dtype; raises RecordError if it is not in DTYPE_NAMES."""
    name = _NAMES.get(array.dtype)
    if name is None:
        name = array.dtype.name
        if name not in DTYPE_NAMES:
            raise RecordError(f"{field}.dtype", name, f"one of {', '.join(DTYPE_NAMES)}")
    return name


def as_array(value: object, field: str, *, dtype: str) -> Array:
    """Convert a list, array or torch tensor to an array; `dtype` is used only for lists."""
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, list | tuple):
        array = _from_list(value, field, dtype)
    else:
        torch = sys.modules.get("torch")  # a tensor can only exist if torch is loaded: never import it here
        if torch is None or not isinstance(value, torch.Tensor):
            raise RecordError(field, value, "a numpy array, a torch tensor or a list of numbers")
        array = _from_torch(value, torch)
    if array.dtype not in _NAMES:
        dtype_name(array, field)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
    return array


def to_torch(array: Array) -> "torch.Tensor":
    """Return the array as a tensor of the same dtype; a copy, since records are immutable."""
    import torch

    if array.dtype.name == "bfloat16":  # torch cannot read ml_dtypes arrays: pass the bits through int16
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def same_array(left: Array | None, right: Array | None) -> bool:
    """Whether dtype, shape and bytes are equal: NaN equals NaN, and -0.0 differs from 0.0."""
    if left is None or right is None:
        return left is right
    if left is right:
        return True
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _from_list(value: list[Any] | tuple[Any, ...], field: str, dtype: str) -> Array:
    try:
        exact = np.asarray(value)  # in the dtype inferred by numpy, for comparison with the converted values
    except ValueError:
        raise RecordError(field, value, "a list of numbers with no ragged rows") from None
    if exact.size == 0:
        return np.zeros(exact.shape, dtype_named(dtype))
    if exact.dtype.kind not in "biuf":
        raise RecordError(field, value, "a list of numbers")
    array = exact.astype(dtype_named(dtype))
    if array.dtype.kind in "biu" and not np.array_equal(array, exact):
        raise RecordError(field, value, f"numbers that {dtype} holds exactly")
    return array


def _from_torch(tensor: Any, torch: Any) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16: reinterpret the bits
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(dtype_named("bfloat16"))
    array: Array = tensor.numpy()
    return array
