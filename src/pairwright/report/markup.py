"""HTML and SVG as escaped markup, and numbers as text. All text is escaped, except Markup built by this module."""

import html
import re
from collections.abc import Iterable

# Elements without content: HTML void elements, and SVG shapes, which are closed by a slash
_VOID = {"meta", "link", "br", "hr", "img", "circle", "line", "path", "rect"}
# control characters, zero-width characters and direction overrides, which could disguise text
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
_SELF_CLOSED = {"circle", "line", "path", "rect"}


class Markup(str):
    """A string that is markup and is not escaped again."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Escape any value as text for a page; invisible characters become \\uXXXX."""
    if isinstance(text, Markup):
        return text
    spelled = _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
    return Markup(html.escape(spelled))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Build an element. `class_` is class, `stroke_width` is stroke-width; attributes of None or False are left out."""
    attribute_text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{attribute_text}{'/' if name in _SELF_CLOSED else ''}>")
    return Markup(f"<{name}{attribute_text}>{join(children)}</{name}>")


def table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> Markup:
    head = tag("tr", *(tag("th", head) for head in heads))
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *body))


def format_number(value: float | int | None, digits: int = 4) -> str:
    """Format a number for display: 12,345, 0.4938, 1.2e-07; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    text = f"{value:,.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    return text.replace("-", "−") if "e" not in text else text


def format_range(low: float | None, high: float | None, digits: int = 4) -> str:
    """Format the bounds of an interval; empty if it has none."""
    return "" if low is None else f"{format_number(low, digits)} to {format_number(high, digits)}"


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun in singular or plural.

    >>> format_count(1, "task"), format_count(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
