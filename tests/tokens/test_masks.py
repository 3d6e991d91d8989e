"""The law of masks on written templates: each rule, each refusal, and the defects that guessed grammars had."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from test_template_faults import MARKS, STOPS, answer, call, headers, tokenizer_of, trained, user

from pairwright.tokens import ChatTokenizer, EncodeOptions, Refusal, TokensError, encode_chat, encode_pair, encode_turns
from pairwright.tokens.declared_rows import Row, read_rows

CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CLOSE = EncodeOptions(missing_reasoning="close")
SPLIT = "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
EMPTY = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% else %}<think></think>{% endif %}"


def thinker(shown: str, prompt: str, **options: Any) -> ChatTokenizer:
    """A template that shows a turn as `shown`, after a generation prompt that ends with `prompt`."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + shown + CALLS
        + "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n" + prompt + "{% endif %}"
    )  # fmt: skip
    tokenizer: ChatTokenizer = tokenizer_of(template, "<|im_end|>", MARKS, TAGS, **options)
    return tokenizer


def speak(tokenizer: ChatTokenizer, *turns: dict[str, Any], options: EncodeOptions = EncodeOptions()) -> list[Any]:  # noqa: B008
    """(context after the header, what is trained, rules, added tokens) of each sequence."""
    chat = [item for number, turn in enumerate(turns) for item in (user(f"q{number}"), turn)]
    result = []
    for sequence in encode_turns(tokenizer, chat, None, options):
        context = tokenizer.decode(sequence.ids[: int(sequence.mask.argmax())]).rpartition("assistant\n")[2]
        report = sequence.report
        result.append((context, trained(tokenizer, sequence), report.rules, report.added_tokens))
    return result


def test_turns_whose_next_prompt_continues_theirs_share_a_sequence() -> None:
    assert speak(thinker("{{ m.content }}", ""), answer("a"), answer("b")) == [
        ("", "a<|im_end|>b<|im_end|>", (1, 1), 0)
    ]


def test_a_turn_that_later_prompts_rewrite_ends_its_sequence() -> None:
    shown = "{% if loop.last %}" + EMPTY + "{% endif %}{{ m.content }}"
    turns = [answer("a", reasoning_content="why"), answer("b", reasoning_content="so")]
    assert [item[1:] for item in speak(thinker(shown, ""), *turns)] == [
        ("<think>\nwhy\n</think>\na<|im_end|>", (2,), 0),
        ("<think>\nso\n</think>\nb<|im_end|>", (2,), 0),
    ]


def test_history_that_is_shown_otherwise_does_not_change_the_prompt() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.role == 'user' and not loop.last %}!{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    assert [item[1:3] for item in speak(tokenizer, answer("a"), answer("b"))] == [
        ("a<|im_end|>", (2,)),
        ("b<|im_end|>", (2,)),
    ]


def test_a_thought_that_no_render_shows_is_declared_and_not_called_exact() -> None:
    tokenizer = thinker(SPLIT, "<think>\n")
    (sequence,) = encode_turns(tokenizer, [user("q"), answer("a", reasoning_content="why")])
    assert trained(tokenizer, sequence) == "why\n</think>\n\na<|im_end|>"
    assert (sequence.report.rules, sequence.report.declared) == ((3,), (1,))
    assert not sequence.report.is_exact
    inline = encode_turns(tokenizer, [user("q"), answer("<think>\nwhy\n</think>\n\na")])[0]
    assert inline.ids.tolist() == sequence.ids.tolist()


def test_a_missing_thought_is_refused_unless_the_user_closes_it() -> None:
    """By default a record without reasoning is refused; with CLOSE the closing tokens are not trained."""
    tokenizer = thinker(SPLIT, "<think>\n")
    with pytest.raises(Refusal, match=r"message 1: no_reasoning: .*--missing-reasoning close"):
        speak(tokenizer, answer("a"))
    (closed,) = speak(tokenizer, answer("a"), options=CLOSE)
    assert closed[:3] == ("<think>\n\n</think>\n\n", "a<|im_end|>", (3,))
    assert closed[3] > 0
    sides = [answer("a", reasoning_content="why")], [answer("b")]
    with pytest.raises(Refusal, match=r"message 1: no_reasoning: rejected: "):
        encode_pair(tokenizer, [user("q")], *sides)


def test_an_empty_thought_that_the_template_writes_after_the_prompt_is_not_trained() -> None:
    shown = "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{{ m.content }}"
    for prompt in ("", "<think>\n"):
        (sequence,) = speak(thinker(shown, prompt), answer("a"))
        assert sequence[:3] == ("<think>\n\n</think>\n\n", "a<|im_end|>", (1,))
        assert sequence[3] > 0


def test_the_mode_follows_the_record_and_is_reported() -> None:
    prompt = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    shown = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    tokenizer = thinker(shown, prompt)
    for turn, mode, text in (
        (answer("a"), {"enable_thinking": False}, "a<|im_end|>"),
        (answer("a", reasoning_content="why"), {"enable_thinking": True}, "<think>\nwhy\n</think>\n\na<|im_end|>"),
    ):
        (sequence,) = encode_turns(tokenizer, [user("q"), turn])
        assert (sequence.report.mode, trained(tokenizer, sequence)) == (mode, text)
        assert sequence.report.is_exact
    # What the record or the configuration sets stays.
    fixed = tokenizer.with_variables({"enable_thinking": True})
    assert encode_turns(fixed, [user("q"), answer("a")])[0].report.mode == {}


def test_turns_without_reasoning_have_one_form() -> None:
    """Qwen3: `first` in history, an empty thought before the last; both in one sequence before."""
    shown = "{% if loop.last or m.reasoning_content %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
    prompt = "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    spoken = speak(thinker(shown, prompt), answer("first"), answer("second"), answer("third"))
    assert [(context, text) for context, text, _, _ in spoken] == [
        ("<think>\n\n</think>\n\n", f"{word}<|im_end|>") for word in ("first", "second", "third")
    ]


def test_a_record_has_one_form_of_turns_without_reasoning() -> None:
    """The last turn was trained without the empty thought that the first one has: only history differs before it."""
    shown = (
        "{% if loop.last or m.reasoning_content and loop.nextitem is defined and loop.nextitem.role == 'user' and not "
        "messages[loop.index0 + 2:] %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}"
    )
    turns = [answer("first"), answer("second", reasoning_content="why"), answer("third")]
    spoken = speak(thinker(shown, ""), *turns)
    assert [text for _, text, _, _ in spoken] == [
        "first<|im_end|>",
        "<think>\nwhy\n</think>\n\nsecond<|im_end|>third<|im_end|>",
    ]
    assert spoken[0][3] == spoken[1][3] > 0  # the empty thought before "first", and before "third"


GEMMA = (  # vLLM's template for Gemma 4: a call ends with <turn|> if it is last, with <|tool_response> in history
    "{% for m in messages %}{% if m.role == 'tool' %}<|tool_response>{{ m.content }}<tool_response|>{% else %}"
    "{% if not (loop.index0 and messages[loop.index0 - 1].role == 'tool') %}<|turn>{{ m.role }}\n{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|tool_call>{{ c.function.name }}<tool_call|>{% endfor %}"
    "{% if not (m.tool_calls and loop.nextitem is defined and loop.nextitem.role == 'tool') %}<turn|>\n{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>assistant\n{% endif %}"
)
GEMMA_TOKENS = ("<eos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>")
CALLED = [user("q"), answer(None, tool_calls=[call({})]), {"role": "tool", "content": "r", "name": "look"}, answer("a")]


def test_a_call_ends_with_what_the_next_prompt_shows() -> None:
    """The trained stop token is that of the next prompt, whether the content is null, empty or text."""
    known = tokenizer_of(GEMMA, "<eos>", GEMMA_TOKENS, stop_tokens=("<turn|>", "<|tool_response>"))
    with pytest.raises(Refusal, match=r"message 1: two_forms: .*tokens.grammar"):
        encode_turns(known, CALLED)
    row = Row("ours", ("<|tool_response>",), end_text="<turn|>", end_call="<|tool_response>", prefer="next")
    declared = tokenizer_of(GEMMA, "<eos>", GEMMA_TOKENS, grammar=(row,))
    for content in (None, "", "see"):
        chat = [CALLED[0], {**CALLED[1], "content": content}, *CALLED[2:]]
        text = "".join(trained(declared, sequence) for sequence in encode_turns(declared, chat))
        assert text == f"{content or ''}<|tool_call>look<tool_call|><|tool_response>a<turn|>"
    last = encode_turns(declared, CALLED[:2])[-1]  # a probe replaces the result
    assert trained(declared, last) == "<|tool_call>look<tool_call|><|tool_response>"
    assert last.report.unstopped == ()


def test_an_end_that_every_render_shows_is_trained_whatever_the_row_says() -> None:
    """A variant of Gemma 4 whose history also has `<tool_call|><turn|>`: only the rendered end is trained."""
    shown = (
        "{% if m.reasoning_content and m.tool_calls %}<|channel>thought\n{{ m.reasoning_content }}<channel|>{% endif %}"
        "{% for c in m.tool_calls or [] %}<|tool_call>{{ c.function | tojson }}<tool_call|>{% endfor %}{{ m.content or '' }}"
    )
    template = (
        "{% for m in messages %}<|turn>{{ m.role }}\n" + shown + "<turn|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
    )
    row = Row("ours", ("<turn|>",), "<|channel>thought\n", "\n<channel|>", "<turn|>", "<|tool_response>", "next")
    tokenizer = tokenizer_of(template, "<eos>", (*GEMMA_TOKENS, "<|channel>", "<channel|>"), grammar=(row,))
    caller = answer(None, tool_calls=[call({"place": "here"})])
    called = '<|tool_call>{"name": "look", "arguments": {"place": "here"}}<tool_call|><turn|>'
    for turn, thought in ((caller, ""), ({**caller, "reasoning_content": "why"}, "<|channel>thought\nwhy<channel|>")):
        (sequence,) = encode_turns(tokenizer, [CALLED[0], turn, *CALLED[2:]])
        assert trained(tokenizer, sequence) == thought + called + "a<turn|>"
        assert sequence.report.is_exact


def test_a_declared_thought_keeps_the_closing_of_a_call_that_has_no_end() -> None:
    """The trained text includes `<tool_call|>` after the last argument."""
    template = (
        "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}<|tool_call>{{ c.function | tojson }}<tool_call|>{% endfor %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|turn>assistant\n<think>{% endif %}"
    )
    row = Row("ours", ("<|turn>",), opening="<think>", closing="</think>", end_text="<turn|>")
    tokenizer = tokenizer_of(template, "<eos>", GEMMA_TOKENS, ("<think>", "</think>"), grammar=(row,))
    turn = answer(None, tool_calls=[call({"place": "here"})], reasoning_content="why")
    (sequence,) = encode_turns(tokenizer, [CALLED[0], turn])
    called = '<|tool_call>{"name": "look", "arguments": {"place": "here"}}<tool_call|>'
    assert trained(tokenizer, sequence) == f"why</think>{called}<turn|>"


def test_a_declared_end_that_the_vocabulary_lacks_gives_way_to_eos() -> None:
    """A template of one family with the tokenizer of another: the row's token cannot end the turn."""
    template = (
        "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
    )
    row = Row("ours", ("<|turn>",), end_text="<missing>")
    tokenizer = tokenizer_of(template, "<eos>", GEMMA_TOKENS, grammar=(row,))
    (sequence,) = encode_turns(tokenizer, [user("a"), answer("b")])
    assert trained(tokenizer, sequence) == "b<eos>"
    assert not sequence.report.is_exact


def test_the_end_that_a_row_declares_settles_a_contradiction() -> None:
    """History renders the text of a call after its result; the last render shows the whole turn."""
    thought = "{% if m.tool_calls %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}"
    template = GEMMA.replace("{{ m.content or '' }}", thought + "{{ m.content if not m.tool_calls }}").replace(
        "<tool_call|>{% endfor %}",
        "<tool_call|>{% endfor %}{% if m.tool_calls %}{% if loop.nextitem is defined %}<|tool_response>"
        "{{ loop.nextitem.content }}<tool_response|>{{ m.content }}<turn|>{% else %}{{ m.content }}<|tool_response>"
        "{% endif %}{% endif %}",
    )
    template = template.replace("<|turn>assistant\n", "<|turn>assistant\n<|channel>thought\n")
    row = Row("ours", ("<turn|>",), "<|channel>thought\n", "\n<channel|>", "<turn|>", "<|tool_response>", "next")
    tokenizer = tokenizer_of(template, "<eos>", (*GEMMA_TOKENS, "<|channel>", "<channel|>"), grammar=(row,))
    turn = {**CALLED[1], "content": "see", "reasoning_content": "why"}
    sequence = encode_turns(tokenizer, [CALLED[0], turn, *CALLED[2:]])[0]
    called = "<|tool_call>look<tool_call|>see<|tool_response>"
    assert trained(tokenizer, sequence) == f"why\n<channel|>{called}"
    assert (sequence.report.rules, sequence.report.declared, sequence.report.added_tokens) == ((2,), (), 0)


@pytest.mark.parametrize("indent,is_refused", [(" ", False), ("\n\n", False), (" " * 8, True)])
def test_indentation_of_the_template_is_refused(indent: str, is_refused: bool) -> None:
    """vLLM's templates for DeepSeek V3: 6 to 20 spaces before every answer were trained."""
    shown = "{{ " + repr(indent) + " }}{{ m.content }}"
    tokenizer = thinker(shown, "")
    if is_refused:
        with pytest.raises(Refusal, match=r"message 1: template_error: .*8 characters of white space"):
            speak(tokenizer, answer("a"))
        row = Row("ours", ("<|im_start|>",), opening=indent, closing="x")
        tokenizer = thinker(shown, "", grammar=(row,))
    assert speak(tokenizer, answer("a"))[0][1] == f"{indent}a<|im_end|>"
    assert speak(tokenizer, answer(indent + "a"))[0][1].endswith(f"{indent}a<|im_end|>")  # the record has it


def test_indentation_after_a_thought_that_the_prompt_closes_is_refused() -> None:
    """SGLang's templates for DeepSeek V3.1: the spaces were taken for white space of the thought, and trained."""
    tokenizer = thinker("</think>{{ '      ' }}{{ m.content }}", "</think>")
    with pytest.raises(Refusal, match=r"message 1: template_error: .*6 characters of white space before"):
        speak(tokenizer, answer("a"))


def test_white_space_inside_a_call_is_not_indentation() -> None:
    """Granite writes its calls as indented JSON: was refused."""
    calls = "<tool_call>{{ c.function | tojson(indent=4) }}</tool_call>"
    turn = answer("", tool_calls=[call({"place": "here"})])
    for after, is_refused in (("", False), ("{{ '     ' }}", True)):
        shown = "{{ m.content }}{% for c in m.tool_calls or [] %}" + calls + after + "{% endfor %}{% set m = {} %}"
        tokenizer = thinker(shown, "")
        if is_refused:
            with pytest.raises(Refusal, match=r"message 1: template_error: .*5 characters of white space after"):
                speak(tokenizer, turn)
        else:
            assert '"place": "here"\n    }\n}</tool_call><|im_end|>' in speak(tokenizer, turn)[0][1]


def test_an_answer_that_loses_its_empty_lines_is_refused() -> None:
    """Falcon joins them: the model was trained on text that it did not generate."""
    tokenizer = thinker("{{ m.content | replace('\n\n', '\n') | trim }}", "")
    assert speak(tokenizer, answer(" a\nb\n"))[0][1] == "a\nb<|im_end|>"
    with pytest.raises(Refusal, match=r"message 1: dropped: .* white space inside content"):
        speak(tokenizer, answer("a\n\nb"))


def test_headers_are_no_stops_unless_they_are_named() -> None:
    """GLM without generation_config.json learnt `<|system|>` or `<|assistant|>` as stops."""
    chat = [user("q"), answer("a"), answer("b")]
    unnamed = headers()
    assert [trained(unnamed, item) for item in encode_turns(unnamed, chat)] == ["a<|endoftext|>", "b<|endoftext|>"]
    assert all(item.report.added_tokens == 1 for item in encode_turns(unnamed, chat))
    named = headers(stop_tokens=STOPS)
    texts = [trained(named, item) for item in encode_turns(named, [user("q"), answer("a"), user("r"), answer("b")])]
    assert texts == ["a<|user|>b<|user|>"]


def test_an_end_token_inside_an_answer_does_not_end_it() -> None:
    tokenizer = thinker("{{ m.content }}", "")
    assert speak(tokenizer, answer("say <|im_end|> now"))[0][1] == "say <|im_end|> now<|im_end|>"


def test_two_forms_are_refused_until_one_is_declared() -> None:
    shown = "{{ m.content }}{{ '.' if loop.last and not add_generation_prompt }}"
    with pytest.raises(Refusal, match=r"message 1: two_forms: .*--grammar FILE"):
        speak(thinker(shown, ""), answer("a"))
    for prefer, text in (("next", "a<|im_end|>"), ("last", "a.<|im_end|>")):
        row = Row("ours", ("<|im_start|>",), prefer=prefer)  # type: ignore[arg-type]
        assert speak(thinker(shown, "", grammar=(row,)), answer("a"))[0][1] == text


def test_a_row_of_the_user_that_a_render_contradicts_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rows.yaml"
    file.write_text('- {name: ours, match: ["</think>"], opening: "<think>", closing: "</think>"}\n')
    tokenizer = thinker(EMPTY + "{{ m.content }}", "", grammar=read_rows(file, is_users=True))
    with pytest.raises(TokensError, match=r"tokens.grammar: ours: the template writes a thought as"):
        speak(tokenizer, answer("a", reasoning_content="why"))
    file.write_text("- {name: ours}\n")
    with pytest.raises(TokensError, match=r"rows.yaml: expected a list of rows"):
        read_rows(file)


def test_dropped_calls_name_the_way_out_that_is_left() -> None:
    """--tools-as-text hermes is recommended for dropped calls, but not for dropped reasoning."""
    tokenizer = tokenizer_of(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if not m.tool_calls }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        MARKS,
    )
    with pytest.raises(Refusal, match=r"dropped: .*--tools-as-text hermes"):
        encode_chat(tokenizer, [user("q"), answer("text", tool_calls=[call({})])])
    with pytest.raises(Refusal, match=r"dropped: ") as caught:
        encode_chat(tokenizer, [user("q"), answer("text", reasoning_content="why")])
    assert "--tools-as-text" not in str(caught.value)


def test_the_same_record_has_the_same_ids_tomorrow() -> None:
    template = "{{ strftime_now('%d %b %Y') }}" + (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    chat = [user("q"), answer("a")]
    assert tokenizer.decode(encode_turns(tokenizer, chat)[0].ids).startswith("01 Jan 2026")
    dated = tokenizer.at(datetime(2025, 7, 2))
    assert tokenizer.decode(encode_turns(dated, chat)[0].ids).startswith("02 Jul 2025")
