"""SVG charts: lines with bands, histograms, intervals, bars. A few kB each, without scripts.

Every chart is 360 units wide, the width of one column of the page, so that its text has the size of the page's text.
Colours are CSS classes (colours.css), so that plots follow the dark mode of the page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pairwright.report.markup import Markup, format_number, format_range, join, shorten, tag

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 30  # margins around the plot area
ROW = 34  # height of a row of bars or intervals


@dataclass(frozen=True)
class Line:
    """A line through points; `low` and `high` are the bounds of a band around it. `tone` is its colour class."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    tone: str = "accent"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: bool = False


@dataclass(frozen=True)
class Span:
    """A mean with the bounds of its interval."""

    name: str
    mean: float
    low: float | None
    high: float | None
    tone: str = "accent"


@dataclass(frozen=True)
class Bar:
    """A labelled amount; `note` is written beside it."""

    name: str
    amount: float
    tone: str = "accent"
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` linearly to units from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        width = self.high - self.low
        # a range of a single value maps to the middle
        return round(self.start + (self.end - self.start) * ((value - self.low) / width if width else 0.5), 1)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers within the bounds, at most `most` + 1 of them.

    >>> ticks(0, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8]
    """
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    # the smallest step of the form 1, 2, 2.5 or 5 times a power of ten; the tolerance absorbs rounding
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)][: most + 1]


def line_chart(lines: Sequence[Line], *, label: str, x_label: str = "step", height: int = 190) -> Markup:
    """Draw lines over a common x axis; a single point is drawn as a dot."""
    known = [(x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True)]  # all points, for the range of x
    bounds = [y for line in lines for y in (*line.ys, *line.low, *line.high)]
    low, high = _pad_range(min(bounds), max(bounds))
    across = Scale(min(x for x, _ in known), max(x for x, _ in known), LEFT, WIDTH - RIGHT)
    # in SVG y grows downwards: low values have larger y
    up = Scale(low, high, height - BOTTOM, TOP)
    x_ticks = ticks(across.low, across.high, 5)
    if all(float(x).is_integer() for x, _ in known):  # steps and rounds are whole
        x_ticks = [tick for tick in x_ticks if float(tick).is_integer()]
    parts = [_grid(up, ticks(low, high, 4)), _x_axis(across, x_ticks, height, x_label)]
    for line in lines:
        if line.low:  # a closed path: along the lower bound, and back along the upper one
            lower = [f"{across(x)},{up(y)}" for x, y in zip(line.xs, line.low, strict=True)]
            upper = [f"{across(x)},{up(y)}" for x, y in zip(line.xs, line.high, strict=True)][::-1]
            parts.append(tag("path", d=f"M{' L'.join([*lower, *upper])}Z", class_=f"band {line.tone}"))
    for line in lines:
        points = [(across(x), up(y)) for x, y in zip(line.xs, line.ys, strict=True)]
        if len(points) > 1:
            path = "M" + " L".join(f"{x},{y}" for x, y in points)
            parts.append(tag("path", d=path, class_=f"line {line.tone}"))
        if line.dots or len(points) == 1:
            for (x, y), value in zip(points, line.ys, strict=True):
                tooltip = tag("title", f"{line.name}: {format_number(value)}")
                parts.append(tag("circle", tooltip, cx=x, cy=y, r=3, class_=f"dot {line.tone}"))
    return _picture(parts, height, label)


def histogram(
    edges: Sequence[float],
    counts: Sequence[tuple[str, str, Sequence[int]]],
    *,
    label: str,
    x_label: str,
    height: int = 190,
) -> Markup:
    """Draw counts in bins as one or more overlaid series: (name, tone, count of each bin)."""
    # `or 1`: an empty histogram still needs a scale
    most = max((count for _, _, series in counts for count in series), default=0) or 1
    across = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    up = Scale(0, most * 1.05, height - BOTTOM, TOP)
    whole = [tick for tick in ticks(0, most, 4) if float(tick).is_integer()]
    parts = [_grid(up, whole), _x_axis(across, ticks(edges[0], edges[-1], 5), height, x_label)]
    for name, tone, series in counts:
        for left, right, count in zip(edges[:-1], edges[1:], series, strict=True):
            if count:
                x, y = across(left), up(count)
                tooltip = tag("title", f"{name}: {count:,} from {format_number(left)} to {format_number(right)}")
                # one unit is left between bars; a bar never vanishes
                width = max(1.0, round(across(right) - x - 1, 1))
                style = f"bar {tone}{' over' if len(counts) > 1 else ''}"
                bar_height = round(up(0) - y, 1)
                parts.append(tag("rect", tooltip, x=x + 0.5, y=y, width=width, height=bar_height, class_=style))
    return _picture(parts, height, label)


def interval_chart(spans: Sequence[Span], *, label: str, zero: bool = False) -> Markup:
    """Draw means with their intervals, one per row; `zero` adds a vertical line at 0."""
    height = ROW * len(spans) + 22
    values = [value for span in spans for value in (span.mean, span.low, span.high) if value is not None]
    # the plot must include the line at zero
    low, high = _pad_range(min([*values, 0.0] if zero else values), max([*values, 0.0] if zero else values), 0.08)
    across = Scale(low, high, 8, WIDTH - 8)
    parts = [_x_axis(across, ticks(low, high, 5), height + BOTTOM - 22, "")]
    if zero:
        parts.append(tag("line", x1=across(0), x2=across(0), y1=2, y2=height - 22, class_="zero"))
    for number, span in enumerate(spans):
        y = ROW * number + 24
        parts.append(tag("text", span.name, x=8, y=y - 11, class_="label"))
        bounds = format_range(span.low, span.high)
        caption = format_number(span.mean) + (f"  ({bounds})" if bounds else "")
        parts.append(tag("text", caption, x=WIDTH - 8, y=y - 11, text_anchor="end", class_="number"))
        if span.low is not None and span.high is not None:
            x1, x2 = across(span.low), across(span.high)
            parts.append(tag("line", x1=x1, x2=x2, y1=y, y2=y, class_=f"span {span.tone}"))
            parts += [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_=f"cap {span.tone}") for x in (x1, x2)]
        parts.append(tag("circle", cx=across(span.mean), cy=y, r=4.5, class_=f"dot {span.tone}"))
    return _picture(parts, height, label)


def bar_chart(bars: Sequence[Bar], *, label: str) -> Markup:
    """Draw amounts as bars with the name above each; long names are truncated, with the full name as tooltip."""
    most = max((bar.amount for bar in bars), default=0) or 1
    height = ROW * len(bars) + 4
    parts = []
    for number, bar in enumerate(bars):
        y = ROW * number + 14
        parts.append(tag("text", tag("title", bar.name), shorten(bar.name, 44), x=0, y=y, class_="label"))
        caption = format_number(bar.amount) + (f" · {bar.note}" if bar.note else "")
        parts.append(tag("text", caption, x=WIDTH, y=y, text_anchor="end", class_="number"))
        parts.append(tag("rect", x=0, y=y + 5, width=WIDTH, height=8, rx=2, class_="track"))
        # small amounts stay visible, zero has no bar
        width = max(1.5, round(WIDTH * bar.amount / most, 1)) if bar.amount else 0
        parts.append(tag("rect", x=0, y=y + 5, width=width, height=8, rx=2, class_=f"bar {bar.tone}"))
    return _picture(parts, height, label)


def _picture(parts: Sequence[Markup], height: int, label: str) -> Markup:
    return tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=label,
        class_="plot",
    )


def _pad_range(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    if high > low:
        return low - (high - low) * share, high + (high - low) * share
    # a single value: add a margin, so that the scale has a width
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _grid(up: Scale, at: Sequence[float]) -> Markup:
    parts = []
    for value in at:
        y = up(value)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", _short(value), x=LEFT - 6, y=y + 3.5, text_anchor="end", class_="tick"))
    return join(parts)


def _x_axis(across: Scale, at: Sequence[float], height: int, label: str) -> Markup:
    y = height - BOTTOM
    parts = [tag("line", x1=across.start, x2=across.end, y1=y, y2=y, class_="axis")]
    for value in at:
        x = across(value)
        # labels at the ends are aligned inwards, so that they are not clipped
        anchor = "start" if x < across.start + 6 else "end" if x > across.end - 6 else "middle"
        parts.append(tag("text", _short(value), x=x, y=y + 14, text_anchor=anchor, class_="tick"))
    if label:
        parts.append(tag("text", label, x=across.end, y=y + 27, text_anchor="end", class_="tick"))
    return join(parts)


def _short(value: float) -> str:
    """Format the number of a tick: 12k, 3.5M, 0.25, 2e-05."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 10 or (abs(value) >= size and value % size == 0):
            return f"{value / size:g}{unit}".replace("-", "−")
    text = f"{value:.6g}"
    return text if "e" in text else text.replace("-", "−")
