"""Conditions on the columns of a row, for `--where` and the page: a small SQL grammar, parsed to Polars expressions.

    condition   comparisons (= != <> < <= > >=), AND, OR, NOT, (NOT) IN (a, b), (NOT) BETWEEN a AND b, (NOT) LIKE,
                (NOT) ILIKE, IS (NOT) NULL, IS (NOT) TRUE, IS (NOT) FALSE
    value       a column, "a column", 1.5, 'text' ('' is a quote in it), TRUE, FALSE, NULL, + - * / %, || (joins texts),
                CASE WHEN condition THEN value ELSE value END, CAST(value AS type), a function of `FUNCTIONS`

Conditions are parsed only here. They can use columns of the row and the functions below, but cannot open a file, a
connection or another row. A library's SQL parser would also accept table functions.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import polars as pl
import pyarrow as pa

from pairwright.errors import ConfigError
from pairwright.store.columns import SCHEMA

MAX_CHARACTERS = 100_000
MAX_NESTING = 40  # of parentheses, NOT and signs
MAX_VALUES = 500  # items of an IN list are not counted

_SHOWN = 200  # characters of a condition in a message
_ONE_ROW = "a condition sees one row's columns, without aggregates, windows or subqueries"
_EXAMPLE = "write it such as \"reward > 0.5 AND task != 'x'\" (docs: Table)"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment> --|/\*)
      | (?P<number>  (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>    '(?:[^']|'')*')
      | (?P<quoted>  "(?:[^"]|"")*")
      | (?P<name>    [^\W\d]\w*)
      | (?P<sign>    <=|>=|<>|!=|==|\|\||[=<>+\-*/%(),])
      | (?P<end>     \Z)
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({
    "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE", "IS", "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN",
    "ELSE", "END", "CAST", "AS",
})  # fmt: skip

# Precedence of operators and their functions; AND, OR, NOT and the tests of `_test` have the precedence of SQL.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _SIGN = range(1, 8)
_COMPARISONS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, tuple[int, Callable[[pl.Expr, pl.Expr], pl.Expr]]] = {
    "+": (_SUM, operator.add),
    "-": (_SUM, operator.sub),
    "||": (_SUM, lambda a, b: pl.concat_str(a, b)),
    "*": (_PRODUCT, operator.mul),
    "/": (_PRODUCT, operator.truediv),
    "%": (_PRODUCT, operator.mod),
}
_TYPES: dict[str, type[pl.DataType]] = {
    "INT": pl.Int64, "INTEGER": pl.Int64, "BIGINT": pl.Int64, "FLOAT": pl.Float64, "DOUBLE": pl.Float64,
    "TEXT": pl.String, "VARCHAR": pl.String, "BOOLEAN": pl.Boolean,
}  # fmt: skip

# Name -> (minimum and maximum number of arguments, function). No result is longer than all arguments together.
FUNCTIONS: dict[str, tuple[int, int, Callable[..., pl.Expr]]] = {
    "ABS": (1, 1, pl.Expr.abs),
    "CEIL": (1, 1, pl.Expr.ceil),
    "FLOOR": (1, 1, pl.Expr.floor),
    "ROUND": (1, 1, pl.Expr.round),
    "SQRT": (1, 1, pl.Expr.sqrt),
    "EXP": (1, 1, pl.Expr.exp),
    "LN": (1, 1, pl.Expr.log),
    "POWER": (2, 2, pl.Expr.pow),
    "SIGN": (1, 1, pl.Expr.sign),
    "MOD": (2, 2, operator.mod),
    "GREATEST": (1, 20, pl.max_horizontal),
    "LEAST": (1, 20, pl.min_horizontal),
    "COALESCE": (1, 20, pl.coalesce),
    "IFNULL": (2, 2, pl.coalesce),
    "NULLIF": (2, 2, lambda a, b: pl.when(a.eq_missing(b)).then(None).otherwise(a)),
    "LENGTH": (1, 1, lambda text: text.str.len_chars()),
    "CHAR_LENGTH": (1, 1, lambda text: text.str.len_chars()),
    "OCTET_LENGTH": (1, 1, lambda text: text.str.len_bytes()),
    "LOWER": (1, 1, lambda text: text.str.to_lowercase()),
    "UPPER": (1, 1, lambda text: text.str.to_uppercase()),
    "TRIM": (1, 1, lambda text: text.str.strip_chars()),
    "LTRIM": (1, 1, lambda text: text.str.strip_chars_start()),
    "RTRIM": (1, 1, lambda text: text.str.strip_chars_end()),
    "LEFT": (2, 2, lambda text, size: text.str.head(size)),
    "RIGHT": (2, 2, lambda text, size: text.str.tail(size)),
    "SUBSTR": (2, 3, lambda text, start, size=None: text.str.slice(pl.max_horizontal(start - 1, 0), size)),
    "CONCAT": (1, 20, lambda *texts: pl.concat_str(*texts, ignore_nulls=True)),
    "STARTS_WITH": (2, 2, lambda text, part: text.str.starts_with(part)),
    "ENDS_WITH": (2, 2, lambda text, part: text.str.ends_with(part)),
    # Position of the text, from 1; 0 if it is not found.
    "STRPOS": (2, 2, lambda text, part: (text.str.find(part, literal=True) + 1).fill_null(0)),
    "ARRAY_LENGTH": (1, 1, lambda items: items.list.len()),
}


def parse_where(text: str, schema: pa.Schema = SCHEMA, *, option: str = "--where") -> pl.Expr:
    """Parse a condition on the columns of a row into a Boolean Polars expression; raises ConfigError if invalid.

    >>> parse_where("reward > 0.5 AND kind = 'multi_turn'").meta.root_names()
    ['reward', 'kind']
    """
    return _Parser(text, schema, option).parse()


@dataclass(frozen=True)
class _Value:
    """An expression, its position in the text, and its value if it is a literal number or text."""

    expression: pl.Expr
    at: int
    literal: int | float | str | None = None


class _Parser:
    """Parses one condition by precedence climbing; `_kind`, `_text` and `_at` describe the next token."""

    def __init__(self, text: str, schema: pa.Schema, option: str) -> None:
        self._source, self._schema, self._option = text, schema, option
        self._kind, self._text, self._at, self._end = "", "", 0, 0
        self._depth = self._num_values = 0
        self._empty = pl.DataFrame(pa.Table.from_batches([], schema=schema))
        self._conditions: list[_Value] = []  # operands that must be Boolean

    def parse(self) -> pl.Expr:
        if len(self._source) > MAX_CHARACTERS:
            self._fail(0, f"has {len(self._source):,} characters, at most {MAX_CHARACTERS:,} are read")
        self._advance()
        whole = self._value(_OR)
        if self._kind != "end":
            self._fail(self._at, f"expected AND, OR or the end, got {self._shown()}")
        if not whole.expression.meta.root_names():
            self._fail(0, f"names no column; {_ONE_ROW}")
        self._check_types(whole)
        # As in SQL, rows for which the condition is null are not selected.
        return whole.expression.fill_null(False)

    def _check_types(self, whole: _Value) -> None:
        """Resolve the expression against an empty frame, to find type errors (text > number) before reading rows."""
        for value in [*self._conditions, whole]:
            if (kind := self._type(value)) not in (pl.Boolean, pl.Null):
                self._fail(value.at, f"a value of type {kind}, expected a condition")
        try:
            self._empty.filter(whole.expression)
        except pl.exceptions.PolarsError as error:
            self._fail(None, str(error).splitlines()[0].rstrip("."))

    def _type(self, value: _Value) -> pl.DataType:
        try:
            return self._empty.lazy().select(value.expression.alias("value")).collect_schema()["value"]
        except pl.exceptions.PolarsError as error:
            self._fail(value.at, str(error).splitlines()[0].rstrip("."))

    def _value(self, power: int) -> _Value:
        """Parse a value whose operators bind at least as strongly as `power`."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail(self._at, f"nested more than {MAX_NESTING} deep")
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._fail(self._at, f"more than {MAX_VALUES:,} values; put alternatives into a list: task IN ('a', 'b')")
        left = self._first()
        while True:
            word = self._operator()
            if word in ("AND", "OR") and power <= (bound := _AND if word == "AND" else _OR):
                left = self._joined(left, word, bound)
            elif word in _COMPARISONS and power <= _TEST:
                self._advance()
                right = self._value(_TEST + 1)
                left = _Value(_COMPARISONS[word](left.expression, right.expression), left.at)
            elif word in ("IS", "NOT", "IN", "BETWEEN", "LIKE", "ILIKE") and power <= _TEST:
                left = self._test(left)
            elif word in _ARITHMETIC and power <= (bound := _ARITHMETIC[word][0]):
                self._advance()
                right = self._value(bound + 1)
                left = _Value(_ARITHMETIC[word][1](left.expression, right.expression), left.at)
            else:
                break
        self._depth -= 1
        return left

    def _joined(self, first: _Value, word: str, power: int) -> _Value:
        """Parse the remaining operands of AND or OR and join them pairwise, so that a long chain stays shallow."""
        operands = [first]
        while self._take(word):
            operands.append(self._value(power + 1))
        self._conditions += operands
        parts = [operand.expression for operand in operands]
        join = operator.and_ if word == "AND" else operator.or_
        while len(parts) > 1:
            parts = [*map(join, parts[::2], parts[1::2]), *parts[len(parts) // 2 * 2 :]]
        return _Value(parts[0], first.at)

    def _first(self) -> _Value:
        """Parse a prefix: NOT, a sign, a parenthesis, CASE, CAST, a literal, a function or a column."""
        at, kind, text, word = self._at, self._kind, self._text, self._operator()
        if kind in ("number", "text"):
            return self._literal()
        if kind == "end":
            self._fail(at, "the condition ends, expected a column, a number or a 'text'")
        self._advance()
        if word == "SELECT":
            self._fail(at, _ONE_ROW)
        if word == "NOT":
            operand = self._value(_NOT)
            self._conditions.append(operand)
            return _Value(~operand.expression, at)
        if word in ("+", "-"):
            operand = self._value(_SIGN)
            if not isinstance(operand.literal, int | float):
                return _Value(-operand.expression if word == "-" else operand.expression, at)
            number = -operand.literal if word == "-" else operand.literal
            return _Value(pl.lit(number), at, number)
        if word == "(":
            inner = self._value(_OR)
            self._expect(")")
            return _Value(inner.expression, at, inner.literal)
        if word in ("TRUE", "FALSE", "NULL"):
            return _Value(pl.lit({"TRUE": True, "FALSE": False, "NULL": None}[word]), at)
        if word == "CASE":
            return _Value(self._case(), at)
        if word == "CAST":
            return _Value(self._cast(), at)
        if kind == "quoted" or (kind == "name" and word not in _KEYWORDS):
            if kind == "name" and self._operator() == "(":
                return _Value(self._function(at, text), at)
            return _Value(self._column(at, text), at)
        return self._fail(at, f"expected a column, a number or a 'text', got {text!r}")

    def _literal(self) -> _Value:
        at, text = self._at, self._text
        value: int | float | str
        if self._kind == "text":
            value = text[1:-1].replace("''", "'")
        else:
            value = int(text) if text.isdecimal() and len(text) < 19 else float(text)
            if not math.isfinite(value):
                self._fail(at, "a number that is too large")
        self._advance()
        return _Value(pl.lit(value), at, value)

    def _test(self, value: _Value) -> _Value:
        """Parse a test after a value: IS NULL, or (NOT) IN, BETWEEN, LIKE, ILIKE."""
        is_negated = self._take("NOT")
        at, word, column = self._at, self._operator(), value.expression
        self._advance()
        if word == "IS" and not is_negated:
            is_negated = self._take("NOT")
            name = self._operator()
            if name not in ("NULL", "TRUE", "FALSE"):
                self._fail(self._at, f"expected NULL, TRUE or FALSE, got {self._shown()}")
            self._advance()
            if name != "NULL":
                self._conditions.append(value)
            test = column.is_null() if name == "NULL" else column.eq_missing(name == "TRUE")
        elif word == "IN":
            test = column.is_in(self._list(self._type(value)).implode())
        elif word == "BETWEEN":
            low = self._value(_TEST + 1)
            self._expect("AND")
            test = column.is_between(low.expression, self._value(_TEST + 1).expression)
        elif word in ("LIKE", "ILIKE"):
            pattern = self._value(_TEST + 1)
            if not isinstance(pattern.literal, str):
                self._fail(pattern.at, f"{word} takes a 'text', in which % stands for any text and _ for one character")
            test = column.str.contains(self._like(pattern, is_case_sensitive=word == "LIKE"))
        else:
            self._fail(at, f"expected IN, BETWEEN or LIKE after NOT, got {word or 'the end'}")
        return _Value(~test if is_negated else test, value.at)

    def _list(self, kind: pl.DataType) -> pl.Series:
        """Parse the literals of an IN list as a series comparable with values of type `kind`."""
        at = self._at
        self._expect("(")
        items: list[int | float | str] = []
        num_values = self._num_values
        while True:
            item = self._value(_SUM)
            self._num_values = num_values
            if item.literal is None:
                self._fail(item.at, "a list has numbers or 'texts'; a missing value is found with IS NULL")
            items.append(item.literal)
            if not self._take(","):
                break
        self._expect(")")
        if any(isinstance(item, str) for item in items) and not all(isinstance(item, str) for item in items):
            self._fail(at, "a list has either numbers or 'texts', not both")
        # `is_in` requires exactly the type of the values.
        if kind.is_float() and not isinstance(items[0], str):
            return pl.Series(items, dtype=pl.Float64, strict=False)
        if kind.is_integer() and not isinstance(items[0], str):
            # No integer value equals a fraction or exceeds 64 bits, so such items are dropped.
            return pl.Series([int(item) for item in items if item == int(item) and abs(item) < 2**63], dtype=pl.Int64)
        return pl.Series(items)

    def _like(self, pattern: _Value, *, is_case_sensitive: bool) -> str:
        parts = re.split(r"([%_])", str(pattern.literal))
        body = "".join({"%": ".*", "_": "."}.get(part) or pl.escape_regex(part) for part in parts)
        regex = f"(?s{'' if is_case_sensitive else 'i'})^{body}$"
        try:
            pl.Series([""]).str.contains(regex)
        except pl.exceptions.PolarsError:
            self._fail(pattern.at, "the pattern is too long")
        return regex

    def _case(self) -> pl.Expr:
        branches: list[tuple[pl.Expr, pl.Expr]] = []
        while self._take("WHEN"):
            condition = self._value(_OR)
            self._conditions.append(condition)
            self._expect("THEN")
            branches.append((condition.expression, self._value(_OR).expression))
        if not branches:
            self._fail(self._at, f"expected WHEN after CASE, got {self._shown()}")
        result = self._value(_OR).expression if self._take("ELSE") else pl.lit(None)
        self._expect("END")
        for condition_expression, value in reversed(branches):
            result = pl.when(condition_expression).then(value).otherwise(result)
        return result

    def _cast(self) -> pl.Expr:
        self._expect("(")
        value = self._value(_OR)
        self._expect("AS")
        name = self._text.upper()
        if name not in _TYPES:
            self._fail(self._at, f"no type {self._text!r:.40}; there are {', '.join(_TYPES)}")
        self._advance()
        self._expect(")")
        # Non-numeric text becomes null, so that one such row does not abort a scan.
        return value.expression.cast(_TYPES[name], strict=False)

    def _function(self, at: int, name: str) -> pl.Expr:
        if name.upper() not in FUNCTIONS:
            self._fail(
                at,
                f"unsupported function {name!r:.40}; {_ONE_ROW}; the functions are {', '.join(FUNCTIONS)}",
            )
        fewest, most, build = FUNCTIONS[name.upper()]
        self._expect("(")
        arguments: list[pl.Expr] = []
        while not self._take(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._value(_OR).expression)
        if not fewest <= len(arguments) <= most:
            wanted = fewest if fewest == most else f"{fewest} to {most}"
            self._fail(at, f"{name.upper()} has {len(arguments)} arguments, expected {wanted}")
        return build(*arguments)

    def _column(self, at: int, text: str) -> pl.Expr:
        name = text[1:-1].replace('""', '"') if text.startswith('"') else text
        if name in self._schema.names:
            return pl.col(name)
        near = difflib.get_close_matches(name.lower()[:100], self._schema.names, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; a text has single quotes: 'x'" if text[0] == '"' else ""
        return self._fail(at, f"no column {name!r:.100}; the table has {', '.join(self._schema.names)}{hint}")

    def _advance(self) -> None:
        match = _TOKEN.match(self._source, self._end)
        if match is None:
            rest = self._source[self._end :].lstrip()
            at = len(self._source) - len(rest)
            self._fail(at, "a quote that is not closed" if rest[0] in "'\"" else f"cannot read {rest[:10]!r}")
        self._kind = str(match.lastgroup)
        self._text, self._at, self._end = match[self._kind], match.start(self._kind), match.end()
        if self._kind == "comment":
            self._fail(self._at, "a condition has no comments")

    def _operator(self) -> str:
        """Return the next token: in upper case if it is a keyword or sign, else its text, or nothing."""
        return self._text.upper() if self._kind in ("name", "sign") else ""

    def _take(self, word: str) -> bool:
        if self._operator() != word:
            return False
        self._advance()
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(self._at, f"expected {word}, got {self._shown()}")

    def _shown(self) -> str:
        return "the end" if self._kind == "end" else repr(self._text[:40])

    def _fail(self, at: int | None, problem: str) -> NoReturn:
        source = self._source if len(self._source) <= _SHOWN else self._source[:_SHOWN] + "..."
        place = "" if at is None else f"at character {at + 1}: "
        raise ConfigError(f"{self._option} {source!r}: {place}{problem}. Next: {_EXAMPLE}")
