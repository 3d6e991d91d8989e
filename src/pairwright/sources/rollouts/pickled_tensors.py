"""Torch tensors inside a pickle, rebuilt as numpy arrays without torch.

Torch pickles a tensor as a view (offset, size, stride) of a storage, and the storage as the bytes of `torch.save` in
its old format: five small pickles (magic, version, platform, the storage's type and size, its key), the number of
elements, and the elements. `read_storage` matches these bytes against this layout instead of unpickling them, and
`view_storage` copies a view after checking its bounds.
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from pairwright.errors import CorruptBytes
from pairwright.records.arrays import DTYPE_NAMES, Array, dtype_named

_MAX_DIMS = 32
_VIEW_BYTES = 64  # charged to the budget for each array
_DTYPES = {
    b"Bool": "bool", b"Char": "int8", b"Short": "int16", b"Int": "int32", b"Long": "int64", b"Byte": "uint8",
    b"Half": "float16", b"Float": "float32", b"Double": "float64", b"BFloat16": "bfloat16",
}  # fmt: skip
# A pickled int of one, two or four bytes, or a long.
_INT = rb"(?:K.|M..|J.{4}|\x8a[\x01-\x08].{1,8}?)"
_TEXT = rb"X.\x00\x00\x00[\x20-\x7e]{1,64}?"
_STORAGE = re.compile(
    rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.\x80\x02M\xe9\x03\."
    # The platform; \x88 is True for little_endian.
    rb"\x80\x02}q\x00\(X\x10\x00\x00\x00protocol_versionq\x01M\xe9\x03X\r\x00\x00\x00little_endianq\x02\x88"
    rb"X\n\x00\x00\x00type_sizesq\x03}q\x04\(X\x05\x00\x00\x00shortq\x05K.X\x03\x00\x00\x00intq\x06K."
    rb"X\x04\x00\x00\x00longq\x07K.uu\."
    # The storage: its class, key, device, number of elements, and no view of another storage.
    rb"\x80\x02\(X\x07\x00\x00\x00storageq\x00ctorch(?:\n(\w{1,32})Storage|\.storage\n(Untyped)Storage)\nq\x01"
    + _TEXT + rb"q\x02" + _TEXT + rb"q\x03" + _INT + rb"Ntq\x04Q\."
    # The list of keys, then the number of elements as eight bytes.
    rb"\x80\x02\]q\x00" + _TEXT + rb"q\x01a\.(.{8})",
    re.DOTALL,
)  # fmt: skip


class Storage(NamedTuple):
    """The elements of a storage, as bytes. `dtype` is None for an untyped storage, whose tensors have the dtype."""

    dtype: str | None
    data: memoryview


def read_storage(data: bytes) -> Storage:
    """Read the bytes of a storage; raise CorruptBytes for anything but the elements of one storage."""
    header = _STORAGE.match(data)
    if header is None:
        raise CorruptBytes("tensor: its storage is not in torch's little-endian format")
    name, untyped, count = header.groups()
    if untyped is None and name not in _DTYPES:
        raise CorruptBytes(f"tensor: a storage of {name.decode()}, expected one of {', '.join(DTYPE_NAMES)}")
    dtype = None if untyped else _DTYPES[name]
    elements = memoryview(data)[header.end() :]
    num_bytes = int.from_bytes(count, "little") * (dtype_named(dtype).itemsize if dtype else 1)
    if len(elements) != num_bytes:
        raise CorruptBytes(f"tensor: {len(elements)} bytes in its storage, which promises {num_bytes}")
    return Storage(dtype, elements)


def view_storage(storage: Storage, offset: Any, size: Any, stride: Any, dtype: Any, budget: list[int]) -> Array:
    """Copy the elements of a tensor from its storage; `dtype` is the name for an untyped one, such as `torch.uint16`.

    The copy is subtracted from `budget`, the bytes that may still be allocated: a view may repeat elements (stride 0)
    and share a storage, so that few bytes can describe large arrays.
    """
    name = storage.dtype or str(dtype).removeprefix("torch.")
    if name not in DTYPE_NAMES:
        raise CorruptBytes(f"tensor: dtype {name}, expected one of {', '.join(DTYPE_NAMES)}")
    for numbers in (size, stride, (offset,)):
        if not isinstance(numbers, tuple) or any(
            type(number) is not int or not 0 <= number < 2**62 for number in numbers
        ):
            raise CorruptBytes("tensor: its offset, size and stride are not integers of at least 0")
    if len(size) != len(stride) or len(size) > _MAX_DIMS:
        raise CorruptBytes(
            f"tensor: {len(size)} sizes and {len(stride)} strides, expected as many, at most {_MAX_DIMS}"
        )
    kind = np.dtype(np.uint8) if name == "bool" else dtype_named(name)  # untrusted bools may have any byte
    num_elements = math.prod(size)
    budget[0] -= num_elements * kind.itemsize + _VIEW_BYTES
    if budget[0] < 0:
        raise CorruptBytes("tensor: shows far more elements than the payload has")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    num_stored = len(storage.data) // kind.itemsize
    if num_elements and last >= num_stored:
        raise CorruptBytes(f"tensor: element {last} of a storage of {num_stored}")
    strides = tuple(step * kind.itemsize for step in stride)
    try:
        if num_elements:
            elements = np.frombuffer(storage.data, kind, num_stored)[offset:]
            view = np.lib.stride_tricks.as_strided(elements, size, strides).copy()
        else:
            view = np.zeros(size, kind)
    except ValueError as error:  # a shape that numpy cannot hold, such as (0, 2**61, 2**61)
        raise CorruptBytes(f"tensor: {error}") from None
    return view.astype(bool) if name == "bool" else view
