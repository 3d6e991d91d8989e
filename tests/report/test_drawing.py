"""Markup that cannot be broken out of, and plots that say what their numbers say."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from pairwright.report.charts import Bar, Line, Span, bar_chart, histogram, interval_chart, line_chart, ticks
from pairwright.report.markup import Markup, escape, format_count, format_number, join, tag
from pairwright.report.page_parts import Plot, file_name, write_plots

SPACE = "{http://www.w3.org/2000/svg}"


def test_text_and_attributes_are_escaped_and_markup_is_not():
    hostile = "\"><script>alert('x')</script>&"
    made = tag("p", hostile, tag("b", "fine"), title=hostile)
    assert "<script>" not in made
    assert made.endswith("<b>fine</b></p>")
    assert ElementTree.fromstring(made).attrib["title"] == hostile
    assert join([hostile]) == escape(hostile) != hostile
    assert escape(Markup("<b>")) == "<b>"


def test_characters_that_hide_or_turn_text_are_spelled_out():
    assert escape("a\x00b\u202ec\ufeff\x1b[31m") == r"a\u0000b\u202ec\ufeff\u001b[31m"
    assert escape("tab\tline\nünïcödé 漢字 🙂") == "tab\tline\nünïcödé 漢字 🙂"


def test_attributes_are_named_as_in_html_and_left_out_without_a_value():
    assert tag("line", stroke_width=2, class_="a", hidden=None, open=False) == '<line stroke-width="2" class="a"/>'
    assert tag("details", "x", open=True) == "<details open>x</details>"
    assert tag("meta", name="viewport") == '<meta name="viewport">'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (12345, "12,345"),
        (0.49384, "0.4938"),
        (-0.25, "−0.25"),
        (3.0, "3"),
        (123456.7, "123,457"),
        (1.23e-7, "1.23e-07"),
        (-7, "−7"),
    ],
)
def test_numbers_for_people(value, expected):
    assert format_number(value) == expected


def test_things_are_counted_in_the_right_form():
    assert (format_count(1, "turn"), format_count(0, "turn"), format_count(12000, "turn")) == (
        "1 turn",
        "0 turns",
        "12,000 turns",
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 0.93, [0.0, 0.2, 0.4, 0.6, 0.8]),
        (-1, 1, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (0, 5, [0, 1, 2, 3, 4, 5]),
        (3, 3, [3]),
        (0, 1e-6, [0.0, 2e-7, 4e-7, 6e-7, 8e-7, 1e-6]),
    ],
)
def test_ticks_are_round_numbers_within_the_bounds(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def marks(svg, name, cls):
    """The elements of a plot that carry a class."""
    return [one for one in ElementTree.fromstring(svg).iter(SPACE + name) if cls in one.get("class", "").split()]


def test_a_line_goes_through_its_points():
    svg = line_chart([Line("loss", [0, 10], [1.0, 0.0])], label="loss")
    (path,) = marks(svg, "path", "line")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in re.findall(r"[\d.]+,[\d.]+", path.get("d")))
    assert (x1, x2) == (46, 352)
    assert y1 < y2  # up is less
    assert not marks(svg, "circle", "dot")


def test_a_single_point_is_a_dot_and_equal_values_do_not_divide_by_zero():
    assert len(marks(line_chart([Line("loss", [5], [0.3])], label="x"), "circle", "dot")) == 1
    assert marks(line_chart([Line("flat", [1, 2, 3], [7, 7, 7])], label="x"), "path", "line")


def test_rounds_and_steps_have_whole_numbers_below_them():
    svg = line_chart([Line("optimal", [0, 1, 2], [0.5, 0.7, 0.9])], label="x")
    below = [one.text for one in ElementTree.fromstring(svg).iter(SPACE + "text") if float(one.get("y")) > 160]
    assert below == ["0", "1", "2", "step"]


def test_a_band_encloses_its_line():
    svg = line_chart([Line("loss", [0, 1], [1, 2], low=[0, 1], high=[2, 3])], label="x")
    (band,) = marks(svg, "path", "band")
    assert len(re.findall(r"[\d.]+,[\d.]+", band.get("d"))) == 4


def test_bars_of_a_histogram_are_as_high_as_their_counts():
    svg = histogram([0, 1, 2, 3], [("pairs", "accent", [4, 0, 2])], label="gaps", x_label="gap")
    first, second = marks(svg, "rect", "bar")
    assert float(first.get("height")) == pytest.approx(2 * float(second.get("height")), abs=0.2)
    assert first.find(SPACE + "title").text == "pairs: 4 from 0 to 1"


def test_an_interval_reaches_from_low_to_high_and_is_drawn_only_if_present():
    svg = interval_chart([Span("before", 0.5, 0.4, 0.6), Span("after", 0.7, None, None)], label="x", zero=True)
    assert len(marks(svg, "line", "span")) == 1
    assert len(marks(svg, "circle", "dot")) == 2
    (zero,) = marks(svg, "line", "zero")
    (span,) = marks(svg, "line", "span")
    assert float(zero.get("x1")) < float(span.get("x1")) < float(span.get("x2"))


def test_long_names_of_bars_are_truncated_with_the_full_name_as_tooltip():
    name = "a reason that is much longer than what fits above a bar on a phone"
    svg = bar_chart([Bar(name, 3), Bar("none", 0)], label="x")
    text = next(ElementTree.fromstring(svg).iter(SPACE + "text"))
    assert text.find(SPACE + "title").text == name
    assert marks(svg, "rect", "bar")[1].get("width") == "0"


def test_plots_become_self_contained_files(tmp_path):
    plot = Plot(
        "../../etc/x y",
        "Loss",
        line_chart([Line("loss", [0, 1], [1, 2])], label="x"),
        [("step", "value"), (0, 1), (1, 2)],
    )
    write_plots(tmp_path / "plots", [plot, plot])
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "etc-x-y-2.csv",
        "etc-x-y-2.svg",
        "etc-x-y.csv",
        "etc-x-y.svg",
        "plots.json",
    ]
    assert (tmp_path / "plots" / "etc-x-y.csv").read_text() == "step,value\n0,1\n1,2\n"
    root = ElementTree.parse(tmp_path / "plots" / "etc-x-y.svg").getroot()
    assert (root.tag, root[0].tag) == (SPACE + "svg", SPACE + "style")


def test_only_plots_of_an_earlier_report_are_removed(tmp_path):
    plot = Plot("loss", "Loss", line_chart([Line("loss", [0, 1], [1, 2])], label="x"), [("step",)])
    (tmp_path / "mine.svg").write_text("a user's own")
    write_plots(tmp_path, [plot])
    (tmp_path / "plots.json").write_text('["loss", "../mine", "/etc/passwd"]')
    write_plots(tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.svg"]


def test_a_file_name_is_plain_and_never_taken_twice():
    taken = set()
    assert [file_name(name, taken) for name in ("rewards/margins", "rewards margins", "…")] == [
        "rewards-margins",
        "rewards-margins-2",
        "plot",
    ]
