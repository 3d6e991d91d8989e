"""Every turn is what inference saw: the quick verification against that of every prompt, and templates that count."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_cases import CASES, assistant, call, tool, user
from token_families import CHATML, FAMILIES, REAL_STOPS, SHARED, real_tokenizer, small_backend, small_tokenizer

from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode import encode_chat, encode_turns
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Report, Sequence
from pairwright.tokens.spans.regions import is_regular
from pairwright.tokens.stage.check import check_template
from pairwright.tokens.tokenizer import ChatTokenizer

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
MARKS = ["ok", "", " x\n", "</think>", "<tool_call>", "/no_think", "<|im_end|>", "[INST]", "```json", "你好"]


def outcome(tokenizer: ChatTokenizer, chat: list, tools: object, verify: str) -> Sequence | tuple[str, int | None]:
    try:
        return encode_chat(tokenizer, chat, tools, options=EncodeOptions(boundaries="whole", verify=verify))  # type: ignore[arg-type]
    except Refusal as refusal:
        return refusal.reason, refusal.message


@st.composite
def long_chats(draw: st.DrawFn) -> list:
    """More turns than are verified by default; every text may hold what templates look for."""
    text = st.sampled_from(MARKS)
    chat: list = []
    for number in range(draw(st.integers(9, 14))):
        chat += [user(draw(text)), assistant(draw(text), reasoning=draw(st.sampled_from([None, "why"])))]
        if draw(st.booleans()):
            chat[-1] = assistant(draw(text), calls=[call(number)])
            chat += [tool(draw(text), number), assistant(draw(text))]
    return chat


@settings(max_examples=60, deadline=None)
@given(long_chats(), st.sampled_from(sorted(FAMILIES)))
def test_quick_and_full_verification_agree_on_written_templates(chat: list, name: str) -> None:
    tokenizer = small_tokenizer(name)
    assert outcome(tokenizer, chat, None, "quick") == outcome(tokenizer, chat, None, "all")


@needs_shared
@settings(max_examples=30, deadline=None)
@given(long_chats(), st.sampled_from(sorted(REAL_STOPS)))
def test_quick_and_full_verification_agree_on_real_templates(chat: list, name: str) -> None:
    tokenizer = real_tokenizer(name)
    assert outcome(tokenizer, chat, None, "quick") == outcome(tokenizer, chat, None, "all")


@pytest.mark.parametrize("name", FAMILIES)
def test_quick_and_full_verification_agree_on_all_cases(name: str) -> None:
    for chat, tools in CASES.values():
        tokenizer = small_tokenizer(name)
        assert outcome(tokenizer, chat, tools, "quick") == outcome(tokenizer, chat, tools, "all")


def counting(rule: str) -> ChatTokenizer:
    """ChatML whose prompt has a word more where the rule holds."""
    template = CHATML.replace(
        "{{ '<|im_start|>assistant\n' }}", "{{ '" + "<|im_start|>assistant\n' }}{{ " + rule + " }}"
    )
    assert rule in template
    return ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})


def exchanges(count: int, question: str = "hello there") -> list:
    return [m for n in range(count) for m in (user(question if n == 5 else f"q {n}"), assistant(f"a {n}"))]


@pytest.mark.parametrize("count", [9, 20, 60])
def test_a_prompt_that_differs_at_the_seventh_turn_only_is_refused(count: int) -> None:
    tokenizer = counting("'well' if messages | length == 13")
    with pytest.raises(Refusal, match="message 13: two_forms"):
        encode_chat(tokenizer, exchanges(count))
    assert not is_regular(tokenizer, tokenizer.renderer(None))
    assert "counts_turns" in {quirk.name for quirk in check_template(tokenizer).quirks}
    assert encode_chat(tokenizer, exchanges(6)).report.num_turns == 6


def test_a_rule_about_a_turn_far_out_is_found_when_all_are_verified() -> None:
    tokenizer = counting("'well' if messages | length == 105")
    with pytest.raises(Refusal, match="message 105: two_forms"):
        encode_chat(tokenizer, exchanges(80), options=EncodeOptions(boundaries="whole", verify="all"))


def test_a_turn_that_is_written_differently_is_exact() -> None:
    """A rule that shows in the conversation itself is found there, whatever its place."""
    marked = "{{ ('[5] ' if loop.index0 in (10, 11) else '') }}"
    template = CHATML.replace("{{ '<|im_start|>' + m.role + '\n'", marked + "{{ '<|im_start|>' + m.role + '\n'")
    template = template.replace(
        "{{ '<|im_start|>assistant\n' }}", "{{ '[5] ' if messages | length == 11 }}{{ '<|im_start|>assistant\n' }}"
    )
    tokenizer = ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})
    for verify in ("quick", "all"):
        sequence = encode_chat(tokenizer, exchanges(20), options=EncodeOptions(boundaries="whole", verify=verify))  # type: ignore[arg-type]
        assert tokenizer.decode(sequence.ids[sequence.mask]) == "".join(f"a {n}<|im_end|>" for n in range(20))
        assert sequence.report.probed >= 1
    assert "[5] <|im_start|>assistant" in tokenizer.decode(sequence.ids)


RULES = ["'x' if '/no_think' in messages[-1].content", "'x' if messages[-1].content.endswith('/no_think')"]


@pytest.mark.parametrize("rule", RULES)
def test_a_prompt_that_depends_on_what_a_text_says_is_refused_wherever_it_is_said(rule: str) -> None:
    tokenizer = counting(rule)
    assert encode_chat(tokenizer, exchanges(40)).report.num_turns == 40
    with pytest.raises(Refusal, match="message 11: "):
        encode_chat(tokenizer, exchanges(40, question="be quick /no_think"))


# The prompt opens a thought that the history does not have: every turn is joined to its prompt.
OPENS = CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}{# </think> #}")
# The same, with a history that changes: long ago, in the last messages, in a number that only a prompt has, in a message
# with a tag that is no longer the last one, by a word in the sixth question.
SHORTENS = OPENS.replace("m.content", "(m.content if loop.revindex < 9 else '...')")
CLOSES = OPENS.replace("m.content", "(m.content if loop.revindex < 4 or m.role == 'user' else m.content + ' done')")
COUNTS = OPENS.replace(
    "m.content", "m.content + ((messages | length) | string if loop.last and m.role == 'user' else '')"
)
HIDES = OPENS.replace("m.content", "(m.content if loop.revindex < 3 or '<note>' not in m.content else 'gone')")
LOOKS_FOR = OPENS.replace(
    "m.content",
    "m.content + ('!' if loop.index0 > 10 and m.role == 'assistant' and '/no_think' in messages[10].content else '')",
)


def encode_each(template: str, chat: list, verify: str) -> list[tuple[str, str, Report]] | tuple[str, int | None]:
    """Text, trained text and report of every sequence, but for how many turns were judged on the whole."""
    tokenizer = ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})
    try:
        sequences = encode_turns(tokenizer, chat, options=EncodeOptions(verify=verify))  # type: ignore[arg-type]
    except Refusal as refusal:
        return refusal.reason, refusal.message
    return [
        (tokenizer.decode(s.ids), tokenizer.decode(s.ids[s.mask]), msgspec.structs.replace(s.report, probed=0))
        for s in sequences
    ]


@pytest.mark.parametrize("template", [OPENS, SHORTENS, CLOSES, COUNTS, HIDES, LOOKS_FOR])
def test_turns_that_are_joined_to_their_prompts_are_those_of_the_whole_conversation(template: str) -> None:
    for question in ("hello there", "be quick /no_think", "a <note> to you"):
        chat = [{**message, "reasoning_content": "why"} for message in exchanges(20, question)]
        quick, full = (encode_each(template, chat, verify) for verify in ("quick", "all"))
        assert quick == full
        assert len(quick) == 20


@settings(max_examples=25, deadline=None)
@given(long_chats(), st.sampled_from([OPENS, SHORTENS, CLOSES]))
def test_joined_turns_of_any_text_are_those_of_the_whole_conversation(chat: list, template: str) -> None:
    assert encode_each(template, chat, "quick") == encode_each(template, chat, "all")


def test_joined_turns_of_a_long_conversation_are_judged_on_excerpts_but_for_the_last() -> None:
    tokenizer = ChatTokenizer(small_backend(), OPENS, special_tokens={"eos_token": "<|im_end|>"})
    chat = [{**message, "reasoning_content": "why"} for message in exchanges(20)]
    assert [s.report.probed for s in encode_turns(tokenizer, chat)] == [*[0] * 19, 1]
