"""The `tojson` filter of chat templates, with provenance: writes the text of `json.dumps`, in which strings keep their
owners. A call's arguments are one piece; the JSON of a tool schema is cached."""

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pairwright.tokens.template.tracked_str import (
    Owned,
    OwnedDict,
    OwnedFloat,
    OwnedInt,
    OwnedList,
    PlainDict,
    PlainList,
    join,
    track,
)

_PLAIN = (type(None), bool, int, float, str)  # unowned values


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    *,
    tracking: bool = True,
) -> str:
    """Write JSON, with the signature and text of transformers' filter."""
    # `_dumps` is cached by its arguments, so lists from templates become tuples.
    separators = None if separators is None else (separators[0], separators[1])
    dumps = _dumps(ensure_ascii, indent, separators, sort_keys)
    kind = type(value)
    if kind in _PLAIN:
        return dumps(value)
    if kind is PlainDict or kind is PlainList:  # a tool schema: the same text on every render
        if dumps not in value._json:
            value._json[dumps] = dumps(value)
        text: str = value._json[dumps]
        return text
    if isinstance(value, OwnedDict | OwnedList | OwnedInt | OwnedFloat):
        return track(dumps(value), value._owner)
    if kind is Owned:
        return _string(value, ensure_ascii)
    if not tracking or not _holds_owned(value):
        return dumps(value)
    # Several owners: write the JSON piece by piece, with the separators of `json.dumps`.
    out: list[str] = []
    item_separator, key_separator = separators or (", " if indent is None else ",", ": ")
    if isinstance(indent, int):
        indent = " " * indent
    _Writer(out, ensure_ascii, indent, item_separator, key_separator, sort_keys).write(value, "\n")
    return join(out)


@functools.lru_cache(maxsize=64)
def _dumps(
    ensure_ascii: bool, indent: int | str | None, separators: tuple[str, str] | None, sort_keys: bool
) -> Callable[[Any], str]:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return encoder.encode


def _holds_owned(value: Any) -> bool:
    if isinstance(value, Owned | OwnedDict | OwnedList | OwnedInt | OwnedFloat):
        return True
    if isinstance(value, PlainDict | PlainList):
        return False
    if isinstance(value, dict):
        return any(_holds_owned(item) for item in value.values()) or any(_holds_owned(key) for key in value)
    return isinstance(value, list | tuple) and any(_holds_owned(item) for item in value)


def _string(value: Owned, ensure_ascii: bool) -> str:
    """Escape each run separately: JSON escapes characters independently."""
    out, position, plain = ['"'], 0, str.__str__(value)
    for length, owner in value._runs:
        # [1:-1]: the quotes are written once, around all runs.
        text = json.dumps(plain[position : position + length], ensure_ascii=ensure_ascii)[1:-1]
        out.append(track(text, owner))
        position += length
    return join([*out, '"'])


class _Writer(NamedTuple):
    out: list[str]
    ensure_ascii: bool
    indent: str | None
    item_separator: str
    key_separator: str
    sort_keys: bool

    def write(self, value: Any, newline: str) -> None:
        if type(value) is Owned:
            self.out.append(_string(value, self.ensure_ascii))
        elif isinstance(value, dict):
            items = sorted(value.items()) if self.sort_keys else list(value.items())
            self._container("{}", newline, value, items)
        elif isinstance(value, list | tuple):
            self._container("[]", newline, value, [(_NO_KEY, item) for item in value])
        else:
            text = json.dumps(value, ensure_ascii=self.ensure_ascii)
            owner = getattr(value, "_owner", None)
            self.out.append(text if owner is None else track(text, owner))

    def _container(self, brackets: str, newline: str, value: Any, items: list[tuple[Any, Any]]) -> None:
        """Write a container; if it is owned, its brackets and separators belong to its owner."""
        owner = getattr(value, "_owner", None)

        def put(text: str) -> None:
            self.out.append(text if owner is None else track(text, owner))

        if not items:
            put(brackets)
            return
        # With an indent, every item is on a new line; `newline` grows by one indent per level.
        inner = newline + self.indent if self.indent is not None else ""
        put(brackets[0] + inner)
        for number, (key, item) in enumerate(items):
            if number:
                put(self.item_separator + inner)
            if key is not _NO_KEY:
                if type(key) is Owned:
                    self.out.append(_string(key, self.ensure_ascii))
                else:
                    # Dump as a dict key, so that numbers and None become strings; cut off `{` and `: 0}`.
                    put(json.dumps({key: 0}, ensure_ascii=self.ensure_ascii)[1:-4])
                put(self.key_separator)
            self.write(item, inner)
        put((newline if self.indent is not None else "") + brackets[1])


_NO_KEY = object()
