"""Text with provenance: a `str` that carries runs of (length, owner) through string operations; and messages of such
text.

Invariants: run lengths add up to the length of the text; the text of every result equals that of plain `str`. An owner
is `message * FIELDS + field`, or TEMPLATE for text without a message. Empty text keeps a run of length zero, so that
an empty message still has a position.

>>> text = "<user>" + track("  hi ", 8).strip() + "</user>"
>>> text, runs_of(text)
('<user>hi</user>', ((6, -1), (2, 8), (7, -1)))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, SupportsIndex

from pairwright.records.messages import Json

Run = tuple[int, int]
Runs = tuple[Run, ...]

TEMPLATE = -1  # owner of text without a message
FIELDS = 8  # owners per message; six are in use
CONTENT, REASONING, CALL, CALL_ID, NAME, OTHER = range(6)


def track(text: str, owner: int) -> "Owned":
    result = str.__new__(Owned, text)  # `_attach_runs` inlined for speed
    result._runs = ((len(text), owner),)
    return result


def runs_of(text: str) -> Runs:
    return text._runs if isinstance(text, Owned) else ((len(text), TEMPLATE),)


def _attach_runs(text: str, runs: Runs) -> "Owned":
    result = str.__new__(Owned, text)
    result._runs = runs
    return result


def join(parts: Iterable[str]) -> str:
    """Concatenate, keeping every run; return a plain `str` if no part is owned."""
    parts = list(parts)
    text = "".join(parts)
    # Neighbouring runs of the same owner are merged later, when pieces are read.
    runs: list[Run] = []
    plain = True
    for part in parts:
        if type(part) is Owned:
            plain = False
            runs.extend(part._runs)
        elif part:
            runs.append((len(part), TEMPLATE))
    return text if plain else _attach_runs(text, tuple(runs))


def join_with(separator: str, parts: Iterable[Any]) -> str:
    """`separator.join(parts)` with provenance."""
    pieces: list[str] = []
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"sequence item {len(pieces)}: expected str instance, {type(part).__name__} found")
        if pieces:
            pieces.append(separator)
        pieces.append(part)
    return join(pieces)


def replace(text: str, old: str, new: str, count: SupportsIndex = -1) -> str:
    """`text.replace(old, new, count)` with provenance."""
    limit = count.__index__()
    if not any(isinstance(part, Owned) for part in (text, new)):
        return str.replace(text, old, new, limit)
    plain, pieces, position, done = str.__str__(text), [], 0, 0
    # An empty `old` matches before every character and at the end, as in `str.replace`.
    while limit < 0 or done < limit:
        index = plain.find(old, position + (1 if not old and done else 0))
        if index < 0 or (not old and index > len(plain)):
            break
        pieces += [text[position:index], new]
        position, done = index + len(old), done + 1
    return join([*pieces, text[position:]])


def _cut(runs: Runs, start: int, stop: int) -> Runs:
    """Return the runs of `text[start:stop]`; for an empty slice, one run of length zero."""
    inside: list[Run] = []
    position, last = 0, TEMPLATE  # `last` owns the empty slice
    for length, owner in runs:
        low, high = max(start, position), min(stop, position + length)
        # Keep runs of length zero, also at an edge: they mark the position of an empty message.
        if low < high or (length == 0 and start <= position <= stop):
            inside.append((high - low, owner))
        if position <= start:
            last = owner
        position += length
    return tuple(inside) or ((0, last),)


def _pad(text: "Owned", result: str) -> "Owned":
    """Give the result of padding `text` its runs; fill characters belong to the template."""
    before = result.find(str.__str__(text))
    after = len(result) - before - len(text)
    return _attach_runs(
        result, (((before, TEMPLATE),) if before else ()) + text._runs + ((after, TEMPLATE),) * bool(after)
    )


class Owned(str):
    """See the module docstring. Built by `track`; `Owned(text)` is template text."""

    __slots__ = ("_runs",)
    _runs: Runs

    def __new__(cls, text: object = "") -> "Owned":
        plain = str(text)
        return _attach_runs(plain, runs_of(plain))

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        text = str.__add__(self, other)
        return _attach_runs(text, self._runs + (other._runs if type(other) is Owned else ((len(other), TEMPLATE),)))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return _attach_runs(str.__add__(other, self), ((len(other), TEMPLATE), *self._runs))

    def __mul__(self, count: SupportsIndex) -> str:
        # Repeated zero times: empty text of the first owner.
        return _attach_runs(
            str.__mul__(self, count), self._runs * max(count.__index__(), 0) or ((0, self._runs[0][1]),)
        )

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, key)
        if len(self._runs) == 1:
            return _attach_runs(text, ((len(text), self._runs[0][1]),))
        if not isinstance(key, slice):
            position = key.__index__() % len(self)
            return _attach_runs(text, tuple(run for run in _cut(self._runs, position, position + 1) if run[0]))
        start, stop, step = key.indices(len(self))
        if step == 1:
            return _attach_runs(text, _cut(self._runs, start, max(start, stop)))
        # A step: one run for each character.
        owners = [owner for length, owner in self._runs for _ in range(length)]
        return _attach_runs(text, tuple((1, owner) for owner in owners[key]) or ((0, TEMPLATE),))

    def __iter__(self) -> Iterator[str]:
        for position in range(len(self)):
            yield self[position]

    def __format__(self, spec: str) -> str:
        result = str.__format__(self, spec)
        # Keep the runs if the format changes nothing.
        return self if result == self else result

    def lstrip(self, chars: str | None = None, /) -> str:
        text = str.lstrip(self, chars)
        return self if len(text) == len(self) else self[len(self) - len(text) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        text = str.rstrip(self, chars)
        return self if len(text) == len(self) else self[: len(text)]

    def strip(self, chars: str | None = None, /) -> str:
        text = str.strip(self, chars)
        if len(text) == len(self):
            return self
        start = len(self) - len(str.lstrip(self, chars))
        return self[start : start + len(text)]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._split(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._split(str.rsplit(self, sep, maxsplit), sep)

    def _split(self, parts: list[str], sep: str | None) -> list[str]:
        """Find the parts of the text, in order, and give them their runs; without `sep`, any white space separates."""
        pieces, position = [], 0
        for part in parts:
            start = position if sep is not None else str.find(self, part, position)
            pieces.append(self[start : start + len(part)])
            position = start + len(part) + len(sep or "")
        return pieces

    def splitlines(self, keepends: bool = False) -> list[str]:
        pieces, position = [], 0
        # Lines with their ends give the distance to the next line.
        for part, whole in zip(str.splitlines(self, keepends), str.splitlines(self, True), strict=True):
            pieces.append(self[position : position + len(part)])
            position += len(whole)
        return pieces

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, _ = str.partition(self, sep)
        cut = len(before)
        return self[:cut], self[cut : cut + len(middle)], self[cut + len(middle) :]

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, middle, _ = str.rpartition(self, sep)
        cut = len(before)
        return self[:cut], self[cut : cut + len(middle)], self[cut + len(middle) :]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return replace(self, old, new, count)

    def join(self, parts: Iterable[Any], /) -> str:
        return join_with(self, parts)

    def _map_characters(self, result: str, character: Callable[[str], str]) -> str:
        """Attach runs to a result that maps characters (a change of case); one character may become several."""
        if len(self._runs) == 1:
            return _attach_runs(result, ((len(result), self._runs[0][1]),))
        if len(result) == len(self):
            return _attach_runs(result, self._runs)
        # The length changed (ß to SS): count the new characters of each run. If they do not add up, because a character
        # depends on its neighbours or its column (tabs), the result has no owners.
        runs, position, plain = [], 0, str.__str__(self)
        for length, owner in self._runs:
            runs.append((sum(len(character(char)) for char in plain[position : position + length]), owner))
            position += length
        return _attach_runs(result, tuple(runs)) if sum(run[0] for run in runs) == len(result) else result

    def lower(self) -> str:
        return self._map_characters(str.lower(self), str.lower)

    def upper(self) -> str:
        return self._map_characters(str.upper(self), str.upper)

    def casefold(self) -> str:
        return self._map_characters(str.casefold(self), str.casefold)

    def swapcase(self) -> str:
        return self._map_characters(str.swapcase(self), str.swapcase)

    def title(self) -> str:
        return self._map_characters(str.title(self), str.title)

    def capitalize(self) -> str:
        return self._map_characters(str.capitalize(self), str.capitalize)

    def translate(self, table: Any, /) -> str:
        return self._map_characters(str.translate(self, table), lambda char: str.translate(char, table))

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        return self._map_characters(str.expandtabs(self, tabsize), lambda char: char)

    def center(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return _pad(self, str.center(self, width, fill))

    def ljust(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return _pad(self, str.ljust(self, width, fill))

    def rjust(self, width: SupportsIndex, fill: str = " ", /) -> str:
        return _pad(self, str.rjust(self, width, fill))

    def zfill(self, width: SupportsIndex, /) -> str:
        result = str.zfill(self, width)
        return self if len(result) == len(self) else _attach_runs(result, ((len(result), self._runs[0][1]),))


Chat = list[Json]

# Keys that hold reasoning, in order of precedence.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Key of a message -> field of the owner; every other key is OTHER.
_FIELD_OF = {
    "content": CONTENT,
    "text": CONTENT,
    "tool_calls": CALL,
    "function_call": CALL,
    "tool_call_id": CALL_ID,
    "name": NAME,
    **dict.fromkeys(REASONING_KEYS, REASONING),
}


class OwnedInt(int):
    """A number in a call's arguments. The model generated all of them: numbers and containers also have an owner."""

    _owner: int

    def __str__(self) -> str:
        return track(int.__repr__(self), self._owner)


class OwnedFloat(float):
    _owner: int

    def __str__(self) -> str:
        return track(float.__repr__(self), self._owner)


class OwnedDict(dict[Any, Any]):
    """A call's arguments; written as JSON, they are one piece with one owner."""

    _owner: int


class OwnedList(list[Any]):
    _owner: int


OwnedDict.__name__, OwnedList.__name__ = "dict", "list"  # for error messages of templates


class PlainDict(dict[Any, Any]):
    """A value without owned text, such as a tool schema; its JSON is cached."""

    _json: dict[Any, str]


class PlainList(list[Any]):
    _json: dict[Any, str]


# The names in Jinja's errors: "'dict object' has no attribute ...".
for _kind, _name in ((PlainDict, "dict"), (PlainList, "list")):
    _kind.__name__, _kind.__module__ = _name, "builtins"


def plain_chat(messages: Sequence[Mapping[str, Any]]) -> Chat:
    """Convert messages to plain data, with reasoning under the names that templates read: transformers' input."""
    chat = []
    for message in messages:
        plain = {key: item if type(item) is str else plain_data(item) for key, item in message.items()}
        # Templates read reasoning under different names: pass the first one that is set under two of them.
        reasoning = next((plain[key] for key in REASONING_KEYS if plain.get(key) is not None), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        chat.append(plain)
    return chat


def plain_data(value: Any) -> Any:
    """Convert a value to plain JSON types; any other type becomes text with its name."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    # Subclasses, such as IntEnum or numpy's float64, become the plain type.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_data(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain_data(item) for item in value)
    return f"<{type(value).__name__}>"


def cache_json(value: Any) -> Any:
    """Rebuild tool schemas so that `tojson` of each part is cached across renders."""
    if isinstance(value, Mapping):
        cached: Any = PlainDict({plain_data(key): cache_json(item) for key, item in value.items()})
    elif isinstance(value, list | tuple):
        cached = PlainList(cache_json(item) for item in value)
    else:
        return plain_data(value)
    cached._json = {}
    return cached


def track_chat(chat: Chat) -> Chat:
    """Own every string by (message, field); roles and types stay template text."""
    result: Chat = []
    for number, message in enumerate(chat):
        owner = number * FIELDS  # plus the field
        tracked: Json = {}
        for key, value in message.items():
            if type(value) is str:
                tracked[key] = value if key == "role" else track(value, owner + _FIELD_OF.get(key, OTHER))
            elif key == "tool_calls" and isinstance(value, list):
                tracked[key] = list(map(_track_call, value, repeat(owner)))
            else:
                tracked[key] = _track_value(value, owner + _FIELD_OF.get(key, OTHER))
        result.append(tracked)
    return result


def _track_call(call: Any, owner: int) -> Any:
    """Own the strings of a call; its arguments become one piece."""
    if not isinstance(call, dict):
        return _track_value(call, owner + CALL)
    result: Json = {}
    for key, value in call.items():
        # Name and arguments of a call may be one level down, under `function`.
        if key == "function":
            result[key] = _track_call(value, owner)
        elif key in ("arguments", "parameters", "input"):
            result[key] = _track_arguments(value, owner + CALL)
        else:
            field = CALL_ID if key == "id" else CALL
            result[key] = value if key == "type" else _track_value(value, owner + field)
    return result


def _track_value(value: Any, owner: int) -> Any:
    """Own the strings of a value; numbers, keys and containers stay template text."""
    if type(value) is str:
        return track(value, owner)
    if isinstance(value, dict):
        return {key: item if key in ("type", "role") else _track_value(item, owner) for key, item in value.items()}
    if isinstance(value, list):
        return [_track_value(item, owner) for item in value]
    return value


def _track_arguments(value: Any, owner: int) -> Any:
    """Own a value that the model generated as a whole: keys, numbers and containers as well as strings."""
    if type(value) is str:
        return track(value, owner)
    owned: Any
    if type(value) is int:
        owned = OwnedInt(value)
    elif type(value) is float:
        owned = OwnedFloat(value)
    elif isinstance(value, dict):
        owned = OwnedDict({track(key, owner): _track_arguments(item, owner) for key, item in value.items()})
    elif isinstance(value, list):
        owned = OwnedList(map(_track_arguments, value, repeat(owner)))
    else:
        return value
    owned._owner = owner
    return owned
