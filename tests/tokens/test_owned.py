"""Owned text behaves as `str` does, and keeps its owners."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.tokens.template.tracked_str import TEMPLATE, Owned, join, join_with, replace, runs_of, track

TEXT = st.text(alphabet=" \t\nabABßé<>,x你😀", max_size=12)
MIXED = st.lists(st.tuples(TEXT, st.integers(-1, 3)), min_size=1, max_size=4)


def mixed(parts: list[tuple[str, int]]) -> str:
    return join([*(track(text, owner) if owner >= 0 else text for text, owner in parts), track("", 0)])


def owners(text: str) -> list[int]:
    return [owner for length, owner in runs_of(text) for _ in range(length)]


def check(result: object, expected: object) -> None:
    assert result == expected
    for item in result if isinstance(result, list | tuple) else [result]:
        assert isinstance(item, str)
        assert sum(length for length, _ in runs_of(item)) == len(item)


OPERATIONS: dict[str, Callable[[str, str], object]] = {
    "add": lambda a, b: a + b,
    "radd": lambda a, b: b + a,
    "mul": lambda a, b: a * 3 + 0 * a,
    "slice": lambda a, b: a[1:-1],
    "step": lambda a, b: a[::-2],
    "strip": lambda a, b: a.strip(),
    "strip chars": lambda a, b: a.strip("ab "),
    "split": lambda a, b: a.split(),
    "split at": lambda a, b: a.split("a", 2),
    "rsplit": lambda a, b: a.rsplit(None, 1),
    "rsplit at": lambda a, b: a.rsplit("a", 1),
    "splitlines": lambda a, b: a.splitlines(),
    "keepends": lambda a, b: a.splitlines(True),
    "partition": lambda a, b: a.partition("a"),
    "rpartition": lambda a, b: a.rpartition("a"),
    "replace": lambda a, b: a.replace("a", b),
    "replace nothing": lambda a, b: a.replace("", b, 3),
    "replace all nothing": lambda a, b: a.replace("", "-"),
    "join": lambda a, b: a.join([b, a, b]),
    "upper": lambda a, b: a.upper(),
    "lower": lambda a, b: a.lower(),
    "title": lambda a, b: a.title(),
    "capitalize": lambda a, b: a.capitalize(),
    "casefold": lambda a, b: a.casefold(),
    "prefix": lambda a, b: a.removeprefix("a"),
    "suffix": lambda a, b: a.removesuffix("a"),
    "center": lambda a, b: a.center(9, "."),
    "ljust": lambda a, b: a.ljust(9),
    "zfill": lambda a, b: a.zfill(9),
    "tabs": lambda a, b: a.expandtabs(4),
    "format": lambda a, b: f"{a}|{b}",
    "str": lambda a, b: str(a),
    "iterate": lambda a, b: list(a),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(left=MIXED, right=MIXED)
def test_text_is_what_str_gives_and_runs_add_up(name: str, left: list, right: list) -> None:
    a, b = mixed(left), mixed(right)
    operation = OPERATIONS[name]
    check(operation(a, b), operation(str.__str__(a), str.__str__(b)))


@given(MIXED, st.integers(0, 12), st.integers(0, 12))
def test_a_slice_has_the_owners_of_its_characters(parts: list, start: int, stop: int) -> None:
    text = mixed(parts)
    assert owners(text[start:stop]) == owners(text)[start:stop]


@given(MIXED)
def test_strip_and_split_keep_each_characters_owner(parts: list) -> None:
    text = mixed(parts)
    plain = str.__str__(text)
    lead = len(plain) - len(plain.lstrip())
    assert owners(text.strip()) == owners(text)[lead : lead + len(plain.strip())]
    rebuilt = join_with("a", text.split("a"))
    assert [o for o, c in zip(owners(rebuilt), plain, strict=True) if c != "a"] == [
        o for o, c in zip(owners(text), plain, strict=True) if c != "a"
    ]


def test_replacement_text_has_its_own_owner() -> None:
    assert runs_of(replace("say X!", "X", track("hi", 5))) == ((4, TEMPLATE), (2, 5), (1, TEMPLATE))
    assert runs_of(track("aXb", 3).replace("X", "--")) == ((1, 3), (2, TEMPLATE), (1, 3))


def test_upper_case_that_grows_stays_with_its_owner() -> None:
    text = "<" + track("ß", 2) + ">"
    assert text.upper() == "<SS>"
    assert runs_of(text.upper()) == ((1, TEMPLATE), (2, 2), (1, TEMPLATE))


def test_empty_text_keeps_its_place() -> None:
    text = "a" + track("  ", 4).strip() + "b"
    assert text == "ab"
    assert (0, 4) in runs_of(text)


def test_plain_parts_give_plain_text() -> None:
    assert type(join(["a", "b"])) is str
    assert type(Owned("a") + "b") is Owned
