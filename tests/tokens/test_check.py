"""What a template can do is found by trying it."""

import pytest
from token_families import CALLS, CHATML, SHARED, small_backend, small_tokenizer

from pairwright.tokens.stage.check import check_template
from pairwright.tokens.stage.template_cases import CASES, find_values
from pairwright.tokens.tokenizer import ChatTokenizer


def names(name: str) -> set[str]:
    return {quirk.name for quirk in check_template(small_tokenizer(name)).quirks}


def test_a_plain_template_has_no_tools() -> None:
    check = check_template(small_tokenizer("chatml"))
    assert check.is_supported
    assert not check.supports_tools
    assert check.stops == ("<|im_end|>",)
    assert {quirk.name for quirk in check.quirks} >= {"no_tools", "no_calls", "drops_reasoning"}
    assert check.example[-2:] == (("It is a word.<|im_end|>", True), ("\n", False))


def test_a_template_with_tools_shows_a_call_in_its_example() -> None:
    check = check_template(small_tokenizer("chatml with calls"))
    assert check.supports_tools
    assert next(text for text, trained in check.example if trained).endswith("</tool_call><|im_end|>")


@pytest.mark.parametrize(
    "name,quirk",
    [
        ("channels, return becomes end", "rewrites_history"),
        ("channels, return becomes end", "no_parallel_calls"),
        ("drops old reasoning", "rewrites_history"),
        ("no header, system in the first user", "refuses_system_in_the_middle"),
        ("results in groups, content dropped beside calls", "drops_content"),
        ("chatml", "no_calls"),
    ],
)
def test_quirks_are_named(name: str, quirk: str) -> None:
    assert quirk in names(name)


def test_a_prompt_that_opens_the_reasoning_with_a_sentence_is_refused() -> None:
    source = CHATML.replace("assistant\n' }}", "assistant\nHere are my steps:\n' }}")
    tokenizer = ChatTokenizer(small_backend(), source, special_tokens={"eos_token": "<|im_end|>"})
    assert "refused_plain" in [quirk.name for quirk in check_template(tokenizer).quirks]


def test_every_case_says_what_became_of_it() -> None:
    check = check_template(small_tokenizer("results in groups, content dropped beside calls"))
    cases = {case.name: case for case in check.cases}
    assert cases["one answer"].is_exact
    assert cases["text and call"].dropped == ((1, "content"),)
    assert not cases["text and call"].is_exact
    problems = list(cases["text and call"].list_problems())
    assert problems[0] == ("content not rendered", 1, "--allow-dropped trains without it")
    assert "tools of the prompt not rendered" in [problem.reason for problem in problems]
    assert check.drops["content"] == 3  # text and call, and both agents
    assert check.num_exact == sum(case.is_exact for case in check.cases) < len(CASES)


def test_a_refused_case_names_the_turn_and_the_way_out() -> None:
    (case,) = [
        case
        for case in check_template(small_tokenizer("no header, system in the first user")).cases
        if case.name == "agent"
    ]
    (problem,) = case.list_problems()
    assert case.num_sequences == 0
    assert problem.reason.startswith("template_error")
    assert problem.way_out


_MODES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and mode == 'long' %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    + CALLS
    + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_setting_that_makes_more_conversations_exact_is_advised() -> None:
    tokenizer = ChatTokenizer(small_backend(), _MODES, special_tokens={"eos_token": "<|im_end|>"})
    assert check_template(tokenizer).settings == ()  # not asked for
    check = check_template(tokenizer, try_variables=True)
    assert check.advice is not None
    assert check.advice.variables == {"mode": "long"}
    assert check.advice.num_exact > check.num_exact
    # With the advised setting there is no further advice.
    assert check_template(tokenizer.with_variables({"mode": "long"}), try_variables=True).advice is None


def test_values_of_a_variable_are_those_that_the_template_compares_it_with() -> None:
    assert find_values(_MODES, "mode") == ["long"]
    assert find_values("{% if thinking %}{% endif %}", "thinking") == [False, True]


def test_what_a_template_can_do_is_no_quirk() -> None:
    assert names("chatml with calls") == {"drops_reasoning"}


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
def test_what_a_family_drops_is_counted() -> None:
    check = check_template(SHARED / "deepseek_v3")
    assert set(check.drops) == {"prompt: tools", "reasoning", "tool_calls"}  # calls with text beside them
    assert check.stops == ("<｜end▁of▁sentence｜>",)
