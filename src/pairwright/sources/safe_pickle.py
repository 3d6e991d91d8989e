"""Pickles of other programs, read without running anything that they ask for.

A pickle is a program: it may name any importable function and call it. Here it may build plain containers, numbers,
text and bytes. Everything that it names is refused by that name, but for the classes in `holders`, which stand in as
empty objects that only hold attributes. Sizes that the bytes claim are checked before anything is allocated.
"""

import io
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any

from pairwright.errors import CodecError, CorruptBytes, TruncatedBytes, UnsafeBytes

_MAX_DEPTH = 200
_MIN_BUDGET, _MAX_GROWTH = 2**24, 64  # how far shared parts may make a pickle grow when it is written out
_NODE_BYTES = 32
# They load from a registry or a callback of the process, past `find_class`.
_REFUSED = frozenset({"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"})
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})

Holders = Mapping[tuple[str, str], Any]


class Held:
    """An object of a foreign class: its name, and the attributes that the pickle gave it."""

    kind = ""


def load_plain(data: bytes, holders: Holders | None = None) -> Any:
    """The value of a pickle as dicts, lists, text, bytes and numbers; tuples and sets become lists.

    `holders` maps (module, name) to what the name stands for. A value that is a subclass of Held comes out as a dict
    of its attributes.
    """
    _check_opcodes(data)
    try:
        value = _PlainUnpickler(data, holders or {}).load()
    except CodecError:
        raise
    except EOFError:
        raise TruncatedBytes("pickle: the bytes end before the value does") from None
    except Exception as error:  # whatever the opcodes lead to: they come from elsewhere
        raise CorruptBytes(f"pickle: {type(error).__name__}: {error}") from None
    return _plain(value, 0, [max(_MIN_BUDGET, _MAX_GROWTH * len(data))])


def holder(kind: str) -> type[Held]:
    """A class that stands in for a foreign one. Made anew for each load, so that no pickle can leave a mark on it."""
    return type(kind, (Held,), {"kind": kind})


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, holders: Holders) -> None:
        super().__init__(io.BytesIO(data))
        self._holders = holders

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._holders:
            raise UnsafeBytes(f"pickle: asks for {module}.{name}, and nothing but plain values is read")
        return self._holders[module, name]


def _check_opcodes(data: bytes) -> None:
    """Refuse what claims more than is there: lengths beyond the bytes, and memo slots that were never filled."""
    num_opcodes = 0
    try:
        for opcode, argument, _ in pickletools.genops(data):
            num_opcodes += 1
            if opcode.name in _REFUSED:
                raise UnsafeBytes(f"pickle: asks for an object from outside ({opcode.name})")
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
    raise UnsafeBytes(f"pickle: holds a {type(value).__name__}, which is no plain value")


def _key(key: Any) -> Any:
    if key is None or type(key) in (str, int, float, bool):
        return key
    raise CorruptBytes(f"pickle: a dict with a key of type {type(key).__name__}")
