"""Turns in sequences of their own: the prompt of inference, and the turn in the model's own grammar."""

from typing import Any

import pytest
from test_template_faults import MARKS, answer, call, tokenizer_of, trained, user
from token_families import small_backend

from pairwright import Message
from pairwright.tokens import ChatTokenizer, Refusal, encode_chat, encode_pair, encode_turns

CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def thinker(shown: str, prompt: str, **options: Any) -> ChatTokenizer:
    """A template that shows a turn as `shown`, after a generation prompt that ends with `prompt`."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + shown + CALLS
        + "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )  # fmt: skip
    tokenizer: ChatTokenizer = tokenizer_of(template, "<|im_end|>", MARKS, TAGS, **options)
    return tokenizer


SPLIT = "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
INLINE = (
    "{% set parts = m.content.split('</think>') %}<think>\n"
    "{{ parts[0].split('<think>')[-1].strip() if parts | length > 1 }}\n</think>\n\n{{ parts[-1].lstrip() }}"
)
EMPTY = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% else %}<think></think>{% endif %}"


def speak(tokenizer: ChatTokenizer, *turns: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    """(end of the prompt, what is trained) of each turn; the prompt is what inference is given."""
    chat = [item for number, turn in enumerate(turns) for item in (user(f"q{number}"), turn)]
    result = []
    for number, sequence in enumerate(encode_turns(tokenizer, chat, **options)):
        start = int(sequence.mask.argmax())
        prompt = tokenizer.decode(sequence.ids[:start])
        assert prompt == tokenizer.renderer(None).text(chat[: 2 * number + 1], prompt=True)
        result.append((prompt.rpartition("assistant")[2], trained(tokenizer, sequence)))
    return result


def test_reasoning_that_the_template_never_shows_is_trained_after_an_open_thought() -> None:
    tokenizer = thinker(SPLIT, "<think>\n")
    assert speak(tokenizer, answer("a", reasoning_content="why"), answer("b", reasoning_content="so")) == [
        ("\n<think>\n", "why\n</think>\n\na<|im_end|>"),
        ("\n<think>\n", "so\n</think>\n\nb<|im_end|>"),
    ]


def test_content_that_holds_its_own_thought_is_trained_as_it_was_written() -> None:
    tokenizer = thinker(SPLIT, "<think>\n")
    assert speak(tokenizer, answer("<think>\nwhy\n</think>\n\na")) == [("\n<think>\n", "why\n</think>\n\na<|im_end|>")]
    for shown in ("<think>\n{{ m.content }}", EMPTY + "{{ m.content }}"):  # it is not opened twice
        assert speak(thinker(shown, "<think>\n"), answer("<think>\nwhy\n</think>\n\na")) == [
            ("\n<think>\n", "why\n</think>\n\na<|im_end|>")
        ]
    assert speak(tokenizer, answer("why not</think> a")) == [("\n<think>\n", "why not</think> a<|im_end|>")]


def test_an_open_thought_without_reasoning_is_closed_as_the_template_writes_an_empty_one() -> None:
    assert speak(thinker(EMPTY + "{{ m.content }}", "<think>\n"), answer("a"), answer("b")) == [
        ("\n<think>\n", "</think>a<|im_end|>"),
        ("\n<think>\n", "</think>b<|im_end|>"),
    ]
    assert speak(thinker(SPLIT, "<think>\n"), answer("a")) == [("\n<think>\n", "\n</think>\n\na<|im_end|>")]
    off = "<think>\n{% if enable_thinking is false %}</think>{% endif %}"
    assert speak(thinker(SPLIT, off), answer("a")) == [("\n<think>\n", "</think>a<|im_end|>")]


def test_a_call_alone_follows_the_closed_thought() -> None:
    turn = answer("", tool_calls=[call({})])
    assert speak(thinker(SPLIT, "<think>\n"), turn) == [
        ("\n<think>\n", '\n</think>\n\n<tool_call>{"name": "look", "arguments": {}}</tool_call><|im_end|>')
    ]


def test_missing_reasoning_is_refused_by_rule() -> None:
    tokenizer = thinker(EMPTY + "{{ m.content }}", "<think>\n")
    with pytest.raises(Refusal, match="message 3: missing_reasoning"):
        speak(tokenizer, answer("a", reasoning_content="why"), answer("b"), missing_reasoning="refuse")
    sides = [answer("a", reasoning_content="why")], [answer("b")]
    encode_pair(tokenizer, [user("q")], *sides)
    with pytest.raises(Refusal, match=r"message 1: missing_reasoning: .*--missing-reasoning close"):
        encode_pair(tokenizer, [user("q")], *sides, missing_reasoning="refuse")


def test_reasoning_after_a_thought_that_the_prompt_closes_is_dropped_or_refused_with_the_variable_named() -> None:
    prompt = "<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}"
    tokenizer = thinker(EMPTY + "{{ m.content }}", prompt)
    turn = answer("a", reasoning_content="why")
    with pytest.raises(Refusal, match=r"dropped: .*reasoning.*the template reads enable_thinking"):
        speak(tokenizer, turn)
    assert speak(tokenizer, turn, allow_dropped=True)[0][1] == "a<|im_end|>"
    thinking = thinker(EMPTY + "{{ m.content }}", prompt, variables={"enable_thinking": True})
    assert speak(thinking, turn)[0][1] == "why\n</think>\na<|im_end|>"


@pytest.mark.parametrize("shown", ["{{ m.content }}", SPLIT, INLINE])
def test_a_thought_in_the_content_is_not_written_after_one_that_the_prompt_closes(shown: str) -> None:
    tokenizer = thinker(shown, "<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}")
    turn = answer("<think>\nwhy\n</think>\n\na")
    with pytest.raises(Refusal, match=r"dropped: .*reasoning.*the template reads enable_thinking"):
        speak(tokenizer, turn)
    assert speak(tokenizer, turn, allow_dropped=True)[0][1] == "a<|im_end|>"
    # An empty one is what the prompt has already: nothing is lost.
    assert speak(tokenizer, answer("<think>\n\n</think>\n\na"))[0][1] == "a<|im_end|>"
    # A tag in the middle of a text is text.
    if shown == "{{ m.content }}":
        assert speak(tokenizer, answer("a </think> b"))[0][1] == "a </think> b<|im_end|>"


def test_history_that_is_closed_otherwise_once_a_turn_follows_is_rendered_as_inference_has_it() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.role == 'user' and not loop.last %}!{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    assert speak(tokenizer, answer("a"), answer("b")) == [("\n", "a<|im_end|>"), ("\n", "b<|im_end|>")]


def test_a_stop_that_the_template_writes_inside_a_turn_ends_it() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls or [] %}"
        "{{ c.function | tojson }}<|im_end|><|im_start|>assistant\n{% endfor %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    ready = tokenizer_of(template, "<|im_end|>", MARKS)
    turn = answer("text", tool_calls=[call({})])
    with pytest.raises(Refusal, match=r"dropped: .*content"):
        speak(ready, turn)
    assert speak(ready, turn, allow_dropped=True) == [("\n", '{"name": "look", "arguments": {}}<|im_end|>')]


NO_THINK = (  # the last turn repeats the prompt, its thought is open, and its calls come after a stop of their own
    "{% set ns = namespace(think=true) %}{% for m in messages %}"
    "{% if m.role == 'user' and '/no_think' in m.content %}{% set ns.think = false %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\n' if ns.think else '<think></think>' }}{% endif %}{{ m.content.strip() }}"
    "{% if m.tool_calls %}{{ '<|im_end|>\n<|im_start|>assistant\n' if loop.last else '\n' }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>\n' if ns.think else '<think></think>' }}{% endif %}"
)


def test_a_thought_that_the_template_opens_and_never_closes_is_closed() -> None:
    tokenizer = tokenizer_of(NO_THINK, "<|im_end|>", MARKS, TAGS)
    assert speak(tokenizer, answer("a"), answer("b", reasoning_content="why")) == [
        ("\n<think>\n", "</think>a<|im_end|>"),
        ("\n<think>\n", "why\n</think>\n\nb<|im_end|>"),
    ]
    with pytest.raises(Refusal, match="prompt_not_continued: the thinking block that the prompt opens is never closed"):
        encode_chat(tokenizer, [user("q"), answer("a")])


def test_a_header_inside_a_turn_is_not_trained_also_where_its_stop_is_not_eos() -> None:
    tokenizer = tokenizer_of(NO_THINK, "<|endoftext|>", ("<|endoftext|>", *MARKS), TAGS)
    turn = answer("a", tool_calls=[call({})])
    with pytest.raises(Refusal, match=r"dropped: .*tool_calls"):
        speak(tokenizer, turn)
    assert speak(tokenizer, turn, allow_dropped=True) == [("\n<think>\n", "</think>a<|im_end|>")]


@pytest.mark.parametrize("content", ["\na", "\n\na", " a", "\n a", "a"])
@pytest.mark.parametrize(("shown", "prompt"), [("{{ m.content }}", ""), (EMPTY + "{{ m.content }}", "<think>\n")])
def test_a_token_that_spans_prompt_and_turn_is_split_or_counted(shown: str, prompt: str, content: str) -> None:
    source = thinker(shown, prompt).renderer(None).source
    tokenizer = ChatTokenizer(small_backend(), source, special_tokens={"eos_token": "<|im_end|>"})
    assert len(tokenizer.encode("\n\n")[0]) == 1  # such tokens exist
    for turn in (answer(content), answer("a", reasoning_content=content)):
        speak(tokenizer, turn, allow_dropped=True)  # asserts that the prompt's ids are the inference prompt
        chat = [user("q"), turn]
        expected = tokenizer.renderer(None).text(chat[:1], prompt=True)
        for sequence in encode_turns(tokenizer, chat, boundaries="whole", allow_dropped=True):
            is_exact = tokenizer.decode(sequence.ids[: int(sequence.mask.argmax())]) == expected
            assert sequence.report.merged == (0 if is_exact else 1)


def test_a_sentence_that_only_the_prompt_has_opens_the_reasoning() -> None:
    shown = "{% if m.reasoning_content %}{{ m.reasoning_content }}\n[FINAL]\n{% endif %}{{ m.content }}"
    tokenizer = thinker(shown, "Here are my steps:\n")
    assert speak(tokenizer, answer("a", reasoning_content="why"), answer("b")) == [
        ("\nHere are my steps:\n", "why\n[FINAL]\na<|im_end|>"),
        ("\nHere are my steps:\n", "[FINAL]\nb<|im_end|>"),
    ]


def test_less_white_space_after_the_opening_tag_than_the_prompt_has_is_not_written_again() -> None:
    shown = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    assert speak(thinker(shown, "<think>\n\n"), answer("a", reasoning_content="why")) == [
        ("\n<think>\n\n", "why\n</think>\n\na<|im_end|>")
    ]


def test_reasoning_that_the_template_empties_is_trained_inside_its_tags() -> None:
    tokenizer = thinker("<think></think>{{ m.content }}", "")
    assert speak(tokenizer, answer("a", reasoning_content="why"), answer("b", reasoning_content="so")) == [
        ("\n", "<think>why</think>a<|im_end|>"),
        ("\n", "<think>so</think>b<|im_end|>"),
    ]


def test_a_thought_in_the_text_of_a_record_is_not_written_after_an_empty_one() -> None:
    tokenizer = thinker("<think></think>{{ m.content }}", "")
    messages = [Message("user", "q"), Message("assistant", "<think>why</think>\n\na")]
    (sequence,) = encode_turns(tokenizer, messages)
    assert trained(tokenizer, sequence) == "<think>why</think>a<|im_end|>"


def test_a_header_with_other_white_space_in_the_prompt_is_found() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '\n' }}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    chat = [user("q"), answer("a"), user("r"), answer("b")]
    assert [trained(tokenizer, sequence) for sequence in encode_turns(tokenizer, chat)] == [
        "a\n<|im_end|>",
        "b\n<|im_end|>",
    ]


def test_a_call_is_closed_where_its_id_is_written_only_once_a_result_follows() -> None:
    # As Apriel has it: no id, and no stop, when the turn is last.
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% set last = loop.last %}"
        "{% for c in m.tool_calls or [] %}[{{ c.function | tojson }}"
        "{% if not last %}, id: {{ c.id }}{% endif %}]</calls>{% endfor %}"
        "{% if not last or m.role != 'assistant' %}\n<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    turn = answer("a", tool_calls=[call({"k": "v"})])
    chat = [user("q"), turn, {"role": "tool", "content": "r", "tool_call_id": "c1"}, answer("b")]
    first = trained(tokenizer, encode_turns(tokenizer, chat)[0])
    assert first.endswith("]</calls><|im_end|>")


def test_a_header_that_is_added_after_every_last_message_is_no_stop() -> None:
    # The role is a token of its own, and the generation prompt goes on after it: Command A.
    marks = ("<|start|>", "<|end|>", "<|user|>", "<|bot|>", "<|open|>", "<|eos|>")
    template = (
        "{% for m in messages %}<|start|>{{ '<|bot|><|open|>' if m.role == 'assistant' else '<|user|>' }}"
        "{{ m.content }}<|end|>{% endfor %}<|start|><|bot|>{% if add_generation_prompt %}<|open|>{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|eos|>", marks)
    chat = [user("q"), answer("a"), user("r"), answer("b")]
    texts = [trained(tokenizer, sequence) for sequence in encode_turns(tokenizer, chat)]
    assert "".join(texts) == "a<|end|>b<|end|>"


COUNTED = (  # opens calls once in a conversation, as the template of DeepSeek R1 does
    "{% set ns = namespace(has_calls=false) %}{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{{ '<tool_call>' if ns.has_calls else '<|im_start|>assistant\n<tool_call>' }}{% set ns.has_calls = true %}"
    "{{ m.tool_calls[0].function | tojson }}</tool_call><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ 'Now: ' if messages[-1].content == 'now' }}{% endif %}"
)
COUNTED_CHAT = [
    user("q"),
    answer("", tool_calls=[call({"k": 1})]),
    {"role": "tool", "content": "r", "tool_call_id": "c1"},
    answer("Wait."),
    answer("", tool_calls=[call({"k": 2})]),
]


def test_a_call_that_is_shown_without_its_header_is_trained_as_after_its_question_alone() -> None:
    tokenizer = tokenizer_of(COUNTED, "<|im_end|>", MARKS, TAGS)
    last = encode_turns(tokenizer, COUNTED_CHAT)[-1]
    start = int(last.mask.argmax())
    assert tokenizer.decode(last.ids[:start]) == tokenizer.renderer(None).text(COUNTED_CHAT[:4], prompt=True)
    assert trained(tokenizer, last) == '<tool_call>{"name": "look", "arguments": {"k": 2}}</tool_call><|im_end|>'


def test_a_call_that_is_shown_without_its_header_is_refused_after_a_prompt_that_ends_with_more_than_the_header() -> (
    None
):
    tokenizer = tokenizer_of(COUNTED, "<|im_end|>", MARKS, TAGS)
    with pytest.raises(Refusal, match="message 4: prompt_not_continued"):
        encode_turns(tokenizer, [*COUNTED_CHAT[:3], user("now"), COUNTED_CHAT[4]])
