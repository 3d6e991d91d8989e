"""Units that hold several records: each is read alone, so that an unusable one does not lose the others."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import items, mapping
from pairwright.sources.format import Origin, Rejected


def read_each(
    name: str, origin: Origin, values: Any, where: str, read: Callable[[Json, int], Iterable[Parts | Rejected]]
) -> Iterator[Parts | Rejected]:
    """Yield what `read(item, number)` yields for each object of a list; an unusable one is Rejected with its place."""
    for number, value in enumerate(items(values, where)):
        place = f"{where}[{number}]"
        try:
            for found in read(mapping(value, place), number):
                if isinstance(found, Parts):
                    found.where = place
                yield found
        except ValueError as error:  # BadRecord, RecordError, or text that is not valid Unicode
            reason = str(error).removeprefix(f"{place}: ")
            yield Rejected(origin.file, origin.line, f"{place}: {reason}", name)
