"""Built-in criteria: scores of unambiguous runs, and runs to which a criterion does not apply."""

import json

import pytest

from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.scorers.criteria import CRITERIA
from pairwright.scorers.references import find_criterion

SEARCH = {
    "name": "search",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "order": {"enum": ["up", "down"]}},
        "required": ["q"],
        "additionalProperties": False,
    },
}


def a_run(*completion, prompt=(("user", "How many?"),), tools=(SEARCH,), **fields):
    messages = [one if isinstance(one, Message) else Message(*one) for one in completion]
    return Experience(
        eid=EID(task="t"),
        kind="multi_turn",
        prompt=[Message(*one) for one in prompt],
        completion=messages,
        tools=list(tools),
        **fields,
    )


def calls(*arguments, name="search"):
    return Message(
        "assistant",
        None,
        tool_calls=tuple(ToolCall(name, text if isinstance(text, str) else json.dumps(text)) for text in arguments),
    )


def result(text, **extra):
    return Message("tool", text, name="search", extra=extra)


def score_of(name, run):
    judged = find_criterion(name)(run)
    return None if judged is None else judged[0]


@pytest.mark.parametrize("name", ["calls_succeed", "tools_known", "arguments_fit", "user_content", "tests_passed"])
def test_a_criterion_about_something_that_the_run_does_not_have_says_nothing(name):
    assert score_of(name, a_run(("assistant", "Four."))) is None


def test_failed_calls_are_counted_by_marks_flags_and_error_sites():
    run = a_run(
        calls({"q": "a"}), result("ok"), result("Error: no such file"), result("fine", is_error=True), result("odd"),
        errors=[ErrorSite(index=5, kind="tool_error")],
    )  # fmt: skip
    assert score_of("calls_succeed", run) == 0.25


def test_unknown_tools_and_arguments_that_do_not_fit_the_schema():
    run = a_run(calls({"q": "a"}), calls({"q": "a"}, name="find"))
    assert score_of("tools_known", run) == 0.5
    assert score_of("tools_known", a_run(calls({"q": "a"}), tools=())) is None
    good = [{"q": "a"}, {"q": "a", "n": 2}, {"q": "a", "n": 2.0}, {"q": "a", "order": "up"}]
    bad = ["not json", "[1]", {}, {"q": 1}, {"q": "a", "n": True}, {"q": "a", "n": 1.5}, {"q": "a", "x": 1},
           {"q": "a", "order": "left"}]  # fmt: skip
    for arguments in good:
        assert score_of("arguments_fit", a_run(calls(arguments))) == 1.0, arguments
    for arguments in bad:
        assert score_of("arguments_fit", a_run(calls(arguments))) == 0.0, arguments


def test_a_loop_is_the_same_call_with_the_same_result_three_times():
    def run(*texts):
        turns = []
        for number, text in enumerate(texts):
            turns.append(Message("assistant", None, tool_calls=(ToolCall("search", '{"q":"a"}', id=str(number)),)))
            turns.append(Message("tool", text, tool_call_id=str(number)))
        return a_run(*turns)

    assert score_of("no_loop", run("x", "x")) == 1.0
    assert score_of("no_loop", run("x", "x", "x")) == 0.0
    assert score_of("no_loop", run("pending", "half", "done")) == 1.0, "polling is no loop"
    assert score_of("no_loop", a_run(*[("assistant", "I will look.")] * 3)) == 0.0


def test_truncated_runs_and_runs_without_an_answer():
    assert score_of("not_truncated", a_run(("assistant", "x"), truncate_status="response_truncated")) == 0.0
    assert score_of("not_truncated", a_run(("assistant", "x"), info={"finish_reasons": ["tool_calls", "length"]})) == 0
    assert score_of("not_truncated", a_run(("assistant", "x"), info={"finish_reason": "stop"})) == 1.0
    assert score_of("final_answer", a_run(("assistant", "Four."))) == 1.0
    assert score_of("final_answer", a_run(calls({"q": "a"}))) == 0.0
    assert score_of("final_answer", a_run(("assistant", "  "))) == 0.0


@pytest.mark.parametrize(
    ("turn", "score"),
    [("Thanks, and how many are red?", 1.0), ("No, that is wrong.", 0.0), ("I said how many", 0.0),
     ("please tell me how many apples are left", 0.0), ("Now write it down", 1.0)],
)  # fmt: skip
def test_a_user_who_repeats_or_corrects(turn, score):
    prompt = [("user", "please tell me how many apples are left")]
    assert score_of("user_content", a_run(("assistant", "Pears?"), ("user", turn), prompt=prompt)) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [("=== 3 failed, 9 passed in 0.2s ===", 0.75), ("12 passed, 1 warning", 1.0), ("Tests:  1 failed, 3 passed", 0.75),
     ("Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1)", 0.5), ("Ran 4 tests in 0.1s\n\nOK", 1.0),
     ("--- PASS: TestA (0.0s)\n--- FAIL: TestB (0.0s)", 0.5), ("  3 passing (2s)\n  1 failing\n", 0.75),
     ("test result: ok. 7 passed; 0 failed; 0 ignored", 1.0), ("all is well", None)],
)  # fmt: skip
def test_summaries_of_test_runners(text, score):
    found = score_of("tests_passed", a_run(calls({"q": "a"}), result(text), ("assistant", "done")))
    assert found == score


def test_references():
    def info(**fields):
        return {"info": {"task": fields}}

    def run(text, **fields):
        return a_run(("assistant", text), **info(**fields))

    assert score_of("exact:task.answer", run(" 12 ", answer=12)) == 1.0
    assert score_of("exact:task.answer", run("It is 12", answer=12)) == 0.0
    assert score_of("exact:task.other", run("12", answer=12)) is None
    assert score_of("matches:task.answer", run("It is 12.", answer=r"\b12\b")) == 1.0
    assert score_of("number:task.answer", run("7 apples, so 1,200 in all", answer="1200")) == 1.0
    assert score_of("number:task.answer:0.1", run("about 1100", answer=1200)) == 1.0
    assert score_of("number:task.answer:0.01", run("about 1100", answer=1200)) == 0.0
    assert score_of("number:task.answer", run("many", answer=1200)) == 0.0
    assert score_of("json:task.answer", run('Here: ```json\n{"b": 1, "a": [2]}\n```', answer='{"a":[2],"b":1}')) == 1.0
    assert score_of("json:task.answer", run('So {"a": 1}', answer={"a": 1})) == 1.0
    assert score_of("json:task.answer", run("nothing", answer="null")) == 0.0


@pytest.mark.parametrize("name", ["exact", "number:", "number:answer:-1", "number:answer:x", "exact:answer:1"])
def test_a_criterion_with_a_bad_argument_is_refused(name):
    with pytest.raises(ConfigError, match=r"expected .*FIELD"):
        find_criterion(name)


def test_every_score_is_between_0_and_1_and_has_a_reason():
    run = a_run(calls({"q": "a"}), result("3 passed, 1 failed"), ("assistant", "x"), ("user", "no, wrong"))
    for name, criterion in CRITERIA.items():
        score, reason = criterion(run)
        assert 0 <= score <= 1, name
        assert reason, name
