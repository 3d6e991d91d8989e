"""Pickles of other programs, read without running anything that they ask for.

A pickle is a program: it may name any importable function and call it. Here it may build plain containers, numbers,
text and bytes. Nothing that it names is imported. The classes in `holders` stand in as empty objects that only hold
attributes, and numpy's scalars are read as the numbers that their bytes are; any other name becomes an inert object,
and the value that holds it is refused by that name. Sizes that the bytes claim are checked before any allocation.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pairwright.errors import CodecError, CorruptBytes, TruncatedBytes, UnsafeBytes

_MAX_DEPTH = 200
_MIN_BUDGET, _MAX_GROWTH = 2**24, 64  # how far shared parts may make a pickle grow when it is written out
_NODE_BYTES = 32
# They load from a registry or a callback of the process, past `find_class`.
_REFUSED = frozenset({"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"})
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})

# Names of dtypes in a pickle: kind and bytes a value (i8, f4, b1), or U and the number of characters.
_NUMPY_DTYPE = re.compile(r"[biu][1248]|f[248]|U[0-9]{1,7}")

Holders = Mapping[tuple[str, str], Any]


class Held:
    """An object of a foreign class: its name, and the attributes that the pickle gave it."""

    kind = ""


class Foreign:
    """Stands in for an object of an unknown class or function: it takes whatever it gets, and does nothing."""

    name = ""

    def __new__(cls, *arguments: Any, **named: Any) -> "Foreign":
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def add(self, item: Any) -> None: ...


class Loaded(NamedTuple):
    """The value of a pickle as it was loaded, with objects in it that stand for others."""

    value: Any
    budget: list[int]

    def plain(self, value: Any) -> Any:
        """A part of the value as dicts, lists, text, bytes and numbers; UnsafeBytes where it holds anything else."""
        return _plain(value, 0, self.budget)


def load_plain(data: bytes, holders: Holders | None = None) -> Any:
    """The value of a pickle as dicts, lists, text, bytes and numbers; tuples and sets become lists.

    `holders` maps (module, name) to what the name stands for. A value that is a subclass of Held comes out as a dict
    of its attributes.
    """
    loaded = load(data, holders)
    return loaded.plain(loaded.value)


def load(data: bytes, holders: Holders | None = None) -> Loaded:
    """The value of a pickle, whose parts can be made plain one by one: a bad one does not spoil the others."""
    _check_opcodes(data)
    try:
        value = _PlainUnpickler(data, holders or {}).load()
    except CodecError:
        raise
    except EOFError:
        raise TruncatedBytes("pickle: the bytes end before the value does") from None
    except Exception as error:  # whatever the opcodes lead to: they come from elsewhere
        raise CorruptBytes(f"pickle: {type(error).__name__}: {error}") from None
    return Loaded(value, [max(_MIN_BUDGET, _MAX_GROWTH * len(data))])


def holder(kind: str) -> type[Held]:
    """A class that stands in for a foreign one. Made anew for each load, so that no pickle can leave a mark on it."""
    return type(kind, (Held,), {"kind": kind})


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, holders: Holders) -> None:
        super().__init__(io.BytesIO(data))
        self._holders = holders

    def find_class(self, module: str, name: str) -> Any:
        # Every class and function that a pickle names passes here; the default would import it.
        if (module, name) in self._holders:
            return self._holders[module, name]
        if (module, name) in _NUMPY:
            return _NUMPY[module, name]
        return type("Foreign", (Foreign,), {"name": f"{module}.{name}"})


class _NumpyDtype:
    """The dtype of a numpy scalar, as the pickle describes it."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any = "", *flags: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = state[1]


# Called by the pickle as functions. They are classes with a `__setstate__`, so that its BUILD opcode, which sets
# attributes on what it is applied to, fails on them and leaves no mark for the next load.


class _NumpyScalar(Foreign):
    """The number or text of a numpy scalar, read from its bytes; of other dtypes it stays foreign."""

    name = "a numpy scalar that is no number and no text"

    def __new__(cls, dtype: Any = None, data: Any = None) -> Any:
        name = dtype.name if isinstance(dtype, _NumpyDtype) else None
        if isinstance(name, str) and isinstance(data, bytes) and _NUMPY_DTYPE.fullmatch(name):
            # "|": no byte order, for types of one byte.
            expected = np.dtype(f"{dtype.order if dtype.order != '|' else '='}{name}")
            if len(data) == expected.itemsize:
                return np.frombuffer(data, expected)[0].item()
        return super().__new__(cls)


class _Latin1(Foreign):
    """Bytes, as pickles before protocol 3 spell them."""

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


def _check_opcodes(data: bytes) -> None:
    """Refuse what claims more than is there: lengths beyond the bytes, and memo slots that were never filled."""
    num_opcodes = 0
    try:
        for opcode, argument, _ in pickletools.genops(data):
            num_opcodes += 1
            if opcode.name in _REFUSED:
                raise UnsafeBytes(f"pickle: asks for an object from outside ({opcode.name})")
            # Unpickling takes memory up to the highest slot, and an opcode fills one at most: more is a false claim.
            if opcode.name in _MEMO and (argument is None or not 0 <= argument <= num_opcodes):
                raise CorruptBytes(f"pickle: memo slot {argument} at opcode {num_opcodes}")
    except CodecError:
        raise
    except Exception as error:
        raise CorruptBytes(f"pickle: {type(error).__name__}: {error}") from None


def _plain(value: Any, depth: int, budget: list[int]) -> Any:
    """A copy made of plain values; `budget` bounds it, since shared parts can make a short pickle expand endlessly."""
    budget[0] -= _NODE_BYTES + (len(value) if isinstance(value, str | bytes | bytearray) else 0)
    if budget[0] < 0:
        raise CorruptBytes(f"pickle: expands to more than {_MAX_GROWTH} times its size")
    if depth > _MAX_DEPTH:
        raise CorruptBytes(f"pickle: nested deeper than {_MAX_DEPTH} levels")
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1, budget) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1, budget) for item in value]
    if isinstance(value, Held):
        return {key: _plain(item, depth + 1, budget) for key, item in vars(value).items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Foreign) or (isinstance(value, type) and issubclass(value, Foreign)):
        raise UnsafeBytes(f"pickle: asks for {value.name}, and nothing but plain values is read")
    raise UnsafeBytes(f"pickle: holds a {type(value).__name__}, which is no plain value")


def _key(key: Any) -> Any:
    if key is None or type(key) in (str, int, float, bool):
        return key
    raise CorruptBytes(f"pickle: a dict with a key of type {type(key).__name__}")
