"""Errors of pydantic as lines that name the key, or the command-line option that set it."""

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pairwright.config.keys import section_of

_WORDS = {
    "Input should be": "expected",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
}


def describe_problems(
    error: ValidationError,
    root: type[BaseModel],
    *,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    with_values: bool = False,
) -> list[str]:
    """One line a problem.

    root: the model that was validated.
    flags: for keys that were set on the command line, the option and its value; lines name these instead of the key.
    with_values: whether to repeat bad values; those of a configuration may be secrets from the environment.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        location, message = _locate(problem, root)
        key = ".".join(location)
        flag = next((option for option in flags or {} if f"{key}.".startswith(f"{option}.")), None)
        if problem["type"] == "extra_forbidden":
            name, line = key, _explain_unknown(location, root)
        elif flags and flag is not None:
            name, line = flag, _with_value(*flags[flag], message)
        elif with_values and len(problem["loc"]) == len(location):
            name, line = location[0], _with_value(location[0], problem["input"], message)
        else:
            name, line = key, f"{key}: {message}" if key else message
        # the branches of a union are problems of one value: the first says what is expected, the others add to it
        lines[name] = f"{lines[name]}, or {_expectation(message).removeprefix('expected ')}" if name in lines else line
    return list(lines.values())


def _locate(problem: Any, root: type[BaseModel]) -> tuple[list[str], str]:
    """Where a problem is, and what. A check over several fields names its field at the start of its message."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] != "value_error":
        return location, problem["msg"]
    message = problem["msg"].removeprefix("Value error, ")
    name, colon, rest = message.partition(": ")
    prefix = ".".join([*location, ""])
    if colon and (name in _known_keys(location, root) or (prefix and name.startswith(prefix))):
        return [*location, name.removeprefix(prefix)], rest
    return location, message


def _with_value(name: str, value: Any, message: str) -> str:
    expectation = _expectation(message)
    return f"{name}: got {value!r}, {expectation}" if expectation.startswith("expected") else f"{name}: {message}"


def _expectation(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours, 1)
    return message


def _explain_unknown(location: list[str], root: type[BaseModel]) -> str:
    known = _known_keys(location[:-1], root)
    near = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {'.'.join(location)!r}; {hint}"


def _known_keys(location: list[str], root: type[BaseModel]) -> list[str]:
    model: type[BaseModel] | None = root
    for part in location:
        field = model.model_fields.get(part) if model is not None else None
        model = None if field is None else section_of(field.annotation)
    return [] if model is None else list(model.model_fields)
