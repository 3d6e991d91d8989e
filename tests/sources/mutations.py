"""Every way to break a decoded file in one place: each value in it replaced by values of every other type.

JSON text inside the file is broken in the same way, one level down, since readers decode it.
"""

import json
from collections.abc import Iterator
from typing import Any

from pairwright.errors import PairwrightError
from pairwright.sources.format import Format, Options, Origin

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 10**400, float("nan"), "", "x", "\ud800", [], {}, [None], [[]], [0, "a"], {"a": None}, [{}],
    [{"role": "tool", "content": {"a": 1}}], [{"role": "assistant", "tool_calls": [None]}], {"role": []}, {"type": []},
    [{"type": {}}, {"role": "user", "content": 1}], {"key": {}, "value": []}, {"messages": 1}, {"choices": [1]},
)  # fmt: skip


def broken(value: Any) -> Iterator[Any]:
    yield from HOSTILE
    if isinstance(value, dict):
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
            for inner in broken(value[key]):
                yield {**value, key: inner}
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield value[:number] + value[number + 1 :]
            for inner in broken(item):
                yield [*value[:number], inner, *value[number + 1 :]]
    elif isinstance(value, str) and value[:1] in ("{", "["):
        try:
            inside = json.loads(value)
        except ValueError:
            return
        yield from (json.dumps(inner) for inner in broken(inside))
        yield value[: len(value) // 2]


def survives(reader: Format, value: Any, file: str = "hostile.json") -> int:
    """Read every broken form of a value; anything but our own errors fails the test. Returns how many were read."""
    count = 0
    for mutant in broken(value):
        assert reader.matches(mutant) in (True, False)
        try:
            for _ in reader.read(mutant, Origin(file, None, 0), Options()):
                pass
        except PairwrightError:
            pass
        count += 1
    return count
