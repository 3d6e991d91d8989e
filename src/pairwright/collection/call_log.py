"""The call log: answers of unfinished runs, so that a resumed run repeats no request."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from pairwright.collection.policies import Completion
from pairwright.collection.tasks import Task
from pairwright.paths import whole_lines, write_bytes

_Line = tuple[int | str, int, str, int, list[Completion]]  # task, run, key of the request, its number, answers
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)
Known = dict[tuple[str, int], list[Completion]]  # (key of the request, its number): the answers


class CallLog:
    """An open log. Lines of runs for which `is_done(task, run)` holds are dropped on opening."""

    def __init__(self, path: Path, *, is_done: Callable[[int | str, int], bool]) -> None:
        self.path = path
        self._known: dict[tuple[int | str, int], Known] = {}
        lines = []
        for line in whole_lines(path):
            task, run, key, number, answers = _decoder.decode(line)
            if not is_done(task, run):
                self._known.setdefault((task, run), {})[key, number] = answers
                lines.append(line + b"\n")
        # compact the log on opening, so that it does not grow with every resume
        write_bytes(path, b"".join(lines))
        # O_APPEND: each write goes to the end of the file
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def take(self, task: Task) -> Known:
        """Remove and return the answers of an interrupted run."""
        return self._known.pop((task.id, task.run), {})

    def add(self, task: Task, key: str, number: int, answers: list[Completion]) -> None:
        line = memoryview(_encode((task.id, task.run, key, number, answers)) + b"\n")
        # os.write may write only a part
        while line:
            line = line[os.write(self._fd, line) :]

    def close(self, *, all_done: bool) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if all_done:
            self.path.unlink(missing_ok=True)
