"""The call log: answers of unfinished runs, so that a resumed run repeats no request."""

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
        self._file = open(path, "ab")  # noqa: SIM115 (closed by `close`)

    def take(self, task: Task) -> Known:
        """Remove and return the answers of an interrupted run."""
        return self._known.pop((task.id, task.run), {})

    def add(self, task: Task, key: str, number: int, answers: list[Completion]) -> None:
        self._file.write(_encode((task.id, task.run, key, number, answers)) + b"\n")
        self._file.flush()

    def close(self, *, all_done: bool) -> None:
        self._file.close()
        if all_done:
            self.path.unlink(missing_ok=True)
