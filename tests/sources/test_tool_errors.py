"""Failed tool results: at least 95% of those that are marked are detected, and at most 1% of the others."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis.strategies import from_regex

from pairwright.records.messages import ERROR_KINDS, Message, ToolCall
from pairwright.sources.shapes import tool_errors
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind, suspicious_results, text_error_kind
from sources.tool_results import FAILED, FINE


def test_marked_failures_are_detected_and_other_results_are_not():
    assert len(FAILED) + len(FINE) >= 150
    missed = [text for text in FAILED if text_error_kind(text) is None]
    alarms = [text for text in FINE if text_error_kind(text) is not None]
    assert len(missed) <= 0.05 * len(FAILED), missed
    assert len(alarms) <= 0.01 * len(FINE), alarms


def test_kinds_are_known_ones():
    assert {text_error_kind(text) for text in FAILED} - {None} <= set(ERROR_KINDS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"output": "x", "exit_code": 3}', "nonzero_exit"),
        ("<returncode>1</returncode>\n<output></output>", "nonzero_exit"),
        ("Command finished with status 1", "nonzero_exit"),
        ("cat: a: No such file or directory", "file_not_found"),
        ("Command timed out after 3 seconds", "timeout"),
        ('{"error": "Patient not found."}', "not_found"),
        ("x\nTraceback (most recent call last):\n  File \"a\", line 1, in f\nRuntimeError: no", "exception"),
        ("Error: no", "tool_error"),
    ],
)  # fmt: skip
def test_a_failure_has_the_kind_that_its_words_say(text, kind):
    assert text_error_kind(text) == kind


def test_the_flag_of_a_format_goes_before_the_text():
    assert result_error_kind(0, Message("tool", "all is well", extra={"is_error": True})) == "tool_error"
    assert result_error_kind(0, Message("tool", "Error: as expected", extra={"is_error": False})) is None
    assert result_error_kind(0, Message("tool", "no", extra={"status": "error"})) == "tool_error"


def test_a_format_with_marks_of_its_own_has_those_of_all_formats_besides():
    call = Message("assistant", tool_calls=(ToolCall("f", "{}", "a"), ToolCall("f", "{}", "b")))
    chat = [call, Message("tool", "marked", tool_call_id="a"), Message("tool", "Exit code 1", tool_call_id="b")]
    sites = error_sites(chat, [], lambda _, message: "timeout" if message.content == "marked" else None)
    assert [(site.index, site.kind, site.tool) for site in sites] == [(1, "timeout", "f"), (2, "nonzero_exit", "f")]


def test_a_hostile_result_is_no_failure_of_ours():
    for text in (
        "{" * 5000,
        "[" * 5000,
        '{"output":' * 1200 + "1" + "}" * 1200,
        "\n" * 100_000,
        "\x00" * 10,
        "a" * 10**6,
    ):
        assert text_error_kind(text) is None


PIECES = (
    "error", "Error: ", "ERROR", "exit code 1", "Exit code: 0", "code", "EXIT STATUS 3", "returned 2", "mode", "failed to run",
    "tool x not found", "unknown function", "cat: a: No such file or directory", "\n", "\r\n", "\x1b[0m", "\x1b", "$", "root@a:/#",
    "Traceback (most recent call last):\n  File \"a\", line 1, in f\nValueError: x", "SyntaxError: x", "panic: x", "    at f",
    "}", "plain words", " ", "x" * 150, "y" * 700, "<returncode>1</returncode>", "Output:", "fatal: ", "Segmentation fault",
)  # fmt: skip
KEYS = (
    "status", "exit_code", "metadata", "is_error", "error", "errors", "detail", "success", "ok", "code", "status_code", "stderr",
    "stdout", "output", "text", "data", "message", "name", "id", "http_status", "returncode",
)  # fmt: skip


def random_value(draw, depth=0):
    kind = draw.randrange(9)
    if kind < 3 and depth < 3:
        return {draw.choice(KEYS): random_value(draw, depth + 1) for _ in range(draw.randint(0, 4))}
    if kind == 3 and depth < 3:
        return [random_value(draw, depth + 1) for _ in range(draw.randint(0, 2))]
    return draw.choice([None, True, False, 0, 1, 404, "error", "ok", "timeout", random_text(draw), random_text(draw)])


def random_text(draw):
    return "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 5)))


# A failed result is among the suspicious ones, however it is written


def assert_failures_are_suspicious(texts):
    suspicious = set(suspicious_results(texts))
    failed = {number for number, text in enumerate(texts) if text_error_kind(text) is not None}
    assert not [texts[number] for number in failed - suspicious]
    return len(failed), len(suspicious)


def odd_spelling(text, draw):
    """A text in other letters, with colours, or with characters of its JSON form escaped."""
    way = draw.randrange(6)
    if way == 0:
        return draw.choice([str.upper, str.swapcase, str.title])(text)
    if way == 1:
        return text.translate(
            {ord(letter): other for letter, other in zip("iskIS", "\u0131\u017f\u212a\u0130\u017f", strict=True)}
        )
    if way == 2:
        return "".join(letter + draw.choice(["", "", "", "\x1b[31m"]) for letter in text)
    if way == 3:
        return text.translate({ord(digit): chr(0x0660 + int(digit)) for digit in "0123456789"})
    if way == 4:
        return "".join(
            f"\\u{ord(letter):04x}" if draw.random() < 0.05 and letter != "\\" else letter for letter in text
        )
    return text.replace(" ", draw.choice([" ", "\u00a0", "\t", "\n"]))


# Each is a failure by one word only
RARE = [
    "errno: 5",
    "Uncaught boom\n    at f (a.js:1)",
    "done\nmake: *** [all] stopped",
    "un\u212anown tool x",
    "\u0131nvalid tool x",
    "exit:\U00011da4",
]


def test_failures_are_suspicious_as_text_and_inside_json():
    draw = random.Random(6)
    texts = [*FAILED, *FINE, *RARE, *(random_text(draw) for _ in range(2000))]
    texts += [json.dumps(random_value(draw), ensure_ascii=draw.random() < 0.5) for _ in range(2000)]
    texts += [odd_spelling(text, draw) for text in texts]
    wrapped = [json.dumps({draw.choice(["output", "result"]): text}) for text in texts]
    texts += wrapped + [json.dumps([{"content": text}], indent=draw.choice([None, 2])) for text in wrapped]
    assert None not in map(text_error_kind, RARE)
    num_failed, num_suspicious = assert_failures_are_suspicious(texts)
    assert 3000 < num_failed <= num_suspicious < len(texts)


@pytest.mark.parametrize(
    "name", ["_START", "_NO_TOOL", "_EXCEPTION", "_PROGRAM", "_STATUS_LINE", "_STATUS_TAG", "_STATUS_START", "_CRASH"]
)
def test_whatever_a_mark_matches_is_suspicious_if_it_is_a_failure(name):
    texts = []

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(from_regex(getattr(tool_errors, name), fullmatch=True))
    def collect(text):
        texts.extend([text, json.dumps({"output": text, "exit": ""}), f"some output\n{text}"])

    collect()
    assert assert_failures_are_suspicious(texts)[0] > 20


def test_usual_results_are_not_suspicious():
    usual = [
        '{"status": "ok", "text": "an email about the details of the order"}',
        "the agent reads a calendar",
        "[1, 2]",
    ]
    assert suspicious_results(usual) == []
