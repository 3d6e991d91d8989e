"""HTML and SVG that cannot be broken out of: text is escaped, only what this module made passes as it is.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'

Characters that have no place on a page (controls, invisible marks that turn the direction of text) are spelled out, so
that what is shown is what is there.
"""

import html
import re
from collections.abc import Iterable

_VOID = {"meta", "link", "br", "hr", "img", "circle", "line", "path", "rect"}
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff]"
)
_SELF_CLOSED = {"circle", "line", "path", "rect"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Any value as text on a page."""
    if isinstance(text, Markup):
        return text
    spelled = _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text))
    return Markup(html.escape(spelled))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; an attribute that is None or False is left out."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}{'/' if name in _SELF_CLOSED else ''}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def shown(value: float | int | None, digits: int = 4) -> str:
    """A number for people: 12,345, 0.4938, 1.2e-07; a dash for none."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    text = f"{value:,.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    return text.replace("-", "−") if "e" not in text else text


def counted(number: int, noun: str) -> str:
    """A number of things, in the right form.

    >>> counted(1, "task"), counted(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
