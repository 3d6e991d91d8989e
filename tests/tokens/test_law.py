"""The law of masks: what we encode against the oracle on all shared templates, and the oracle against answers that are
known by hand."""

from collections import Counter

import pytest

pytest.importorskip("transformers", reason="the render of transformers is the oracle's only source")

from bench.law import SHARED, try_folder
from law_cases import KINDS
from law_oracle import Model, Verdict, explain_declared, judge

ENDS = frozenset(["<|im_end|>"])
CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|tool|>", "<call>", "</call>")
HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
TAIL = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
PLAIN = HEAD + "{{ m.content }}" + CALLS + TAIL + "{% endif %}"
# The last turn has its thought, or an empty one; earlier turns have none. The prompt closes it where thinking is off.
REWRITES = (
    HEAD
    + "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}"
    "{% endif %}{{ m.content }}"
    + TAIL
    + "{% if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
OPENS = HEAD + "{{ m.content }}" + TAIL + "{{ '<think>\n' }}{% endif %}"
INDENTED = HEAD + "{% if m.role == 'assistant' %}{{ '      ' }}{% endif %}{{ m.content }}" + TAIL + "{% endif %}"
GREETING = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "goodday"},
    {"role": "user", "content": "further please"},
    {"role": "assistant", "content": "certainly"},
]
START = "<|im_start|>assistant\n"


def build(source: str, ends: frozenset[str] = ENDS) -> Model:
    return Model(source, {"eos_token": "<|im_end|>"}, ends, CONTROLS)


def judge_all(source: str, chat: list[dict[str, object]], ends: frozenset[str] = ENDS) -> list[Verdict]:
    return judge(build(source, ends), chat, None)


def test_the_next_prompt_witnesses_what_a_plain_template_keeps() -> None:
    verdicts = judge_all(PLAIN, GREETING)
    assert [(verdict.rule, verdict.texts) for verdict in verdicts] == [
        (1, ("goodday<|im_end|>",)),
        (1, ("certainly<|im_end|>",)),
    ]
    assert all(verdict.prompt.endswith(START) for verdict in verdicts)


def test_an_end_token_inside_an_answer_is_not_its_end() -> None:
    for answer in ("goodday <|im_end|> again", "goodday <|im_end|>", "<|im_end|>"):
        chat = [GREETING[0], {"role": "assistant", "content": answer}, *GREETING[2:]]
        assert judge_all(PLAIN, chat)[0].texts == (f"{answer}<|im_end|>",)


def test_a_call_ends_after_its_own_closing() -> None:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"place": "garden"}}}
    chat = [
        GREETING[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call00001", "name": "look"},
        GREETING[3],
    ]
    assert judge_all(PLAIN, chat)[0].texts == ('<call>look {"place": "garden"}</call><|im_end|>',)


def test_a_turn_that_history_rewrites_has_a_sequence_of_its_own() -> None:
    first, last = judge_all(REWRITES, GREETING)
    assert (first.rule, first.texts) == (2, ("goodday<|im_end|>",))
    assert first.prompt.endswith("<think>\n\n</think>\n\n")
    assert (last.rule, last.texts) == (2, ("certainly<|im_end|>",))
    thought = [GREETING[0], {**GREETING[1], "reasoning_content": "because"}, *GREETING[2:]]
    first, last = judge_all(REWRITES, thought)
    assert (first.rule, first.texts) == (2, ("<think>\nbecause\n</think>\n\ngoodday<|im_end|>",))
    # With thinking on, a turn without a thought is shown in two forms.
    assert (last.rule, last.refusals) == (1, {"two_forms"})
    assert last.texts == ("certainly<|im_end|>", "<think>\n\n</think>\n\ncertainly<|im_end|>")


def test_a_thought_that_is_open_and_not_in_the_record_is_refused() -> None:
    for verdict in judge_all(OPENS, GREETING):
        assert (verdict.rule, verdict.refusals) == (4, {"no_reasoning"})


def test_a_thought_that_no_render_shows_may_be_declared() -> None:
    chat = [GREETING[0], {**GREETING[1], "reasoning_content": "because"}]
    (verdict,) = judge_all(OPENS, chat)
    assert (verdict.rule, verdict.refusals) == (3, {"dropped"})
    model = build(OPENS)
    assert not explain_declared(model, verdict, chat[1], "because\n</think>\n\ngoodday<|im_end|>", verdict.prompt)
    wrong = {
        "goodday<|im_end|>": "not there: reasoning",
        "because\n</think>\n\ngoodday": "no end",
        "because\n\ngoodday<|im_end|>": "<think> is not closed",
        "because\n</think>\n      goodday<|im_end|>": "indentation",
        "because\n</think>\n\nsurely goodday<|im_end|>": "more than the record and tags: ['surely ']",
    }
    for text, reason in wrong.items():
        assert explain_declared(model, verdict, chat[1], text, verdict.prompt) == reason


def test_indentation_is_no_witness() -> None:
    for verdict in judge_all(INDENTED, GREETING):
        assert (verdict.rule, verdict.texts, verdict.note) == (3, (), "indentation")


def test_two_ends_contradict_each_other() -> None:
    source = PLAIN.replace(
        "{{ '<|im_end|>\n' }}", "{{ '<|tool|>' if loop.last and not add_generation_prompt else '<|im_end|>\n' }}"
    )
    both = frozenset(["<|im_end|>", "<|tool|>"])
    (verdict, _) = judge_all(source, GREETING, both)
    assert (verdict.rule, verdict.refusals) == (1, {"two_forms"})
    assert verdict.texts == ("goodday<|im_end|>", "goodday<|tool|>")


def test_what_no_render_shows_is_dropped() -> None:
    source = PLAIN.replace("{{ m.content }}", "{{ m.content if m.role == 'user' }}")
    for verdict in judge_all(source, GREETING):
        assert (verdict.rule, verdict.refusals, verdict.note) == (4, {"dropped"}, "not shown: content")


def test_a_conversation_that_the_template_raises_on_is_a_template_error() -> None:
    source = "{{ raise_exception('no') }}"
    assert [verdict.refusals for verdict in judge_all(source, GREETING)] == [{"template_error"}] * 2


@pytest.mark.skipif(not (SHARED / "templates").is_dir(), reason=f"the templates are not at {SHARED}")
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_every_shared_template_obeys_the_law(step: int) -> None:
    folders = [SHARED / "templates", SHARED / "tokenizers"]
    cells = try_folder(folders, SHARED / "tokenizers" / "qwen2_5", 1, [*KINDS], step=step)
    assert not [f"{cell.template} / {cell.kind}: {fault}" for cell in cells for fault in cell.faults]
    # Most conversations are encoded: a refusal of everything would be within the law as well.
    outcomes = Counter("refused" if "refused" in cell.outcome else cell.outcome for cell in cells)
    assert outcomes["rule 1"] + outcomes["rule 2"] > len(cells) / 2
    assert min(outcomes["rule 1"], outcomes["rule 2"], outcomes["rule 3"]) > 0
