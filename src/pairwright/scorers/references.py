"""Criteria that compare the final text of a run with a reference: a field of `info`, as in `number:answer:0.01`."""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pairwright.errors import ConfigError, PairwrightError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, canonical_arguments
from pairwright.scorers.criteria import CRITERIA, Judged, final_text

DEFAULT_TOLERANCE = 1e-6
_NO_JSON = object()  # equal to nothing; None is a JSON value


class CriterionError(PairwrightError):
    """The scorer failed or returned no valid score."""


def exact(run: Experience, reference: Any) -> Judged:
    """1 if the final text equals the reference, ignoring leading and trailing white space."""
    return _agree(final_text(run) == str(reference).strip(), reference)


def matches(run: Experience, reference: Any) -> Judged:
    """1 if the final text contains a match of the reference, a regular expression in Rust's syntax (linear time)."""
    import polars as pl

    try:
        found = pl.Series([final_text(run)]).str.contains(str(reference))[0]
    except pl.exceptions.PolarsError as error:
        raise CriterionError(f"the reference {str(reference)[:100]!r} is not a regular expression: {error}") from None
    return _agree(bool(found), reference)


def same_json(run: Experience, reference: Any) -> Judged:
    """1 if the final text is JSON, or ends with a fenced or bare JSON value, that equals the reference."""
    wanted = canonical_arguments(reference) if isinstance(reference, str) else reference
    text = final_text(run)
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)```", text, re.S)
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    tried = [text, *fenced[-1:], *(text[at:] for at in sorted(starts)[:1])]
    return _agree(any(_json_of(one) == wanted for one in tried), reference)


def near(run: Experience, reference: Any, tolerance: float) -> Judged:
    """1 if the last number of the final text equals the reference within the tolerance, relative to it."""
    wanted = _number(reference)
    if wanted is None:
        raise CriterionError(f"the reference {str(reference)[:100]!r} is not a number")
    found = [_number(text) for text in re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", final_text(run))]
    last = found[-1] if found else None
    if last is None:
        return 0.0, "no number in the final text"
    return _agree(abs(last - wanted) <= tolerance * max(1.0, abs(wanted)), reference)


WITH_REFERENCE: dict[str, Callable[..., Judged]] = {
    "exact": exact,
    "matches": matches,
    "json": same_json,
    "number": near,
}


def find_criterion(name: str) -> Callable[[Experience], Judged] | None:
    """Return the criterion of a name such as `no_loop` or `number:answer:0.01`; None if there is none."""
    kind, _, argument = name.partition(":")
    if kind in CRITERIA and not argument:
        return CRITERIA[kind]
    if kind not in WITH_REFERENCE:
        return None
    field, _, bound = argument.partition(":")
    tolerance = _number(bound) if bound else DEFAULT_TOLERANCE
    if not field or (bound and kind != "number") or tolerance is None or tolerance < 0:
        form = "number:FIELD or number:FIELD:TOLERANCE" if kind == "number" else f"{kind}:FIELD"
        raise ConfigError(f"{name}: expected {form}, where FIELD is a field of info such as answer or task.answer")
    options = (tolerance,) if kind == "number" else ()

    def judge(run: Experience) -> Judged:
        reference = find_field(run.info, field)
        return None if reference is None else WITH_REFERENCE[kind](run, reference, *options)

    return judge


def find_field(info: Json, path: str) -> Any:
    """Return a value of `info` by its path, such as `answer` or `task.answer`; None if it is missing."""
    value: Any = info
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _agree(is_equal: bool, reference: Any) -> Judged:
    return (1.0, "agrees with the reference") if is_equal else (0.0, f"differs from {str(reference)[:80]!r}")


def _number(value: Any) -> float | None:
    try:
        number = float(str(value).replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) != float("inf") and number == number else None


def _json_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _NO_JSON
