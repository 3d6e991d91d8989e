"""Content in parts and null content, for templates that take text alone."""

import pytest
from test_template_faults import MARKS, answer, call, tokenizer_of, trained, user
from token_cases import tool

from pairwright.tokens import Refusal, encode_turns

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def test_parts_of_text_become_text_where_a_template_reads_no_parts():
    tokenizer = tokenizer_of(CHATML, "<|im_end|>", MARKS)
    chat = [{"role": "user", "content": parts("one", "two")}, {"role": "assistant", "content": parts("three")}]
    (sequence,) = encode_turns(tokenizer, chat)
    assert tokenizer.decode(sequence.ids).startswith("<|im_start|>user\none\ntwo<|im_end|>")
    assert trained(tokenizer, sequence) == "three<|im_end|>"
    assert chat[0]["content"] == parts("one", "two")  # the user's own messages stay as they are


def test_several_parts_that_the_model_wrote_are_not_joined():
    chat = [user("one"), {"role": "assistant", "content": parts("two", "three")}]
    with pytest.raises(Refusal, match="template_error"):
        encode_turns(tokenizer_of(CHATML, "<|im_end|>", MARKS), chat)


def test_parts_stay_where_a_template_reads_them():
    template = "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>{% endif %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.text }})"
    template += "{% endfor %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS)
    (sequence,) = encode_turns(tokenizer, [{"role": "user", "content": parts("one", "two")}, answer("three")])
    assert tokenizer.decode(sequence.ids).startswith("(one)(two)<|im_end|>")


def test_null_content_beside_calls_is_empty_where_a_template_cannot_add_it():
    tokenizer = tokenizer_of(CHATML, "<|im_end|>", MARKS)
    turn = {"role": "assistant", "content": None, "tool_calls": [call({"k": 1}, "call00001")]}
    (sequence,) = encode_turns(tokenizer, [user("one"), turn, tool("two", 1), answer("three")])
    assert trained(tokenizer, sequence).endswith('{"k": 1}<|im_end|>three<|im_end|>')
    assert "None" not in tokenizer.decode(sequence.ids)
