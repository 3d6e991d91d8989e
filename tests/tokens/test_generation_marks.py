"""A second oracle: transformers' own assistant mask, on templates whose turns are marked with `{% generation %}`.

The marks are put into the templates by hand here; what is generated is then what the marks enclose, and transformers
finds it in its own way. The marked template must render the same text as the one that ours is given.
"""

import functools
from typing import Any

import pytest
from token_cases import CASES
from token_families import FAMILIES, SHARED, real_hf, real_tokenizer, small_backend, small_tokenizer, special_tokens

from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.tokenizer import ChatTokenizer

transformers = pytest.importorskip("transformers", reason="transformers is the yardstick of this test")
BEGIN, END = "{% generation %}", "{% endgeneration %}"


def either(generated: str, other: str) -> str:
    return "{% if m.role == 'assistant' %}" + BEGIN + generated + END + "{% else %}" + other + "{% endif %}"


TEXT, STOP = "{{ m.content }}", "{{ '<|im_end|>' }}"
# family -> (text of its template, the same with marks)
WRITTEN = {
    "chatml": (
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}",
        "{{ '<|im_start|>' + m.role + '\n' }}" + either(TEXT + STOP, TEXT + STOP) + "{{ '\n' }}",
    ),
    "trims, headers": (
        "{{ '<|header|>' ~ m.role ~ '<|header|>\n\n' ~ (m.content | trim) ~ '<|eot|>' }}",
        "{{ '<|header|>' ~ m.role ~ '<|header|>\n\n' }}"
        + either("{{ (m.content | trim) ~ '<|eot|>' }}", "{{ (m.content | trim) ~ '<|eot|>' }}"),
    ),
    "no header, system in the first user": (
        "{% else %} {{ m.content }}</s>{% endif %}",
        "{% else %}" + BEGIN + " {{ m.content }}</s>" + END + "{% endif %}",
    ),
    "end of text only at the end": (
        "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}",
        "{{ '<|' + m.role + '|>\n' }}"
        + either("{{ m.content + '<|end|>' }}", "{{ m.content + '<|end|>' }}")
        + "{{ '\n' }}",
    ),
    "plain words": (
        "{% else %} {{ m.content }}</s>{% endif %}",
        "{% else %}" + BEGIN + " {{ m.content }}</s>" + END + "{% endif %}",
    ),
    "chatml with calls": (
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}",
        "{% if m.role == 'assistant' %}" + BEGIN + "{{ m.content or '' }}{% for c in m.tool_calls or [] %}",
    ),
    "generation tag": ("", ""),
}
CALL_END = ("</tool_call>{% endfor %}<|im_end|>", "</tool_call>{% endfor %}<|im_end|>" + END + "{% else %}")
REAL = {
    "qwen2_5": [
        (
            "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}",
            "{{- '<|im_start|>' + message.role + '\\n' }}{%- if message.role == 'assistant' %}{% generation %}"
            "{{- message.content + '<|im_end|>' }}{% endgeneration %}{%- else %}{{- message.content + '<|im_end|>' }}"
            "{%- endif %}{{- '\\n' }}",
        ),
    ],
    "smollm2": [
        (
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}",
            "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
            "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
            "{% endif %}{{ '\n' }}",
        ),
    ],
    "phi3_mini": [
        (
            "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}",
            "{{'<|assistant|>\n'}}{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}{{ '\n' }}",
        ),
    ],
    "llama3_1": [
        (
            "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}",
            "'<|end_header_id|>\\n\\n' }}{%- if message.role == 'assistant' %}{% generation %}"
            "{{- message['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{%- else %}"
            "{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}",
        ),
        (
            "{{- '{\"name\": \"' + tool_call.name + '\", ' }}",
            "{% generation %}{{- '{\"name\": \"' + tool_call.name + '\", ' }}",
        ),
        (
            '{{- "}" }}\n        {%- endif %}\n        {%- if builtin_tools is defined %}',
            '{{- "}" + "<|eot_id|>" }}{% endgeneration %}\n        {%- endif %}\n        {%- if builtin_tools is defined %}',
        ),
        ('{%- else %}\n            {{- "<|eot_id|>" }}\n        {%- endif %}\n    {%- elif message.role', "{%- endif %}\n    {%- elif message.role"),
    ],
    "mistral_nemo": [
        ('{{- message["content"] + eos_token}}', '{% generation %}{{- message["content"] + eos_token}}{% endgeneration %}'),
        ('{{- "[TOOL_CALLS][" }}', '{% generation %}{{- "[TOOL_CALLS][" }}'),
        (
            '{{- "]" + eos_token }}\n            {%- endif %}\n        {%- endfor %}',
            '{{- "]" + eos_token }}\n            {%- endif %}\n        {%- endfor %}{% endgeneration %}',
        ),
    ],
}  # fmt: skip


def put(template: str, marks: list[tuple[str, str]]) -> str:
    for plain, marked in marks:
        assert template.count(plain) == 1 or not plain, plain
        template = template.replace(plain, marked) if plain else template
    return template


def compare(tokenizer: ChatTokenizer, hf: Any, marked: str, case: str) -> bool:
    """Compare with transformers. Returns False if there is no sequence to compare."""
    chat, tools = CASES[case]
    try:
        ours = encode_chat(tokenizer, chat, tools, options=EncodeOptions(boundaries="whole", allow_dropped=True))
    except Refusal:
        return False
    assert hf.apply_chat_template(chat, tools=tools, chat_template=marked, tokenize=False) == tokenizer.renderer(
        tools
    ).text(chat, tools)
    theirs = hf.apply_chat_template(
        chat, tools=tools, chat_template=marked, return_assistant_tokens_mask=True, return_dict=True
    )
    assert ours.ids.tolist() == theirs["input_ids"]
    shown = [tokenizer.decode([token]) for token in theirs["input_ids"]]
    mask = [bool(one) for one in theirs["assistant_masks"]]
    assert list(zip(shown, ours.mask.tolist(), strict=True)) == list(zip(shown, mask, strict=True))
    return True


# Phi's header swallows white space at the start of an answer; transformers then trains the header, we do not.
SWALLOWED = ("white space", "leading newlines")


@functools.cache
def small_hf(name: str) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=small_backend(), **special_tokens(FAMILIES[name]))


@pytest.mark.parametrize("name", WRITTEN)
def test_written_templates_with_marks(name: str) -> None:
    marks = [WRITTEN[name]]
    if name == "chatml with calls":
        rest = "{{ m.content or '' }}<|im_end|>{% endif %}{{ '' }}"
        marks.append((CALL_END[0], CALL_END[1] + rest))
    marked = put(FAMILIES[name].template, marks)
    assert BEGIN in marked
    cases = [case for case, (_, tools) in CASES.items() if tools is None or FAMILIES[name].calls]
    compared = [case for case in cases if compare(small_tokenizer(name), small_hf(name), marked, case)]
    assert len(compared) >= 14


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
@pytest.mark.parametrize("name", REAL)
def test_real_templates_with_marks(name: str) -> None:
    tokenizer, hf = real_tokenizer(name), real_hf(name)
    marked = put(hf.chat_template, REAL[name])
    cases = [case for case, (_, tools) in CASES.items() if tools is None or name in ("llama3_1", "mistral_nemo")]
    cases = [case for case in cases if name != "phi3_mini" or case not in SWALLOWED]
    # Its system text is in the prompt, and not in the render of the whole conversation.
    cases = [case for case in cases if name != "mistral_nemo" or CASES[case][0][0]["role"] != "system"]
    compared = [case for case in cases if compare(tokenizer, hf, marked, case)]
    assert len(compared) >= 12
