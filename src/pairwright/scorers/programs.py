"""Programs as scorers, found by name: built-in criteria, a function in a user's file, an external command.

    programs                every built-in criterion that needs no reference
    no_loop, number:answer  one built-in criterion (scorers/criteria.py, references.py)
    file.py:name            a Python function `score(run) -> float | dict[str, float] | None`
    command:PROGRAM ARGS    a program that reads runs as JSON lines and writes a score for each

Each is a `Program`: a name, a hash that changes with its code, and a function from runs to outcomes in the same order.
"""

import contextlib
import hashlib
import inspect
import math
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from pairwright.config.user_code import SCORERS, load_function
from pairwright.errors import ConfigError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, content_hash, to_chat_message
from pairwright.scorers import criteria, references
from pairwright.scorers.criteria import CRITERIA, Judged
from pairwright.scorers.references import CriterionError, find_criterion
from pairwright.store.score_log import MAX_REASON, OVERALL, ScoreRow, check_scorer_name

ALL = "programs"
COMMAND = "command:"
MAX_LINE = 2**20  # bytes of one line of a command's output


@dataclass(frozen=True)
class Outcome:
    """Result of scoring a run: scores by criterion, reasons, cost; or the failure. Unscored: neither of them."""

    scores: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    failure: str | None = None
    cost: float = 0.0

    def rows(self, uid: str, version: str, *, group: str = "") -> list[ScoreRow]:
        """Return the rows that store an outcome: one per criterion, one for a failure; none for an unscored run."""
        if self.failure is not None:
            return [ScoreRow(uid, reason=self.failure[:MAX_REASON], cost=self.cost, hash=version, group=group)]
        rows: list[ScoreRow] = []
        for criterion, score in self.scores.items():
            reason = self.reasons.get(criterion, "")[:MAX_REASON]
            # The cost of a run is stored once, so that costs can be summed.
            rows.append(ScoreRow(uid, criterion, score, reason, 0.0 if rows else self.cost, version, group))
        return rows


Scored = tuple[str, Outcome]  # run id and outcome


@dataclass(frozen=True)
class Program:
    """`run` yields the id of each run with its outcome, in order."""

    name: str
    hash: str
    run: Callable[[Iterable[Experience]], Iterator[Scored]]


def find_program(spec: str, *, name: str | None = None, base: Path | None = None) -> Program:
    """Return the program of a name, as in the module docstring; raises ConfigError if there is none.

    By default its scores are named after the criterion, the function, or the file of the command. The path of a Python
    file is relative to the working directory, then to `base`; paths in a command only to the working directory.
    """
    if spec.startswith(COMMAND):
        words = shlex.split(spec.removeprefix(COMMAND))
        if not words:
            raise ConfigError(f"{spec!r}: expected command:PROGRAM ARGUMENTS")
        named = next((Path(word).stem for word in words[1:] if Path(word).is_file()), Path(words[0]).stem)
        files = [Path(word).read_bytes().hex() for word in words if Path(word).is_file() and Path(word).suffix]
        return Program(name_of(name, named), content_hash(words, files), lambda runs: _run_command(words, runs))
    criterion = find_criterion(spec)
    if spec == ALL or criterion is not None:
        chosen = CRITERIA if criterion is None else {OVERALL: criterion}
        # The hash changes with the code of the criteria.
        code = b"".join(Path(str(module.__file__)).read_bytes() for module in (criteria, references))
        version = content_hash(spec, hashlib.sha256(code).hexdigest())
        return Program(
            name_of(name, spec), version, lambda runs: ((run.eid.uid, _judge_by(chosen, run)) for run in runs)
        )
    if ":" not in spec and not spec.endswith((".yaml", ".yml")):
        known = ", ".join([ALL, *CRITERIA])
        raise ConfigError(f"{spec}: expected {known}, exact:FIELD, file.py:function, command:..., or a rubric .yaml")
    return function_program(load_function(spec, group=SCORERS, base=base), name or spec.rpartition(":")[2])


def function_program(function: Callable[[Experience], Any], name: str | None = None) -> Program:
    """Return the program of a function `score(run)`."""
    named = name_of(name, getattr(function, "__name__", "function"))
    return Program(
        named,
        _function_hash(function, named),
        lambda runs: ((run.eid.uid, _call(function, named, run)) for run in runs),
    )


def as_outcome(value: Any, where: str) -> Outcome:
    """Parse the return value of `score(run)`: a number, criteria by name, or None for an unscored run.

    The overall score is the one named `score`, else the mean of the criteria.
    """
    if value is None:
        return Outcome()
    scores = value if isinstance(value, dict) else {OVERALL: value}
    numbers: dict[str, float] = {}
    for name, score in scores.items():
        if score is None:
            continue
        if isinstance(score, str | bytes) or not hasattr(score, "__float__"):
            return Outcome(failure=f"{where}: expected a number or numbers by name, got {str(value)[:200]!r}")
        number = float(score)
        if not math.isfinite(number):
            return Outcome(failure=f"{where}: got {number} for {name}, expected a finite number")
        numbers[str(name)] = number
    return Outcome(with_overall(numbers))


def with_overall(scores: dict[str, float]) -> dict[str, float]:
    """Return the scores with an overall score, by default the mean of the criteria."""
    if not scores or OVERALL in scores:
        return scores
    return {OVERALL: math.fsum(scores.values()) / len(scores), **scores}


def run_json(run: Experience) -> Json:
    """Convert a run to JSON for a command: its id, messages in OpenAI's form, tools, reward and `info`."""
    return {
        "uid": run.eid.uid,
        "task": run.eid.task,
        "run": run.eid.run,
        "step": run.eid.step,
        "prompt": [to_chat_message(message) for message in run.prompt],
        "completion": [to_chat_message(message) for message in run.completion],
        "tools": list(run.tools),
        "reward": run.reward if run.is_scored else None,
        "info": run.info,
    }


def _judge_by(chosen: dict[str, Callable[[Experience], Judged]], run: Experience) -> Outcome:
    scores, reasons = {}, {}
    for name, criterion in chosen.items():
        try:
            judged = criterion(run)
        except CriterionError as error:
            return Outcome(failure=str(error))
        if judged is not None:
            scores[name], reasons[name] = judged
    return Outcome(with_overall(scores), reasons)


def _call(function: Callable[..., Any], where: str, run: Experience) -> Outcome:
    try:
        return as_outcome(function(run), where)
    except Exception as error:  # any exception of the user's code is a failure of the scorer
        return Outcome(failure=f"{where}: {type(error).__name__}: {error}")


def name_of(name: str | None, derived: str) -> str:
    """Return the name of scores: the given name, or one derived from the scorer."""
    return check_scorer_name(name or "-".join("".join(c if c.isalnum() or c == "_" else " " for c in derived).split()))


def _function_hash(function: Callable[..., Any], spec: str) -> str:
    try:
        file = inspect.getsourcefile(function)
        return content_hash(spec, "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest())
    except (TypeError, OSError):  # a built-in, or code without a file
        return content_hash(spec)


def _run_command(words: list[str], runs: Iterable[Experience]) -> Iterator[Scored]:
    """Send runs to one process as JSON lines and read one line per run, in the same order.

    A line is a number, null, or an object of numbers, with an optional `uid` and `reason`. If the program ends early,
    writes an invalid line, or answers for another run, this run and all later ones are failures: nothing is guessed.
    """
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints)
        except OSError as error:
            raise ConfigError(f"{words[0]}: cannot be started: {error.strerror}") from None
        assert process.stdout is not None
        waiting: SimpleQueue[str | None] = SimpleQueue()  # ids of sent runs, in order; None after the last
        # Written by a thread: a program may answer before it has read all input, and a full pipe would block both.
        feeder = threading.Thread(target=_feed, args=(process.stdin, runs, waiting), daemon=True)
        feeder.start()
        failure, has_ended = "", False
        try:
            while not failure and (line := process.stdout.readline(MAX_LINE)):
                uid = waiting.get()  # a program may answer before the run is sent
                if uid is None:
                    raise CriterionError(f"{words[0]}: wrote more lines than there are runs; its scores may be shifted")
                outcome = _parse_line(line, uid, words[0])
                failure = outcome.failure or ""
                yield uid, outcome
            has_ended = not failure
        finally:
            if not has_ended:
                process.kill()
            process.wait()
            process.stdout.close()
            feeder.join()
        complaints.seek(0)
        complaint = complaints.read()[-300:].decode("utf-8", "replace").strip()
        ended = f"{words[0]} ended with exit code {process.returncode} before this run: {complaint}"
        yield from ((uid, Outcome(failure=failure or ended)) for uid in iter(waiting.get, None))


def _feed(stdin: Any, runs: Iterable[Experience], waiting: SimpleQueue[str | None]) -> None:
    is_open = True
    try:
        for run in runs:
            waiting.put(run.eid.uid)
            try:
                if is_open:
                    stdin.write(msgspec.json.encode(run_json(run)) + b"\n")
                    stdin.flush()
            except (BrokenPipeError, ValueError):
                is_open = False  # the program has ended; all remaining runs are failures
    finally:
        waiting.put(None)
    with contextlib.suppress(BrokenPipeError, ValueError):
        stdin.close()


def _parse_line(line: bytes, uid: str, where: str) -> Outcome:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Outcome(failure=f"{where}: expected a line of JSON, got {line[:100]!r}")
    if isinstance(value, dict):
        if value.pop("uid", uid) != uid:
            return Outcome(failure=f"{where}: answered for another run than {uid}")
        reason = value.pop("reason", "")
        outcome = as_outcome(value, where)
        return Outcome(outcome.scores, {OVERALL: str(reason)} if reason else {}, outcome.failure)
    return as_outcome(value, where)
