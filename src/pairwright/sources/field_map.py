"""The field map of `--map`: which field of a record is its prompt, its completion, its reward, ...; and expressions.

    --map prompt=request.body.text,completion=result.text,reward=eval.judge.score,task=case.id

A path is names with dots between them; `[]` goes through a list (`samples[].text` are several candidates), `[0]` takes
one item of it. A name that itself contains a dot is found, too. `+` joins texts (`prompt=context+question`), `|` lists
candidates (`completion=response_a|response_b,reward=score_a|score_b`). A reward may be an expression, as in `--reward`.
A map is checked when it is parsed, and a path that leads nowhere is an error that names the keys that are there.
"""

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from pairwright.errors import ConfigError
from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, kind_of, score

# Expressions over scores: numbers, names, dotted paths, + - * / and parentheses. Parsed, never executed as code.


_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_NODES = 400  # of an expression: its evaluation is recursive


def parse_reward(expression: str, where: str = "") -> ast.expr:
    """Parse an expression of numbers, names and arithmetic; raise ConfigError for anything else."""
    where = where or f"--reward {expression!r}"
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"{where}: neither a component's name nor an expression") from None
    nodes = list(ast.walk(tree))
    if len(nodes) > _MAX_NODES:
        raise ConfigError(f"{where[:200]}: too long; add up the components before the import")
    # An allow-list of syntax nodes: no calls, subscripts, comparisons, comprehensions or texts.
    for node in nodes:
        allowed = (
            ast.BinOp
            | ast.UnaryOp
            | ast.Name
            | ast.Attribute
            | ast.Constant
            | ast.operator
            | ast.UAdd
            | ast.USub
            | ast.expr_context
        )
        if not isinstance(node, allowed) or (isinstance(node, ast.Constant) and type(node.value) not in (int, float)):
            raise ConfigError(f"{where}: only numbers, names, + - * / and parentheses are understood")
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) > sys.float_info.max:
            raise ConfigError(f"{where}: a number that is too large")
        if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name | ast.Attribute):
            raise ConfigError(f"{where}: a path is names with dots between them")
        if isinstance(node, ast.operator) and type(node) not in _OPERATIONS:
            raise ConfigError(f"{where}: only + - * / are understood")
    return tree


def evaluate(node: ast.expr, number_of: Callable[[str], float | None]) -> float | None:
    """Evaluate a parsed expression; None if a number is missing, NaN for a division by zero.

    `number_of` returns the number of a name or dotted path.
    """
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name | ast.Attribute):
        # An Attribute node is a dotted path: `unparse` gives its text back.
        return number_of(ast.unparse(node))
    if isinstance(node, ast.UnaryOp):
        operand = evaluate(node.operand, number_of)
        return None if operand is None else -operand if isinstance(node.op, ast.USub) else operand
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(node.left, number_of), evaluate(node.right, number_of)
    if left is None or right is None:
        return None
    try:
        return _OPERATIONS[type(node.op)](left, right)
    except ZeroDivisionError:
        # NaN is no score: the record counts as unscored, and the import goes on.
        return math.nan


# What a map can name. `records` is where the records are: a list inside a document, or a table of an SQLite file.
TARGETS = (
    "records",
    "prompt",
    "system",
    "tools",
    "messages",
    "completion",
    "chosen",
    "rejected",
    "reward",
    "chosen_reward",
    "rejected_reward",
    "task",
    "run",
    "model",
)
# A record without one of these is refused; the others may be absent in some records.
REQUIRED = frozenset({"prompt", "messages", "completion", "chosen", "rejected"})
_REWARDS = frozenset({"reward", "chosen_reward", "rejected_reward"})
_CANDIDATES = frozenset({"completion", "reward", "model"})
# A name or an index at the start of what is left of a path; "[]" has no number.
_STEP = re.compile(r"\[(-?\d*)\]|([^.\[\]]+)")
_MAX_STEPS = 32
_NUM_KEYS = 12  # in an error message

Step = str | int | None  # a key, the index of an item, or None: every item
Path = tuple[Step, ...]


class FieldMap(msgspec.Struct, frozen=True):
    """A parsed map: for each target its text, as written."""

    fields: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.fields)

    def __contains__(self, target: str) -> bool:
        return target in self.fields

    @property
    def text(self) -> str:
        """The map as `--map` takes it."""
        return ",".join(f"{target}={path}" for target, path in self.fields.items())

    def value(self, row: Any, target: str) -> Any:
        """Return what the map names in a record: a value, or joined text. A missing field is BadRecord."""
        values = [_at(row, path, f"--map {target}={self.fields[target]}") for path in split_joined(self.fields[target])]
        return values[0] if len(values) == 1 else _joined(values, f"--map {target}={self.fields[target]}")

    def optional(self, row: Any, target: str) -> Any:
        """Return what the map names in a record, or None where the record does not have it."""
        try:
            return self.value(row, target) if target in self.fields else None
        except BadRecord:
            return None

    def candidates(self, row: Any, target: str) -> list[Any]:
        """Return the values of a target that lists candidates: those between `|`, or the items of a `[]` path."""
        texts = self.fields[target].split("|")
        where = f"--map {target}={self.fields[target]}"
        if target in _REWARDS:
            return [number for text in texts for number in _rewards(row, text.strip(), where)]
        if len(texts) > 1:
            return [_at(row, parse_path(text), where) for text in texts]
        value = self.value(row, target)
        return value if "[]" in self.fields[target] and isinstance(value, list) else [value]

    def paths(self) -> Iterator[Path]:
        """Yield every path that the map reads, except `records`."""
        for target, text in self.fields.items():
            for piece in text.split("|") if target != "records" else ():
                if target in _REWARDS and not is_path(piece):
                    yield from (parse_path(name) for name in _names_in(parse_reward(piece)))
                else:
                    yield from split_joined(piece)


NO_MAP = FieldMap()


def parse_map(value: str | Mapping[str, str] | FieldMap | None) -> FieldMap:
    """Parse a map from the text of `--map`, or from a mapping of targets to paths.

    >>> parse_map("prompt=question, completion=samples[].text").fields
    {'prompt': 'question', 'completion': 'samples[].text'}
    """
    if value is None or isinstance(value, FieldMap):
        return value or NO_MAP
    fields: dict[str, str] = {}
    entries = [piece.partition("=")[::2] for piece in _pieces(value)] if isinstance(value, str) else value.items()
    for target, text in entries:
        target, text = target.strip(), str(text).strip()
        if target not in TARGETS:
            raise ConfigError(f"--map {target!r}: expected TARGET=FIELD with a target among {', '.join(TARGETS)}")
        if not text:
            raise ConfigError(f"--map {target}=: expected the path of a field, e.g. {target}=result.text")
        if target in fields:
            raise ConfigError(f"--map {target}: named twice, {fields[target]!r} and {text!r}")
        fields[target] = text
        _check(target, text)
    if ("chosen" in fields) != ("rejected" in fields):
        raise ConfigError("--map: chosen and rejected belong together; name both")
    if "chosen" in fields and "completion" in fields:
        raise ConfigError("--map: a record is a completion, or chosen and rejected; not both")
    return FieldMap(fields)


def _pieces(text: str) -> list[str]:
    """Split the text of `--map` at the commas that begin another TARGET=."""
    return [piece for piece in re.split(r",(?=\s*\w+\s*=)", text) if piece.strip()]


def _check(target: str, text: str) -> None:
    pieces = text.split("|")
    if len(pieces) > 1 and target not in _CANDIDATES:
        raise ConfigError(f"--map {target}={text}: `|` lists candidates, which only {sorted(_CANDIDATES)} have")
    for piece in pieces:
        if target in _REWARDS and not is_path(piece):
            parse_reward(piece, f"--map {target}={text}")
        else:
            split_joined(piece)


def is_path(text: str) -> bool:
    """Whether a text is one path, not an expression: `a-b` is a name, `a - b` and `1-b` are differences."""
    return re.fullmatch(r"[^+*/()|\s\d-][^+*/()|\s]*", text.strip()) is not None


def split_joined(text: str) -> list[Path]:
    """Return the paths that `+` joins."""
    return [parse_path(piece) for piece in text.split("+")]


def parse_path(text: str) -> Path:
    """Parse a path such as `runs[0].samples[].text`; raise ConfigError if it is none."""
    steps: list[Step] = []
    rest = text.strip()
    while rest:
        match = _STEP.match(rest)
        if match is None or len(steps) == _MAX_STEPS:
            raise ConfigError(f"--map {text!r}: expected names with dots between them, [] for the items of a list")
        index, name = match.groups()
        steps.append(name if name is not None else int(index) if index else None)
        rest = rest[match.end() :].removeprefix(".")
    if not steps:
        raise ConfigError("--map: expected the path of a field, got nothing")
    return tuple(steps)


def _at(value: Any, path: Path, where: str) -> Any:
    """Return the value at a path; raise BadRecord that names the keys at the place where the path ends."""
    for position, step in enumerate(path):
        if step is None:
            if not isinstance(value, list):
                raise BadRecord(f"{where} leads nowhere ({_spell(path[:position])} is {kind_of(value)}, not a list)")
            items = [_at(item, path[position + 1 :], where) for item in value]
            # A list of lists of candidates is one list of candidates.
            nested = None in path[position + 1 :]
            return [inner for item in items for inner in item] if nested else items
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                raise BadRecord(f"{where} leads nowhere ({_spell(path[:position])} has no item {step})")
            value = value[step]
            continue
        if not isinstance(value, dict):
            raise BadRecord(f"{where} leads nowhere ({_spell(path[:position])} is {kind_of(value)}, without {step!r})")
        if step in value:
            value = value[step]
            continue
        # A key that has dots in it was parsed as several steps.
        for end in range(len(path), position + 1, -1):
            key = ".".join(map(str, path[position:end]))
            if key in value:
                return _at(value[key], path[end:], where)
        keys = ", ".join(list(map(str, value))[:_NUM_KEYS]) + (", ..." if len(value) > _NUM_KEYS else "")
        raise BadRecord(
            f"{where} leads nowhere (no {step!r} in {_spell(path[:position])}, which has {keys or 'no keys'})"
        )
    return value


def _rewards(row: Any, text: str, where: str) -> list[float | None]:
    """Return the rewards of a path (several for a `[]` path) or of an expression; None where there is no number."""
    try:
        if is_path(text):
            value = _at(row, parse_path(text), where)
            return [score(item) for item in value] if "[]" in text and isinstance(value, list) else [score(value)]
        return [evaluate(parse_reward(text), lambda name: score(_at(row, parse_path(name), where)))]
    except BadRecord:
        return [None]


def remove_paths(row: Json, paths: Iterator[Path]) -> Json:
    """Return a copy of a record without the fields at these paths; what stands beside them stays."""
    for path in paths:
        row = _without(row, path)
    return row


def _without(value: Any, path: Path) -> Any:
    first, rest = path[0], path[1:]
    if first is None and isinstance(value, list):
        return [_without(item, rest) if rest else None for item in value]
    if isinstance(first, int) and isinstance(value, list) and -len(value) <= first < len(value):
        changed = list(value)
        changed[first] = _without(value[first], rest) if rest else None
        return changed
    if not isinstance(first, str) or not isinstance(value, dict):
        return value
    if first not in value:
        # A key with dots in it, as in `_at`.
        names = [".".join(map(str, path[:end])) for end in range(len(path), 1, -1)]
        return {key: item for key, item in value.items() if key not in names}
    inner = _without(value[first], rest) if rest else None
    is_empty = inner is None or inner in ({}, []) or (isinstance(inner, list) and not any(inner))
    return {key: inner if key == first else item for key, item in value.items() if key != first or not is_empty}


def missing_fields(rows: list[Any], fields: FieldMap) -> str | None:
    """Return why a map does not fit any of these records, or None if each of its targets is in one of them."""
    for target in fields.fields:
        if target == "records":
            continue
        reason = None
        for row in rows:
            try:
                if target in _REWARDS:
                    names = [name for piece in fields.fields[target].split("|") for name in _reward_paths(piece)]
                    for path in names:
                        _at(row, path, f"--map {target}={fields.fields[target]}")
                elif "|" in fields.fields[target]:
                    fields.candidates(row, target)
                else:
                    fields.value(row, target)
                reason = None
                break
            except BadRecord as error:
                reason = reason or str(error)
        if reason is not None:
            return reason
    return None


def _reward_paths(text: str) -> list[Path]:
    return [parse_path(text)] if is_path(text) else [parse_path(name) for name in _names_in(parse_reward(text))]


def _names_in(tree: ast.expr) -> list[str]:
    """Return the names and dotted paths of an expression."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner]
    return [ast.unparse(node) for node in nodes]


def _joined(values: list[Any], where: str) -> str:
    """Join texts with a blank line between them; empty ones are left out."""
    if not all(value is None or isinstance(value, str) for value in values):
        raise BadRecord(f"{where}: only texts can be joined")
    return "\n\n".join(value for value in values if value)


def _spell(path: Path) -> str:
    text = ""
    for step in path:
        text += f".{step}" if isinstance(step, str) else "[]" if step is None else f"[{step}]"
    return text.removeprefix(".") or "the record"
