"""The queries of the page by name: `experiences.rows`, `pairs.pair`, ... Used by the server and by `--export`.

Parameters are strings, as in a URL; each may occur several times. They are validated here.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pairwright import __version__
from pairwright.errors import ConfigError
from pairwright.view.decision_queries import Decisions
from pairwright.view.experience_queries import ExperienceQueries
from pairwright.view.library import Item, Kind, Library
from pairwright.view.pair_queries import PairQueries
from pairwright.view.row_queries import MAX_PAGE, Query, RowQueries
from pairwright.view.run_queries import RunQueries
from pairwright.view.token_queries import TokenQueries

Parameters = Mapping[str, Sequence[str]]
_QUERIES: dict[Kind, Callable[[Item, Library], Any]] = {
    "experiences": ExperienceQueries,
    "pairs": PairQueries,
    "tokens": TokenQueries,
}


class Answers:
    def __init__(self, library: Library) -> None:
        self.library = library
        self._queries: dict[str, Any] = {}
        self._lock = threading.Lock()
        runs, decisions = RunQueries(library), Decisions(library)
        experiences, pairs, tokens = map(self._reader, _QUERIES)
        self.decisions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "decide.vote": lambda asked: decisions.vote(asked, pairs(_source(asked))),
            "decide.undo": lambda asked: decisions.undo_vote(asked, pairs(_source(asked))),
            "decide.rate": decisions.rate,
            "decide.unrate": decisions.undo_rating,
            "decide.turn": lambda asked: decisions.vote_on_turn(asked, experiences(_source(asked))),
            "decide.exclude": lambda asked: decisions.exclude(asked, experiences(_source(asked))),
        }
        self.questions: dict[str, Callable[[Parameters], Any]] = {
            "library": self._list_library,
            "runs.list": lambda _: runs.list_runs(),
            "runs.run": lambda asked: runs.read_run(_text(asked, "source")),
            "experiences.rows": lambda asked: experiences(asked).list_rows(_query(asked), *_page(asked)),
            "experiences.snippets": lambda asked: _read_snippets(experiences(asked).rows, asked),
            "experiences.facets": lambda asked: experiences(asked).list_facets(_query(asked)),
            "experiences.tasks": lambda asked: experiences(asked).list_tasks(_query(asked), *_page(asked)),
            "experiences.record": lambda asked: experiences(asked).read_record(*_record(asked)),
            "experiences.raw": lambda asked: experiences(asked).read_raw(*_record(asked)),
            "experiences.lineage": lambda asked: experiences(asked).read_lineage(_text(asked, "uid")),
            "pairs.rows": lambda asked: pairs(asked).list_rows(_query(asked), *_page(asked)),
            "pairs.snippets": lambda asked: _read_snippets(pairs(asked).rows, asked),
            "pairs.facets": lambda asked: pairs(asked).list_facets(_query(asked)),
            "pairs.pair": lambda asked: pairs(asked).read_pair(
                _query(asked), position=_optional_number(asked, "position"), identity=_text(asked, "id", "")
            ),
            "pairs.raw": lambda asked: pairs(asked).read_raw(_text(asked, "id")),
            "tokens.rows": lambda asked: tokens(asked).list_rows(_query(asked), *_page(asked)),
            "tokens.facets": lambda asked: tokens(asked).list_facets(_query(asked)),
            "tokens.sequence": lambda asked: tokens(asked).read_sequence(_number(asked, "row")),
            "evaluation.tasks": lambda asked: runs.list_tasks(
                _text(asked, "source"), _text(asked, "metric", ""), *_page(asked), _text(asked, "q", "")
            ),
            "evaluation.task": lambda asked: runs.read_task(_text(asked, "source"), _text(asked, "task")),
            "decide.next": lambda asked: decisions.next_pair(pairs(asked), **_in_queue(asked, "gap", "id")),
            "decide.summary": lambda asked: decisions.summarize(pairs(asked), _text(asked, "source")),
            "decide.record": lambda asked: decisions.next_record(
                experiences(asked), **_in_queue(asked, "random", "uid")
            ),
            "decide.ratings": lambda asked: decisions.summarize_ratings(experiences(asked), _text(asked, "source")),
            "decide.exclusions": lambda asked: decisions.list_exclusions(_text(asked, "source")),
        }

    def answer(self, question: str, asked: Parameters) -> Any:
        return self.questions[question](asked)

    def queries(self, asked: Parameters, kind: Kind) -> Any:
        """Return the queries over the requested table; opened once."""
        key = _text(asked, "source")
        with self._lock:
            item = self.library.get(key, kind)
            if key not in self._queries:
                self._queries[key] = _QUERIES[kind](item, self.library)
            return self._queries[key]

    def _reader(self, kind: Kind) -> Callable[[Parameters], Any]:
        """Return a function that opens the requested table."""
        return lambda asked: self.queries(asked, kind)

    def _list_library(self, _: Parameters) -> dict[str, Any]:
        before = set(self.library.items)
        self.library.refresh()
        if set(self.library.items) != before:
            with self._lock:  # relations between items may have changed
                self._queries.clear()
        return {"version": __version__, "items": self.library.as_json()}


def _read_snippets(rows: RowQueries, asked: Parameters) -> Any:
    numbers = [_parse_number("row", text) for text in asked.get("row", ())]
    if len(numbers) > MAX_PAGE:
        raise ConfigError(f"row: at most {MAX_PAGE} rows, got {len(numbers):,}")
    return rows.snippets(numbers, _text(asked, "q"), rows.snapshot())


def _source(decision: dict[str, Any]) -> Parameters:
    """Return the table that a decision names, as a parameter."""
    return {"source": [str(decision.get("source", ""))]}


def _in_queue(asked: Parameters, order: str, identity: str) -> dict[str, Any]:
    """Return the parameters of a queue: voter, order, and the requested id, if any."""
    return {
        "source": _text(asked, "source"),
        "voter": _text(asked, "voter"),
        "order": _text(asked, "order", order),
        "is_blind": _text(asked, "blind", "1") == "1",
        "identity": _text(asked, identity, ""),
    }


def _query(asked: Parameters) -> Query:
    return Query(tuple(asked.get("w", ())), _text(asked, "q", ""), _text(asked, "sort", ""))


def _text(asked: Parameters, name: str, default: str | None = None) -> str:
    values = asked.get(name, ())
    if values:
        return values[0]
    if default is None:
        raise ConfigError(f"{name}: expected a value")
    return default


def _optional_number(asked: Parameters, name: str) -> int | None:
    return _number(asked, name) if asked.get(name) else None


def _number(asked: Parameters, name: str, default: int | None = None) -> int:
    return _parse_number(name, _text(asked, name, None if default is None else str(default)))


def _parse_number(name: str, text: str) -> int:
    # isdecimal also accepts digits of other scripts, as int() does; signs are refused.
    if not text.isdecimal() or len(text) > 15:
        raise ConfigError(f"{name}: got {text!r:.100}, expected a whole number")
    return int(text)


def _page(asked: Parameters) -> tuple[int, int]:
    return _number(asked, "offset", 0), max(1, min(MAX_PAGE, _number(asked, "limit", 100)))


def _record(asked: Parameters) -> tuple[str, int | None]:
    """Return the id of a record, and the row in which it was last seen."""
    return _text(asked, "uid"), _optional_number(asked, "row")
