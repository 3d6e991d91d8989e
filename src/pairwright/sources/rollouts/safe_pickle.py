"""Read untrusted pickles without executing code.

A pickle is a program that may name and call any importable function. This unpickler builds only plain containers,
numbers, text and bytes, and imports nothing. Classes listed in `holders` are replaced by objects that only hold
attributes; numpy scalars and torch tensors are decoded from their bytes. Any other name is replaced by an inert object,
and a value that contains one is rejected with that name. Sizes claimed by the pickle are checked before anything is
allocated. `dump_plain` writes pickles of such values only.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pairwright.errors import CodecError, CorruptBytes, RecordError, TruncatedBytes, UnsafeBytes
from pairwright.records.arrays import DTYPE_NAMES, Array
from pairwright.sources.rollouts.pickled_tensors import Storage, read_storage, view_storage

_MAX_DEPTH = 200
_MIN_BUDGET, _MAX_GROWTH = 2**24, 64  # limits of the expansion of shared parts
_NODE_BYTES = 32
# Opcodes that load from a registry or callback of the process, bypassing `find_class`.
_REFUSED = frozenset({"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"})
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})

# Dtype names in a pickle: kind and bytes per value (i8, f4, b1), or U and the number of characters.
_NUMPY_DTYPE = re.compile(r"[biu][1248]|f[248]|U[0-9]{1,7}")

Holders = Mapping[tuple[str, str], Any]


class Held:
    """Base of the placeholders for known foreign classes; instances hold the attributes set by the pickle."""

    kind = ""


class Foreign:
    """Inert placeholder for an unknown class or function: accepts any call or item and does nothing."""

    name = ""

    def __new__(cls, *arguments: Any, **named: Any) -> "Foreign":
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def add(self, item: Any) -> None: ...


class PickledTensor(Foreign):
    """A torch tensor of a pickle: its elements, or why they cannot be read. Opcodes cannot modify it."""

    name = "a torch tensor"

    def __init__(self, content: Array | CorruptBytes) -> None:
        self._content = content

    @property
    def array(self) -> Array:
        """Return the elements; CorruptBytes if the pickle does not describe a tensor."""
        if isinstance(self._content, CorruptBytes):
            raise self._content
        return self._content


class Loaded(NamedTuple):
    """The loaded value of a pickle, which may still contain placeholder objects."""

    value: Any
    budget: list[int]

    def plain(self, value: Any) -> Any:
        """Convert a part of the value to dicts, lists, text, bytes and numbers; raise UnsafeBytes for anything else.

        Tensors become numbers or lists of numbers.
        """
        return _plain(value, 0, self.budget)


def load(data: bytes, holders: Holders | None = None) -> Loaded:
    """Load a pickle; its parts are converted separately with `Loaded.plain`, so that a bad part affects no other."""
    _check_opcodes(data)
    budget = [max(_MIN_BUDGET, _MAX_GROWTH * len(data))]
    try:
        value = _PlainUnpickler(data, {**_NUMPY, **_torch_names(budget), **(holders or {})}).load()
    except CodecError:
        raise
    except EOFError:
        raise TruncatedBytes("pickle: the bytes end before the value does") from None
    except Exception as error:  # untrusted opcodes may raise anything
        raise CorruptBytes(f"pickle: {type(error).__name__}: {error}") from None
    return Loaded(value, budget)


def dump_plain(value: Any, where: str = "value") -> bytes:
    """Pickle dicts, lists, tuples, text, bytes and numbers (scalars of numpy and torch as numbers), which can be loaded
    without any class; RecordError for anything else."""
    return pickle.dumps(as_plain(value, where), protocol=4)


def as_plain(value: Any, where: str, depth: int = 0) -> Any:
    """Copy a value as plain types; RecordError with the path of any other value."""
    if depth > _MAX_DEPTH:
        raise RecordError(where, type(value).__name__, f"at most {_MAX_DEPTH} levels")
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, dict):
        return {as_plain(key, where, depth): as_plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [as_plain(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, str | bool | int | float):  # subclasses, such as members of an enumeration
        return next(kind(value) for kind in (str, bool, int, float) if isinstance(value, kind))
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return as_plain(value.item(), where, depth + 1)
    raise RecordError(where, type(value).__name__, "text, numbers, lists and dicts; other objects are not written")


def holder(kind: str) -> type[Held]:
    """Create a placeholder class for a foreign class; a new one per load, so that no pickle can modify the next."""
    return type(kind, (Held,), {"kind": kind})


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, holders: Holders) -> None:
        super().__init__(io.BytesIO(data))
        self._holders = holders

    def find_class(self, module: str, name: str) -> Any:
        # Called for every class and function named by the pickle; the default would import it.
        if (module, name) in self._holders:
            return self._holders[module, name]
        return type("Foreign", (Foreign,), {"name": f"{module}.{name}"})


class _NumpyDtype:
    """The dtype of a numpy scalar, as described by the pickle."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any = "", *flags: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = state[1]


class _StorageHolder(Foreign):
    """The storage of a tensor, or why it cannot be read."""

    name = "a torch storage"

    def __init__(self, content: Storage | CorruptBytes) -> None:
        self.content = content


# Called by the pickle as functions. They are classes with `__setstate__`, so that the BUILD opcode, which sets
# attributes on its target, fails and cannot affect the next load.


class _NumpyScalar(Foreign):
    """Decodes a numpy scalar (number or text) from its bytes; scalars of other dtypes stay Foreign."""

    name = "a numpy scalar that is neither a number nor text"

    def __new__(cls, dtype: Any = None, data: Any = None) -> Any:
        name = dtype.name if isinstance(dtype, _NumpyDtype) else None
        if isinstance(name, str) and isinstance(data, bytes) and _NUMPY_DTYPE.fullmatch(name):
            # "|": no byte order, for types of one byte.
            expected = np.dtype(f"{dtype.order if dtype.order != '|' else '='}{name}")
            if len(data) == expected.itemsize:
                return np.frombuffer(data, expected)[0].item()
        return super().__new__(cls)


class _Latin1(Foreign):
    """Decodes bytes as encoded by pickles before protocol 3."""

    name = "_codecs.encode"

    def __new__(cls, text: Any = None, encoding: Any = None) -> Any:
        if isinstance(text, str) and encoding == "latin1":
            return text.encode("latin1")
        return super().__new__(cls)


_NUMPY: Holders = {
    ("numpy", "dtype"): _NumpyDtype,
    ("numpy.core.multiarray", "scalar"): _NumpyScalar,
    ("numpy._core.multiarray", "scalar"): _NumpyScalar,
    ("_codecs", "encode"): _Latin1,
}


def _torch_names(budget: list[int]) -> Holders:
    """Return the functions and dtypes named by pickled tensors; `budget` limits the allocated bytes."""

    class LoadFromBytes(Foreign):
        name = "torch.storage._load_from_bytes"

        def __new__(cls, data: Any = None) -> Any:
            try:
                return _StorageHolder(read_storage(data if isinstance(data, bytes) else b""))
            except CorruptBytes as error:  # affects only this record
                return _StorageHolder(error)

    class RebuildTensor(Foreign):
        name = "torch._utils._rebuild_tensor_v2"

        def __new__(
            cls, storage: Any = None, offset: Any = None, size: Any = None, stride: Any = None, *more: Any
        ) -> Any:
            # Further arguments: requires_grad, hooks, and for an untyped storage the dtype.
            try:
                if not isinstance(storage, _StorageHolder):
                    raise CorruptBytes("tensor: without a storage")
                content = storage.content
                if isinstance(content, CorruptBytes):
                    raise content
                dtype = more[2] if len(more) > 2 else None
                return PickledTensor(view_storage(content, offset, size, stride, dtype, budget))
            except CorruptBytes as error:
                return PickledTensor(error)

    return {
        ("torch.storage", "_load_from_bytes"): LoadFromBytes,
        ("torch._utils", "_rebuild_tensor_v2"): RebuildTensor,
        ("torch._utils", "_rebuild_tensor_v3"): RebuildTensor,
        ("collections", "OrderedDict"): dict,  # for the hooks; opcodes cannot modify the type
        **{("torch", name): f"torch.{name}" for name in DTYPE_NAMES},
    }


def _check_opcodes(data: bytes) -> None:
    """Reject opcodes that load external objects, lengths beyond the data, and memo slots above the opcode count."""
    num_opcodes = 0
    try:
        for opcode, argument, _ in pickletools.genops(data):
            num_opcodes += 1
            if opcode.name in _REFUSED:
                raise UnsafeBytes(f"pickle: asks for an object from outside ({opcode.name})")
            # Unpickling allocates memory up to the highest slot, and each opcode fills at most one: higher is invalid.
            if opcode.name in _MEMO and (argument is None or not 0 <= argument <= num_opcodes):
                raise CorruptBytes(f"pickle: memo slot {argument} at opcode {num_opcodes}")
    except CodecError:
        raise
    except Exception as error:
        raise CorruptBytes(f"pickle: {type(error).__name__}: {error}") from None


def _plain(value: Any, depth: int, budget: list[int]) -> Any:
    """Copy a value as plain types; `budget` limits the size, since shared parts can make a short pickle expand."""
    budget[0] -= _NODE_BYTES + (len(value) if isinstance(value, str | bytes | bytearray) else 0)
    if budget[0] < 0:
        raise CorruptBytes(f"pickle: expands to more than {_MAX_GROWTH} times its size")
    if depth > _MAX_DEPTH:
        raise CorruptBytes(f"pickle: nested deeper than {_MAX_DEPTH} levels")
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, dict):
        wrong = next((key for key in value if not (key is None or type(key) in (str, int, float, bool))), None)
        if wrong is not None:
            raise CorruptBytes(f"pickle: a dict with a key of type {type(wrong).__name__}")
        return {key: _plain(item, depth + 1, budget) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1, budget) for item in value]
    if isinstance(value, Held):
        return {key: _plain(item, depth + 1, budget) for key, item in vars(value).items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, PickledTensor):
        budget[0] -= _NODE_BYTES * value.array.size
        if budget[0] < 0:
            raise CorruptBytes(f"pickle: expands to more than {_MAX_GROWTH} times its size")
        return (value.array.astype("float32") if value.array.dtype.name == "bfloat16" else value.array).tolist()
    if isinstance(value, Foreign) or (isinstance(value, type) and issubclass(value, Foreign)):
        raise UnsafeBytes(f"pickle: asks for {value.name}, but only plain values are read")
    raise UnsafeBytes(f"pickle: holds a {type(value).__name__}, which is not a plain value")
