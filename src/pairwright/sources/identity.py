"""Identity of records: task, run and step, from the format or from expressions chosen by the user.

    prompt               the task is a hash of prompt and tools
    metadata.case        a field of the record by its path; else of `info` and `metrics`
    file, folder, row    the file's name without its ending, its folder's name, the record's position in the file
    repo,issue           several names: the task combines all of them
    row//4, row%4        integer division or remainder: every four rows are one task

A record without the field is refused with the nearest name that it has.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace

from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Json, Message, canonical_messages, content_hash
from pairwright.sources.fields import BadRecord, identifier, index, json_text, value_at
from pairwright.sources.format import Options, Origin
from pairwright.sources.roles import usual_messages
from pairwright.sources.shapes.traces import run_of

_TERM = re.compile(r"\s*(?P<name>[^,/%]+?)\s*(?:(?P<operator>//|%)\s*(?P<number>\d+))?\s*")


def label_of(origin: Origin) -> str:
    return origin.label or origin.file.rpartition("/")[2]


def task_hash(prompt: Sequence[Message], tools: Sequence[Json], metadata: Any) -> str:
    """Return the task id for records without one: a hash of prompt, tools and metadata."""
    try:
        return content_hash(canonical_messages(prompt), tuple(tools), metadata)
    except (RecursionError, TypeError, ValueError) as error:
        raise BadRecord(f"a value that cannot be written as JSON: {error}") from None


def session_task(
    session: int | str | None, prompt: Sequence[Message], tools: Sequence[Json] = (), metadata: Any = None
) -> int | str | None:
    """Return the task of a session: a hash of its initial prompt and tools; without a start, each session is a task."""
    return task_hash(usual_messages(prompt), tools, metadata) if prompt else session


def session_run(session: int | str | None, origin: Origin, branch: int = 0) -> int:
    """Return the run number of a branch of a session: 48 bits of a hash of its id, or of its file's label."""
    return int(content_hash(label_of(origin) if session is None else session)[:12], 16) + branch


def check_identity(options: Options) -> None:
    """Raise ConfigError for an invalid `--task`, `--run` or `--step` expression."""
    for name in ("task", "run", "step"):
        expression = getattr(options, name)
        for term in [] if expression is None else expression.split(","):
            match = _TERM.fullmatch(term)
            if match is None or match["number"] == "0":
                raise ConfigError(
                    f"--{name} {expression!r}: expected prompt, a field's name or path, several with commas, or row//4"
                )


def identify(exp: Experience, options: Options, row: Any, origin: Origin | None) -> Experience:
    """Return the experience with the task, run and step that the options select; `row` is its decoded record."""
    eid = exp.eid
    task, run, step = eid.task, eid.run, eid.step
    if options.task == "prompt":
        task = task_hash(exp.prompt, exp.tools, None)
    elif options.task is not None:
        values = [_term(term, "--task", exp, row, origin) for term in options.task.split(",")]
        task = values[0] if len(values) == 1 else json_text(values)
    if options.run is not None:
        name = _term(options.run, "--run", exp, row, origin)
        number = index(name)
        run = run_of(name, 0) if number is None else number
    if options.step is not None:
        number = index(_term(options.step, "--step", exp, row, origin))
        if number is None:
            raise BadRecord(f"--step {options.step}: expected an integer of at least 0")
        step = number
    return replace(exp, eid=EID(eid.batch, task, run, step, eid.suffix))


def _term(term: str, option: str, exp: Experience, row: Any, origin: Origin | None) -> int | str:
    match = _TERM.fullmatch(term)
    assert match is not None  # `check_identity` has checked it
    value = _field(match["name"], exp, row, origin)
    if value is None:
        raise BadRecord(f"{option} {match['name']}: no such field in the record{_nearest(match['name'], exp, row)}")
    if match["operator"]:
        number = index(value)
        if number is None:
            raise BadRecord(f"{option} {term.strip()}: expected an integer, got {value!r}")
        divisor = int(match["number"])
        return number // divisor if match["operator"] == "//" else number % divisor
    return value


def _field(name: str, exp: Experience, row: Any, origin: Origin | None) -> int | str | None:
    for fields in (row, exp.info, exp.metrics):
        value = value_at(fields, name)
        value = identifier(str(value) if isinstance(value, float | bool) else value)
        if value is not None:
            return value
    file = origin.file if origin is not None else exp.source.file if exp.source is not None else ""
    if name == "file":
        return PurePath(file).name.partition(".")[0] or None
    if name == "folder":
        return PurePath(file).parent.name or None
    if name == "row" and origin is not None:
        return origin.ordinal
    return None


def _nearest(name: str, exp: Experience, row: Any) -> str:
    names = [*map(str, row if isinstance(row, dict) else ()), *exp.info, "prompt", "file", "folder", "row"]
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(names[:12])}"
