"""The field map of `--map`: which field of a record is its prompt, its completion, its reward, ...

    --map prompt=request.body.text,completion=result.text,reward=eval.judge.score,task=case.id
    --map 'messages=log,role=who,content=said,roles={Kunde: user, Berater: assistant}'        inside a list of messages
    --map 'prompt=q,completion=a,reward=quality,scores={great: 2, fine: 1, poor: 0, skipped: null}'
    --map 'records=answers,join=questions.id=question_id,prompt=questions.text,completion=text'    two SQLite tables
    --map own.yaml                                                              the same, one target per line

A path is a list of names joined by dots; `[]` iterates over a list (`samples[].text` gives several candidates), `[0]`
takes one item. A name that itself contains a dot is found, too. `+` joins texts (`prompt=context+question`), `|` lists
candidates (`completion=response_a|response_b,reward=score_a|score_b`). A reward may be an expression, as in `--reward`.
A map is checked when it is parsed; the error for a missing path lists the existing keys.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path as File
from typing import Any

import msgspec
from ruamel.yaml import YAML

from pairwright.config.plain_yaml import read_yaml
from pairwright.errors import ConfigError
from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, kind_of, score
from pairwright.sources.reward_expressions import evaluate, names_in, parse_reward
from pairwright.sources.score_values import read_score
from pairwright.sources.shapes.any_messages import decode_json_text

# How to read the file: the list or table that holds the records, a second table to join, the CSV dialect.
_OF_FILE = ("records", "join", "delimiter", "encoding", "decimal")
# Fields of one message: an item of `messages`, or a row if `session` names its conversation.
OF_MESSAGE = ("role", "content", "calls", "arguments", "results")
_TABLES = ("roles", "scores")  # translate values of the file
TARGETS = (
    *("prompt", "system", "tools", "messages", "completion", "chosen", "rejected"),
    *("reward", "chosen_reward", "rejected_reward", "best", "task", "run", "model", "session"),
    *OF_MESSAGE,
    *_TABLES,
    *_OF_FILE,
)
# Mapped targets that every record must have; others may be absent from some records.
REQUIRED = frozenset({"prompt", "messages", "completion", "chosen", "rejected"})
_REWARDS = frozenset({"reward", "chosen_reward", "rejected_reward"})
_CANDIDATES = frozenset({"completion", "reward", "model"})
_ROLES = ("system", "user", "assistant", "tool")
# One step of a path: a name or an index; "[]" has no number.
_STEP = re.compile(r"\[(-?\d*)\]|([^.\[\]]+)")
_MAX_STEPS = 32
_NUM_KEYS = 12  # in an error message

Step = str | int | None  # a key, the index of an item, or None: every item
Path = tuple[Step, ...]


class FieldMap(msgspec.Struct, frozen=True):
    """A parsed map: target -> text as written."""

    fields: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.fields)

    def __contains__(self, target: str) -> bool:
        return target in self.fields

    @property
    def names_fields(self) -> bool:
        """Whether the map names parts of a record; otherwise it only says how to read the file, in any format."""
        return any(target not in _OF_FILE for target in self.fields)

    @property
    def names_messages(self) -> bool:
        """Whether the map names fields inside the messages."""
        return any(target in self.fields for target in (*OF_MESSAGE, "roles"))

    @property
    def roles(self) -> dict[str, str]:
        """The role of each value of the `role` field, or of each label of a transcript, in lower case."""
        return {name.lower(): str(role) for name, role in parse_table(self.fields.get("roles", ""), "roles").items()}

    def number(self, value: Any) -> float | None:
        """Return the number of a score, translated by the table `scores` if given; BadRecord for an unlisted word."""
        if "scores" not in self.fields:
            return read_score(value)
        if value is None or value == "":
            return None
        table = parse_table(self.fields["scores"], "scores")
        text = _as_key(value)
        if text not in table:
            if (number := score(value)) is not None:
                return number  # an unlisted number is its own score
            raise BadRecord(f"--map scores: {text!r:.40} is not among {', '.join(table)}")
        return None if table[text] in ("null", "none", "") else score(table[text])

    @property
    def text(self) -> str:
        """The map as text for `--map`."""
        return ",".join(f"{target}={path}" for target, path in self.fields.items())

    def value(self, row: Any, target: str) -> Any:
        """Return a target's value in a record; the texts of `+` have a blank line between them."""
        where = f"--map {target}={self.fields[target]}"
        values = [_at(row, path, where) for path in split_joined(self.fields[target])]
        if len(values) == 1:
            return values[0]
        if not all(isinstance(value, str | None) for value in values):
            raise BadRecord(f"{where}: only texts can be joined")
        return "\n\n".join(value for value in values if value)

    def optional(self, row: Any, target: str) -> Any:
        """Return a target's value in a record, or None if it is missing."""
        try:
            return self.value(row, target) if target in self.fields else None
        except BadRecord:
            return None

    def candidates(self, row: Any, target: str) -> list[Any]:
        """Return the values of a target that lists candidates: those between `|`, or the items of a `[]` path."""
        texts = self.fields[target].split("|")
        where = f"--map {target}={self.fields[target]}"
        if target in _REWARDS:
            return [number for text in texts for number in self._rewards(row, text.strip())]
        if len(texts) > 1:
            return [_at(row, parse_path(text), where) for text in texts]
        value = self.value(row, target)
        return value if "[]" in self.fields[target] and isinstance(value, list) else [value]

    def _rewards(self, row: Any, text: str) -> list[float | None]:
        """Return the rewards of a path (several for a `[]` path) or of an expression; None for a missing number."""
        if not is_path(text):
            return [evaluate(parse_reward(text), lambda name: self.number(value_at_path(row, parse_path(name))))]
        value = value_at_path(row, parse_path(text))
        return list(map(self.number, value if "[]" in text and isinstance(value, list) else [value]))

    def paths(self) -> Iterator[Path]:
        for target in self._record_targets():
            yield from self._paths_of(target)

    def missing_field(self, rows: list[Any]) -> str | None:
        """Return why the map fits none of these records, or None if each target is in at least one record."""
        for target in self._record_targets():
            reasons = [self._why_missing(row, target) for row in rows]
            if rows and all(reasons):
                return reasons[0]
        return None

    def _record_targets(self) -> list[str]:
        others = (*_OF_FILE, *_TABLES, *(OF_MESSAGE if "session" not in self.fields else ()))
        return [target for target in self.fields if target not in others]

    def _paths_of(self, target: str) -> Iterator[Path]:
        for piece in self.fields[target].split("|"):
            if target in _REWARDS and not is_path(piece):
                yield from (parse_path(name) for name in names_in(parse_reward(piece)))
            else:
                yield from split_joined(piece)

    def _why_missing(self, row: Any, target: str) -> str | None:
        try:
            for path in self._paths_of(target):
                _at(row, path, f"--map {target}={self.fields[target]}")
            if "+" in self.fields[target] and target not in _REWARDS:
                self.value(row, target)  # only texts can be joined
        except BadRecord as error:
            return str(error)
        return None


NO_MAP = FieldMap()


def parse_map(value: str | Mapping[str, Any] | FieldMap | None) -> FieldMap:
    """Parse a map from the text of `--map`, from a YAML file, or from a mapping of targets to paths.

    >>> parse_map("prompt=question, completion=samples[].text").fields
    {'prompt': 'question', 'completion': 'samples[].text'}
    """
    if value is None or isinstance(value, FieldMap):
        return value or NO_MAP
    if isinstance(value, str) and value.strip().endswith((".yaml", ".yml")):
        name = value.strip()
        # The base loader keeps every value as text: `yes: 1` is the word yes, not true.
        value = read_yaml(File(name), YAML(typ="base", pure=True))
        if not isinstance(value, dict):
            raise ConfigError(f"--map {name}: expected TARGET: FIELD lines")
    fields: dict[str, str] = {}
    # A comma ends a target if another TARGET= follows.
    pieces = [piece for piece in re.split(r",(?=\s*\w+\s*=)", value) if piece.strip()] if isinstance(value, str) else []
    entries = [piece.partition("=")[::2] for piece in pieces] if isinstance(value, str) else value.items()
    for target, text in entries:
        target = target.strip()
        text = table_text(text) if isinstance(text, Mapping) else str(text).strip()
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
    if "best" in fields and "completion" not in fields:
        raise ConfigError("--map best: names one of several candidates, so name them with completion=A|B")
    if "chosen" in fields and "completion" in fields:
        raise ConfigError("--map: a record is a completion, or chosen and rejected; not both")
    inside = [target for target in (*OF_MESSAGE, "roles") if target in fields]
    if inside and "messages" not in fields and "session" not in fields:
        raise ConfigError(
            f"--map {inside[0]}: a field of a message, so name the list with messages=FIELD, or, where each row is one "
            "message, its conversation with session=FIELD"
        )
    if "arguments" in fields and "calls" not in fields:
        raise ConfigError("--map arguments: the arguments of a call, so name it with calls=FIELD")
    return FieldMap(fields)


def table_text(table: Mapping[Any, Any]) -> str:
    """Return a table as text for `--map`.

    >>> table_text({"good": 1, "bad": None})
    '{good: 1, bad: null}'
    """
    return (
        "{" + ", ".join(f"{_as_key(key)}: {'null' if value is None else value}" for key, value in table.items()) + "}"
    )


def _as_key(value: Any) -> str:
    """Return a value as a table key: 1, 1.0 and "1" are the same key."""
    if isinstance(value, bool):
        return "true" if value else "false"
    number = score(value)
    return str(value).strip() if number is None else f"{number:g}"


@lru_cache(maxsize=256)
def parse_table(text: str, target: str) -> dict[str, str]:
    """Parse a table such as `{good: 1, bad: 0}`; raise ConfigError for invalid text.

    >>> parse_table("{good: 1, 'so: so': 0.5}", "scores")
    {'good': '1', 'so: so': '0.5'}
    """
    table: dict[str, str] = {}
    inner = text.strip().removeprefix("{").removesuffix("}")
    for piece in re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^,])+", inner):
        key, colon, value = piece.rpartition(":")
        key, value = _as_key(key.strip().strip("'\"")), value.strip().strip("'\"")
        if not colon or not key:
            raise ConfigError(f"--map {target}={text}: expected {{value: {'role' if target == 'roles' else 'number'}}}")
        if target == "roles" and value not in _ROLES:
            raise ConfigError(f"--map roles: {key!r} is {value!r}, expected one of {', '.join(_ROLES)}")
        if target == "scores" and value not in ("null", "none", "") and score(value) is None:
            raise ConfigError(f"--map scores: {key!r} is {value!r}, expected a number, or null for no score")
        table[key] = value
    return table


def _check(target: str, text: str) -> None:
    if target in _TABLES:
        parse_table(text, target)
        return
    if target in _OF_FILE and target != "records":
        return  # checked when the table is read
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
    return [parse_path(piece) for piece in text.split("+")]


def parse_path(text: str) -> Path:
    """Parse a path such as `runs[0].samples[].text`; raise ConfigError if it is invalid."""
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
    """Return the value at a path, also inside JSON text; if a step is missing, raise BadRecord that lists the keys."""
    for position, step in enumerate(path):
        value = decode_json_text(value)
        if step is None:
            if not isinstance(value, list):
                raise BadRecord(f"{where} not found ({_spell(path[:position])} is {kind_of(value)}, not a list)")
            items = [_at(item, path[position + 1 :], where) for item in value]
            nested = None in path[position + 1 :]
            return [inner for item in items for inner in item] if nested else items
        if isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                raise BadRecord(f"{where} not found ({_spell(path[:position])} has no item {step})")
            value = value[step]
            continue
        if not isinstance(value, dict):
            raise BadRecord(f"{where} not found ({_spell(path[:position])} is {kind_of(value)}, without {step!r})")
        if step in value:
            value = value[step]
            continue
        # A key that contains dots was parsed as several steps.
        for end in range(len(path), position + 1, -1):
            key = ".".join(map(str, path[position:end]))
            if key in value:
                return _at(value[key], path[end:], where)
        keys = ", ".join(list(map(str, value))[:_NUM_KEYS]) + (", ..." if len(value) > _NUM_KEYS else "")
        raise BadRecord(f"{where} not found (no {step!r} in {_spell(path[:position])}, which has {keys or 'no keys'})")
    return value


def value_at_path(row: Any, path: Path) -> Any:
    """Return the value at a path, or None if it is missing."""
    try:
        return _at(row, path, "")
    except BadRecord:
        return None


def remove_paths(row: Json, paths: Iterator[Path]) -> Json:
    for path in paths:
        row = _without(row, path)
    return row


def _without(value: Any, path: Path) -> Any:
    first, rest = path[0], path[1:]
    if isinstance(value, str):
        return value if decode_json_text(value) is value else None  # JSON text that the map reads
    if first is None and isinstance(value, list):
        return [_without(item, rest) if rest else None for item in value]
    if isinstance(first, int) and isinstance(value, list) and -len(value) <= first < len(value):
        changed = list(value)
        changed[first] = _without(value[first], rest) if rest else None
        return changed
    if not isinstance(first, str) or not isinstance(value, dict):
        return value
    if first not in value:
        # A key that contains dots, as in `_at`.
        names = [".".join(map(str, path[:end])) for end in range(len(path), 1, -1)]
        return {key: item for key, item in value.items() if key not in names}
    inner = _without(value[first], rest) if rest else None
    is_empty = inner is None or inner in ({}, []) or (isinstance(inner, list) and not any(inner))
    return {key: inner if key == first else item for key, item in value.items() if key != first or not is_empty}


def _spell(path: Path) -> str:
    text = ""
    for step in path:
        text += f".{step}" if isinstance(step, str) else "[]" if step is None else f"[{step}]"
    return text.removeprefix(".") or "the record"
