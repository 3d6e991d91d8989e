"""What a template can do is found by trying it."""

import pytest
from token_families import SHARED, small_tokenizer

from pairwright.tokens.stage.check import check_template


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
        ("the prompt opens the reasoning", "refused_plain"),
        ("no stop at all", "refused_calls"),
        ("no header, system in the first user", "refuses_system_in_the_middle"),
        ("results in groups, content dropped beside calls", "drops_content"),
        ("chatml", "no_calls"),
    ],
)
def test_quirks_are_named(name: str, quirk: str) -> None:
    assert quirk in names(name)


def test_what_a_template_can_do_is_no_quirk() -> None:
    assert names("chatml with calls") == {"drops_reasoning"}


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
def test_a_call_without_a_stop_is_told() -> None:
    quirks = {quirk.name: quirk.detail for quirk in check_template(SHARED / "deepseek_v3").quirks}
    assert "no_stop" in quirks["refused_calls"]
