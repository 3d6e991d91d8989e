"""Templates that once gave a wrong mask, or a refusal without need: one small template each."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pairwright.records.messages import Message, ToolCall
from pairwright.tokens import ChatTokenizer, EncodeOptions, Refusal, Sequence, encode_chat, encode_pair, encode_turns

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
MARKS = ("<|im_start|>", "<|im_end|>")


def tokenizer_of(template: str, eos: str, special: tuple[str, ...], added: tuple[str, ...] = (), **options: Any) -> Any:
    """Every byte is a token; control tokens are added."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return ChatTokenizer(backend, template, special_tokens={"eos_token": eos}, **options)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(arguments: Any, name: str = "c1") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}


def trained(tokenizer: ChatTokenizer, sequence: Sequence) -> str:
    return tokenizer.decode(sequence.ids[sequence.mask])


HEADERS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'tool' %}<|observation|>{{ m.content }}"
    "{% else %}<|assistant|>{{ (m.content ~ '').strip() }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


STOPS = ("<|user|>", "<|observation|>")  # as GLM's generation_config.json names them


def headers(**options: Any) -> ChatTokenizer:
    special = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>")
    tokenizer: ChatTokenizer = tokenizer_of(
        HEADERS, "<|endoftext|>", special, ("<tool_call>", "</tool_call>"), **options
    )
    return tokenizer


def test_empty_content_beside_a_call_is_never_the_word_none() -> None:
    tokenizer = headers(stop_tokens=STOPS)
    records = [
        Message("user", "q"),
        Message("assistant", "", tool_calls=(ToolCall(name="look", arguments="{}", id="c1"),)),
        Message("tool", "r", tool_call_id="c1"),
        Message("assistant", "done"),
    ]
    assert trained(tokenizer, encode_chat(tokenizer, records)) == (
        "<tool_call>look</tool_call><|observation|>done<|user|>"
    )
    chat = [user("q"), answer(None, tool_calls=[call({})]), {"role": "tool", "content": "r"}, answer("done")]
    assert "None" not in trained(tokenizer, encode_chat(tokenizer, chat))


def test_where_the_next_header_is_the_stop_the_last_turn_gets_it() -> None:
    tokenizer = headers(stop_tokens=STOPS)
    pair = encode_pair(tokenizer, [user("q")], [answer("good")], [answer("bad")])
    assert trained(tokenizer, pair.chosen) == "good<|user|>"
    assert trained(tokenizer, pair.rejected) == "bad<|user|>"
    assert pair.chosen.report.unstopped == ()
    assert pair.chosen.report.added_tokens == 0  # the next prompt shows it
    with_call = encode_chat(tokenizer, [user("q"), answer("", tool_calls=[call({})])])
    assert trained(tokenizer, with_call) == "<tool_call>look</tool_call><|observation|>"


def test_where_no_header_is_a_stop_of_inference_each_turn_ends_with_eos() -> None:
    tokenizer = headers(stop_tokens=("<|endoftext|>",))
    chat = [user("q"), answer("a"), user("q2"), answer("a2")]
    with pytest.raises(Refusal, match="context_differs"):
        encode_chat(tokenizer, chat)
    sequences = encode_turns(tokenizer, chat)
    assert [trained(tokenizer, item) for item in sequences] == ["a<|endoftext|>", "a2<|endoftext|>"]
    assert [(item.report.added_tokens, item.report.is_exact) for item in sequences] == [(1, False), (1, False)]


def test_a_last_message_without_its_end_mark_gets_it() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if not loop.last or add_generation_prompt %}<|im_end|>\n{% endif %}{% endfor %}" + PROMPT
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    sequence = encode_chat(tokenizer, [user("q"), answer("a"), user("q2"), answer("a2")])
    assert trained(tokenizer, sequence) == "a<|im_end|>a2<|im_end|>"
    assert tokenizer.decode(sequence.ids).endswith("a2<|im_end|>")


def test_large_numbers_in_arguments_are_no_size() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v | string }}{% endfor %}"
        "{% endfor %}<|im_end|>\n{% endfor %}" + PROMPT
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    chat = [user("q"), answer("", tool_calls=[call({"ts": 1_700_000_000})]), {"role": "tool", "content": "r"}]
    sequence = encode_chat(tokenizer, [*chat, answer("x")])
    assert trained(tokenizer, sequence) == "look<ts>1700000000<|im_end|>x<|im_end|>"
    with pytest.raises(Refusal, match="characters or items"):
        encode_chat(tokenizer_of("{{ 'a' | center(1700000000) }}", "<|im_end|>", MARKS), [user("q"), answer("x")])


def test_a_header_that_is_always_added_is_not_the_stop() -> None:
    template = "{% for m in messages %}<|h|>{{ m.role }}<|/h|>{{ m.content }}<|eot|>{% endfor %}<|h|>assistant<|/h|>"
    tokenizer = tokenizer_of(
        template, "<|end_of_text|>", ("<|end_of_text|>", "<|h|>", "<|/h|>", "<|eot|>"), stop_tokens=("<|eot|>",)
    )
    sequence = encode_chat(tokenizer, [user("q"), answer("a"), user("q2"), answer("a2")])
    assert trained(tokenizer, sequence) == "a<|eot|>a2<|eot|>"


def test_a_closed_thought_of_the_prompt_is_not_written_again() -> None:
    template = (
        "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|turn>assistant\n<|channel>thought\n<channel|>{% endif %}"
    )
    special = ("<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>")
    tokenizer = tokenizer_of(template, "<eos>", special)
    (sequence,) = encode_turns(tokenizer, [user("q"), answer("a")])
    assert tokenizer.decode(sequence.ids) == (
        "<|turn>user\nq<turn|>\n<|turn>assistant\n<|channel>thought\n<channel|>a<turn|>"
    )
    assert trained(tokenizer, sequence) == "a<turn|>"


@pytest.mark.parametrize(
    "test", ["'quickly' in messages[-1].content", "(messages[-1].content | lower).startswith('quickly')"]
)
def test_a_word_that_the_template_tests_for_is_looked_for_at_every_turn(test: str) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if "
        + test
        + " %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    plain = [item for k in range(12) for item in (user(f"q{k}"), answer(f"a{k}"))]
    assert encode_chat(tokenizer, plain).report.num_turns == 12
    chat = [*plain[:10], user("quickly, please"), *plain[11:]]
    with pytest.raises(Refusal, match="message 11: context_differs"):
        encode_chat(tokenizer, chat)
    texts = [trained(tokenizer, sequence) for sequence in encode_turns(tokenizer, chat)]
    assert "".join(texts) == "".join(f"a{k}<|im_end|>" for k in range(12))


def test_a_newline_is_no_stop() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<eos>", ("<eos>",), ("\n",))
    sequences = encode_turns(tokenizer, [user("q"), answer("a"), user("q"), answer("b")])
    assert [sequence.report.stops for sequence in sequences] == [("<eos>",), ("<eos>",)]
    assert [trained(tokenizer, sequence) for sequence in sequences] == ["a<end><eos>", "b<end><eos>"]


def test_arguments_as_text_become_an_object_where_the_template_would_drop_them() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{% if c.function.arguments is mapping %}{{ c.function.arguments | tojson }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}" + PROMPT
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    results = {"role": "tool", "content": "r"}
    chat = [user("q"), answer("", tool_calls=[call('{"city": "Paris"}')]), results, answer("x")]
    sequence = encode_chat(tokenizer, chat)
    assert trained(tokenizer, sequence) == 'look{"city": "Paris"}<|im_end|>x<|im_end|>'
    broken = [user("q"), answer("", tool_calls=[call("{city")]), results, answer("x")]
    assert encode_chat(
        tokenizer, broken, options=EncodeOptions(boundaries="whole", allow_dropped=True)
    ).report.dropped == ((1, "tool_calls"),)


def test_of_two_eos_tokens_the_first_ends_the_turn() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n<|im_end|>\n"
        "{{ eos_token if m.role == 'assistant' }}{% endfor %}" + PROMPT
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    sequence = encode_chat(tokenizer, [user("q"), answer("a"), user("q2"), answer("a2")])
    assert trained(tokenizer, sequence) == "a\n<|im_end|>a2\n<|im_end|>"


def test_turns_are_compared_with_the_plain_render() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}[R]{{ m.content }}[/R]{% else %}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{% set a = c.function.arguments | tojson | safe %}"
        "{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + a + '}' }}{% endfor %}</s>{% endif %}{% endfor %}"
    )
    tokenizer = tokenizer_of(template, "</s>", ("</s>", "[INST]", "[/INST]", "[R]", "[/R]"))
    step = [answer("t", tool_calls=[call({"k": "v"})]), {"role": "tool", "content": "r"}]
    with pytest.raises(Refusal, match="text_differs"):
        encode_turns(tokenizer, [user("q"), *step, *step, *step, answer("y")])


def test_ids_of_calls_become_short_where_the_template_takes_no_others() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
        "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
        "[R]{{ m.tool_call_id }}{{ m.content }}[/R]"
        "{% else %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}</s>{% endif %}{% endfor %}"
    )
    tokenizer = tokenizer_of(template, "</s>", ("</s>", "[INST]", "[/INST]", "[R]", "[/R]"))
    names = ("call_abcdefghijkl", "toolu_12", "123456789")
    chat: list[dict[str, Any]] = [user("q")]
    for name in names:
        chat += [answer("", tool_calls=[call({}, name)]), {"role": "tool", "content": "r", "tool_call_id": name}]
    sequence = encode_chat(tokenizer, [*chat, answer("x")])
    assert sequence.report.rewritten_ids == 2
    text = tokenizer.decode(sequence.ids)
    assert "look{}defghijkl</s>[R]defghijklr[/R]" in text
    assert "look{}123456789</s>[R]123456789r[/R]" in text
    assert chat[1]["tool_calls"][0]["id"] == names[0]  # the messages stay as they were


def test_a_call_ends_with_the_stop_of_inference_also_where_its_closing_tag_is_special() -> None:
    special = ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>")
    tokenizer = tokenizer_of(HEADERS, "<|endoftext|>", special, stop_tokens=STOPS)
    chat = [user("q"), answer("", tool_calls=[call({})]), {"role": "tool", "content": "r"}, answer("a")]
    texts = [
        trained(tokenizer, sequence)
        for sequence in encode_turns(tokenizer, chat, options=EncodeOptions(allow_dropped=True))
    ]
    assert texts == ["<tool_call>look</tool_call><|observation|>a<|user|>"]


def test_what_closes_a_system_prompt_by_default_closes_a_turn_as_well() -> None:
    """As Command R7B has it: a preamble, a generation prompt that is always there, a stop that is not EOS."""
    template = (
        "<|im_start|>system\nBe kind.<|im_end|>{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}<|text|>{{ m.content }}<|end_text|>{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>{% endfor %}<|im_start|>assistant{{ '\n' }}"
    )
    tokenizer = tokenizer_of(
        template, "<|endoftext|>", ("<|endoftext|>", *MARKS, "<|text|>", "<|end_text|>"), stop_tokens=("<|im_end|>",)
    )
    (sequence,) = encode_turns(tokenizer, [user("q"), answer("a")])
    assert trained(tokenizer, sequence) == "<|text|>a<|end_text|><|im_end|>"


def test_instructions_that_a_template_appends_after_the_last_turn_are_not_its_stop() -> None:
    """As Command R+ has it: the header of the appended message is in every continuation."""
    template = (
        "{% for m in messages %}<|im_start|><|{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}"
        "<|im_start|><|system|>Write well.<|im_end|>{% if add_generation_prompt %}<|im_start|><|assistant|>{% endif %}"
    )
    special = ("<|endoftext|>", *MARKS, "<|user|>", "<|assistant|>", "<|system|>")
    tokenizer = tokenizer_of(template, "<|endoftext|>", special)
    (sequence,) = encode_turns(tokenizer, [user("q"), answer("a")])
    assert trained(tokenizer, sequence) == "a<|im_end|>"
