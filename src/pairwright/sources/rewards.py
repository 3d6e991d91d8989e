"""Selection of rewards: a component by name, an expression over components, or scores from a file.

`--reward correct` selects the component of that name, `--reward metadata.reward` a number in the record by its path;
`--reward "0.7*correct + 0.3*metadata.style"` combines them. Expressions may contain numbers, names, paths, + - * / and
parentheses; they are parsed, never executed as code.
"""

import csv
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pairwright.errors import SourceError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.sources.datasets.row_names import LOWER_IS_BETTER, answer_rank, is_score_name, words_of
from pairwright.sources.fields import identifier, index, value_at, words
from pairwright.sources.reward_expressions import evaluate, parse_reward
from pairwright.sources.score_values import read_score
from pairwright.sources.shapes.row_fields import REWARD_KEYS, reward_in

_MAX_SCORE_BYTES = 256 * 2**20
_MAX_DEPTH = 3  # of nested objects that are searched for numbers
_MAX_NAMES = 64  # of one record, for an error message
# Fields that hold the conversation; not searched for rewards.
_NO_SCORES = frozenset({"messages", "tools", "functions", "prompt", "completion", "conversations", "traj", "trajectory",
                        "response", "responses_create_params", "request", "usage", "not_read",
                        "other_events"})  # fmt: skip
_MAX_WORD = 40
_SCORE_WORDS = words("target outcome accepted quality feedback verified judge result status")
# Names of numbers that are common in logs and never scores.
_NO_SCORE_WORDS = words(
    """id ids nr no number num index idx ts time timestamp date created updated opened closed duration seconds ms s
    tokens token usd price seed temperature version run attempt step steps turn turns episode epoch page year age
    user session row line length size count port parallel stream store expected"""
)
_ID_KEYS = ("id", "uid", "session_id", "session", "trace_id")


def chosen_reward(exp: Experience, expression: str, row: Any = None) -> float | None:
    """Evaluate a name, path or expression for an experience and its decoded record; None if a number is missing."""
    named = reward_by_name(exp, expression, row)
    if named is not None:
        return named
    return evaluate(parse_reward(expression), lambda name: reward_by_name(exp, name, row))


def reward_by_name(exp: Experience, name: str, row: Any = None) -> float | None:
    """Look up a number by name or dotted path in the reward components, then the row, then `info` and `metrics`."""
    # A component named "reward" takes precedence over the record's reward.
    return first_score(name, {"reward": exp.reward} | exp.reward_components, row, exp.info, exp.metrics)


def first_score(name: str, *places: Any) -> float | None:
    """Return the first score with this name or dotted path among objects."""
    scores = (read_score(value_at(fields, name)) for fields in places)
    return next((number for number in scores if number is not None), None)


def reward_names(exp: Experience, row: Any = None) -> list[str]:
    """List the names and paths of the numbers in a record, those with score-like names first."""
    names: dict[str, None] = {"reward": None} if exp.reward is not None else {}
    names |= dict.fromkeys(name for name, value in exp.reward_components.items() if read_score(value) is not None)
    for fields in (row, exp.info, exp.metrics):
        leaves = ((path, value) for path, value in _leaf_paths(fields, 0) if read_score(value) is not None)
        names |= dict.fromkeys(path for path, _ in islice(leaves, _MAX_NAMES))
    return sorted(names, key=lambda name: not (is_score_name(name) or name in REWARD_KEYS))


def score_names(components: Json, info: Json) -> list[str]:
    """List possible values of `--reward` for an unscored record, likely ones first.

    A leading "-" marks a field where lower is better. "name: text" is a field with a score-like name whose text is
    not a known verdict.
    """
    likely = [name for name, value in components.items() if read_score(value) is not None]
    possible = []
    for path, value in islice(_leaf_paths(info, 0), _MAX_NAMES):
        words = words_of(path.rpartition(".")[2])
        number = read_score(value)
        if is_score_name(path.rpartition(".")[2]) or path in REWARD_KEYS or not _SCORE_WORDS.isdisjoint(words):
            is_word = (
                number is None and isinstance(value, str) and 0 < len(value) <= _MAX_WORD and "expected" not in words
            )
            likely += [path] if number is not None else [f"{path}: {value}"] if is_word else []
        elif number is not None and not LOWER_IS_BETTER.isdisjoint(words):
            likely.append(f"-{path}")
        elif number is not None and _NO_SCORE_WORDS.isdisjoint(words) and answer_rank("_".join(words)) is None:
            possible.append(path)
    return [*likely, *possible]


def _leaf_paths(fields: Any, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in fields.items() if isinstance(fields, dict) else ():
        if isinstance(value, bool | int | float | str):
            yield key, value
        elif depth < _MAX_DEPTH and key not in _NO_SCORES:
            yield from ((f"{key}.{path}", leaf) for path, leaf in _leaf_paths(value, depth + 1))


class Score(NamedTuple):
    """A row of a score file: the reward, and the task if the row has both an id and a task."""

    reward: float | None
    task: int | str | None = None


class Scores:
    """Rewards read from a file, keyed by record or session id, or by task and run (optionally step)."""

    def __init__(self, by_id: dict[str, Score], by_run: dict[tuple[str, int, int | None], Score]) -> None:
        self._by_id, self._by_run = by_id, by_run
        self.num_rows = len(by_id) + len(by_run)

    @property
    def example(self) -> str:
        """Return one key of the file, for error messages."""
        # (task, run, step); a step of None means the whole run.
        for task, run, step in self._by_run:
            return f"task {task!r}, run {run}" + ("" if step is None else f", step {step}")
        return next((f"id {name!r}" for name in self._by_id), "no row")

    def of(self, exp: Experience) -> tuple[Score, Any] | None:
        ids = _ids_of(exp)
        for key in ids:
            if key in self._by_id:
                return self._by_id[key], key
        # A session id may be used as task; the runs are then its branches, numbered from 0.
        branch = index(exp.info.get("branch")) or 0
        runs = [(str(exp.eid.task), exp.eid.run), *((name, branch) for name in ids)]
        # A score of the step takes precedence over one of the whole run.
        for task, run in runs:
            for place in ((task, run, exp.eid.step), (task, run, None)):
                if place in self._by_run:
                    return self._by_run[place], place
        return None


def read_scores(path: Path) -> Scores:
    """Read scores from CSV or JSON Lines.

    Each row has `reward` (or score, rating, or a label such as success) and either an id (`id`, `uid`, `session_id`,
    `session`, `trace_id`), optionally with the `task` of this record, or `task` and `run` with an optional `step`.
    """
    by_id: dict[str, Score] = {}
    by_run: dict[tuple[str, int, int | None], Score] = {}
    for number, row in enumerate(_score_rows(path), start=1):
        if not any(key in row for key in REWARD_KEYS):
            raise SourceError(f"{path}:{number}: no reward, score or rating in {sorted(map(str, row))}")
        used = reward_in(row)
        reward = None if used is None else used[1]
        name = next((identifier(row[key]) for key in _ID_KEYS if row.get(key)), None)
        task, run = identifier(row.get("task")), index(row.get("run"))
        if name is not None:
            by_id[str(name)] = Score(reward, task)
        elif task is not None and run is not None:
            by_run[str(task), run, index(row.get("step"))] = Score(reward)
        else:
            raise SourceError(f"{path}:{number}: expected an id, or a task and a run, beside the reward")
    return Scores(by_id, by_run)


def _score_rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > _MAX_SCORE_BYTES:
            raise SourceError(f"{path}: more than {_MAX_SCORE_BYTES:,} bytes of scores")
        # utf-8-sig: spreadsheets write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    if not text.lstrip().startswith("{"):
        csv.field_size_limit(_MAX_SCORE_BYTES)  # a column may hold whole transcripts
        try:
            return list(csv.DictReader(io.StringIO(text, newline="")))
        except csv.Error as error:
            raise SourceError(f"{path}: not valid CSV: {error}") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise SourceError(f"{path}:{number}: {error}") from None
    return rows


def matching_keys(exp: Experience) -> str:
    """Describe the keys that a score file can use for this experience, for error messages."""
    own, _, *named = _ids_of(exp)
    ids = f"id {named[0]!r}" if named else f"id {own!r}"
    return f"{ids}, or task {str(exp.eid.task)!r} with run {exp.eid.run}"


def _ids_of(exp: Experience) -> list[str]:
    """Return the ids that a score file can use for a record: its own, and the ids from its source in `info`."""
    named = [value for key, value in exp.info.items() if key == "id" or key.endswith("_id") or key == "uid"]
    return [exp.eid.uid, exp.eid.suffix, *(str(value) for value in named if isinstance(value, str | int))]
