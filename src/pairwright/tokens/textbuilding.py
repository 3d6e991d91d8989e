"""Text that templates build with `format`, `%`, `join`, `replace`: what Python gives, with owners, of bounded size."""

import itertools
import string
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedFormatter

from pairwright.tokens.limits import Limits
from pairwright.tokens.owned import Owned, join, join_with, owned, replace
from pairwright.tokens.refusals import TemplateLimit


class TextBuilder:
    """Builds text within limits; the environment is what `format` reads attributes with."""

    def __init__(self, environment: jinja2.Environment, limits: Limits) -> None:
        self.environment = environment
        self.limits = limits

    def text_of(self, value: Any) -> str:
        """`str(value)` with provenance, of bounded size."""
        if isinstance(value, dict | list | tuple | set | frozenset):
            self.limits.charge_nested(value)
        return str(value)

    def formatted(self, pattern: str, args: tuple[Any, ...], kwargs: Any, numbers: Iterator[int] | None = None) -> str:
        formatter, parts = SandboxedFormatter(self.environment), []
        numbers = itertools.count() if numbers is None else numbers
        for literal, field, spec, conversion in string.Formatter().parse(pattern):
            parts.append(literal)
            if field is None:
                continue
            if field == "" or field[0] in ".[":
                field = f"{next(numbers)}{field}"
            value, _ = formatter.get_field(field, args, kwargs)
            spec = self.formatted(spec, args, kwargs, numbers) if spec else ""
            if isinstance(value, str) and not spec and not conversion:
                parts.append(value)
                continue
            self._check_digits(spec)
            self.limits.charge_nested(value)
            text = formatter.format_field(formatter.convert_field(value, conversion), spec)
            parts.append(owned_as(value, text))
        self.limits.charge(sum(map(len, parts)))
        return join(parts)

    def percent(self, pattern: str, values: Any) -> str:
        """`pattern % values`: owners are kept where every field is a bare `%s`."""
        self._check_digits(pattern)
        self.limits.charge_nested(values)
        if isinstance(values, dict):
            self.limits.charge(len(pattern) * 8)
        items = values if isinstance(values, tuple) else (values,)
        literals = str.__str__(pattern).split("%s")
        if len(literals) == len(items) + 1 and not any("%" in literal for literal in literals):
            parts = [literals[0]]
            for item, literal in zip(items, literals[1:], strict=True):
                parts += [self.text_of(item), literal]
            return join(parts)
        plain: str = str.__mod__(pattern, values)
        self.limits.charge(len(plain))
        return plain

    def _check_digits(self, spec: str) -> None:
        """Widths and precisions of at most six digits, given as digits."""
        run = 0
        for char in spec:
            run = run + 1 if char.isdigit() else 0
            if run > 6:
                raise TemplateLimit(f"the chat template formats with a width of more than six digits: {spec[:40]!r}")
        if "*" in spec and "%" in spec:
            raise TemplateLimit("the chat template formats with a width that is computed")

    def joined(self, separator: str, values: Iterable[Any] = ()) -> str:
        parts = []
        for value in values:
            self.limits.tick()
            parts.append(value)
        self.limits.charge(sum(len(part) + len(separator) for part in parts if isinstance(part, str)))
        return join_with(separator, parts)

    def replaced(self, text: str, old: str, new: str, count: int = -1) -> str:
        times = text.count(old)
        self.limits.charge(len(text) + times * len(new))
        return replace(text, old, new, count)


def owned_as(source: Any, text: str) -> str:
    """Text made of one value: its owner's where there is one owner."""
    if isinstance(source, Owned) and len(source._runs) == 1:
        return owned(text, source._runs[0][1])
    return text
