"""Prompts through chat templates: equal to transformers' own, and to those of the tokens stage."""

import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from generate.tiny_models import byte_tokenizer
from pairwright.generate import GenerateError
from pairwright.generate.prompt_encoding import ChatEncoder
from pairwright.records.messages import Message, ToolCall
from pairwright.tokens import encode_chat
from pairwright.tokens.message_dialect import adapt_records
from pairwright.tokens.tokenizer import ChatTokenizer

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

CALLED = [
    Message("system", "Be brief."),
    Message("user", "What time is it in Rome? 🙂"),
    Message("assistant", None, tool_calls=(ToolCall("clock", '{"city": "Rome", "tries": 2}', "call12345"),)),
    Message("tool", "12:30", tool_call_id="call12345", name="clock"),
]
TOOLS = [
    {"type": "function", "function": {"name": "clock", "description": "Time.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
]  # fmt: skip


def test_a_prompt_ends_with_the_generation_prompt():
    encoder = ChatEncoder(byte_tokenizer())
    assert encoder.text([Message("user", "hi")]) == "<|user|>hi<|end|><|assistant|>"
    assert encoder.text(CALLED[2:3]) == '<|assistant|><call>clock {"city": "Rome", "tries": 2}<|end|><|assistant|>'
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(encoder.ids([Message("user", "hi")])) == "<|user|>hi<|end|><|assistant|>"


def test_a_template_that_wants_text_arguments_gets_them():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments + '!' }}{% endfor %}{% endfor %}"
    assert ChatEncoder(tokenizer).text(CALLED) == '{"city": "Rome", "tries": 2}!'


def test_a_conversation_that_the_template_refuses_is_an_error_with_its_words():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system turns here') }}"
    with pytest.raises(GenerateError, match="no system turns here"):
        ChatEncoder(tokenizer).text(CALLED)
    tokenizer.chat_template = None
    with pytest.raises(GenerateError, match="no chat template"):
        ChatEncoder(tokenizer).text(CALLED)


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "llama3_1", "smollm2", "mistral_nemo", "gptoss"])
def test_the_engine_and_the_tokens_stage_make_the_same_prompt(family):
    folder = SHARED / "tokenizers" / family
    if not folder.is_dir():
        pytest.skip("no tokenizers beside the project")
    ours, encoder = ChatTokenizer.from_folder(folder), ChatEncoder(AutoTokenizer.from_pretrained(folder))
    for messages, tools in ((CALLED[:2], []), (CALLED, TOOLS)):
        schemas = ours.schemas(tools)
        text = ours.renderer(schemas).text(adapt_records(ours, messages, schemas)[0], schemas, prompt=True)
        # A served model gets the current date; the tokens stage has a fixed one (`tokens.clock`).
        served = re.sub(r"(Current date: )[0-9-]+", r"\g<1>2026-01-01", encoder.text(messages, tools))
        assert served == text
        if family != "gptoss":
            assert encoder.ids(messages, tools).tolist() == ours.encode(text)[0].tolist()


def test_a_template_gets_variables_that_it_reads_and_no_others():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{{ ' thinks' if enable_thinking else '' }}"
    encoder = ChatEncoder(tokenizer)
    assert encoder.text([Message("user", "hi")], variables={"enable_thinking": True}) == "hi thinks"
    assert encoder.ids([Message("user", "hi")]).tolist() != encoder.ids(
        [Message("user", "hi")], variables={"enable_thinking": True}
    ).tolist()  # fmt: skip
    # As keyword arguments of apply_chat_template these would replace the template, or its way to make text.
    for name, value in (("chat_template", "{{ 'mine' }}"), ("tokenize", True), ("thinking", True)):
        with pytest.raises(GenerateError, match=f"chat_template_kwargs: .*no variable '{name}'; it reads enable_think"):
            encoder.text([Message("user", "hi")], variables={name: value})


def test_flat_schemas_of_tools_are_nested_as_servers_do_for_inference_and_for_training():
    function = TOOLS[0]["function"]
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    ready = ChatTokenizer(tokenizer.backend_tokenizer, template, special_tokens={"eos_token": "<|end|>"})
    chat = [Message("user", "hi"), Message("assistant", "ho")]
    for tool in (function, {"type": "function", **function, "strict": None}):  # of datasets, and of the Responses API
        assert ChatEncoder(tokenizer).text(chat[:1], [tool]) == ChatEncoder(tokenizer).text(chat[:1], TOOLS)
        assert encode_chat(ready, chat, [tool]).ids.tolist() == encode_chat(ready, chat, TOOLS).ids.tolist()
    other = {"type": "custom", "name": "patch"}
    assert ChatEncoder(tokenizer).text(chat[:1], [other]).startswith('{"type": "custom", "name": "patch"}')
