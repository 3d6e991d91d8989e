"""The answers of runs that are not finished, so that a run that was cut short is never asked for again.

    calls.jsonl     one line an answered question: [task, run, question, how often asked before, answers]

A line is written before the workflow gets the answer; it survives the death of the process. Once a run is done its
lines are of no use: they are left out when the file is opened again, and it is removed when nothing is open.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from pairwright.collect.completion import Completion
from pairwright.collect.tasks import Task
from pairwright.places import write_bytes

_Line = tuple[int | str, int, str, int, list[Completion]]
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)
Known = dict[tuple[str, int], list[Completion]]


class CallLog:
    """An open log. `is_done(task, run)` says which lines need not be kept."""

    def __init__(self, path: Path, *, is_done: Callable[[int | str, int], bool]) -> None:
        self.path = path
        self._known: dict[tuple[int | str, int], Known] = {}
        kept = []
        for line in _whole_lines(path):
            task, run, key, number, answers = _decoder.decode(line)
            if not is_done(task, run):
                self._known.setdefault((task, run), {})[key, number] = answers
                kept.append(line)
        write_bytes(path, b"".join(kept))
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def take(self, task: Task) -> Known:
        """The answers that a run had before it was cut short."""
        return self._known.pop((task.id, task.run), {})

    def add(self, task: Task, key: str, number: int, answers: list[Completion]) -> None:
        line = memoryview(_encode((task.id, task.run, key, number, answers)) + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]

    def close(self, *, all_done: bool) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if all_done:
            self.path.unlink(missing_ok=True)


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of a file; what a crash cut short at its end is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
