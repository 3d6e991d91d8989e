"""Templates with different quirks, a small tokenizer for them, and the real tokenizers if they are on disk."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pairwright.tokens.tokenizer import ChatTokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tokenizers"

SPECIALS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>",
    "<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|message|>", "<|channel|>", "<|eot|>", "<|eom|>", "<|header|>",
)  # fmt: skip
WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[INST]", "[/INST]")  # added, but not special

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    """A template, with its stop tokens and unsupported cases, determined by hand."""

    template: str
    stops: tuple[str, ...]
    eos: str = "<|im_end|>"
    calls: bool = False
    roles_alternate: bool = False
    per_turn: bool = False
    refused: str = ""
    stop_tokens: tuple[str, ...] | None = None  # as generation_config.json has them
    variables: dict[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "chatml": Family(CHATML, ("<|im_end|>",)),
    "chatml with calls": Family(
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content or '' }}"
        + CALLS
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
        calls=True,
    ),
    "trims, headers": Family(
        "{{ bos_token }}{% for m in messages %}{{ '<|header|>' ~ m.role ~ '<|header|>\n\n' ~ (m.content | trim) ~ '<|eot|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|header|>\n\n' }}{% endif %}",
        ("<|eot|>",),
        eos="</s>",
    ),
    "no header, system in the first user": Family(
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\n\n' %}"
        "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if m.role == 'user' %}[INST] {{ (s if loop.first else '') + m.content }} [/INST]"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
        ("</s>",),
        eos="</s>",
        roles_alternate=True,
    ),
    "end of text only at the end": Family(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
        ("<|end|>",),
        eos="</s>",
    ),
    "the next header is the stop": Family(
        "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>{% else %}<|{{ m.role }}|>{% endif %}"
        "{{ '\n' }}{{ m.content or '' }}"
        + CALLS
        + "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        ("<|user|>", "<|observation|>"),
        eos="</s>",
        calls=True,
        stop_tokens=("<|user|>", "<|observation|>"),
    ),
    "drops old reasoning, the next header is the stop": Family(
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}<|observation|>{% else %}<|{{ m.role }}|>"
        "{% endif %}{% if m.role == 'assistant' %}{% if loop.index0 > ns.last and m.reasoning_content %}"
        "{{ '\n<think>' + m.reasoning_content.strip() + '</think>' }}{% else %}{{ '\n<think></think>' }}{% endif %}{% endif %}"
        "{{ '\n' + (m.content or '').strip() }}"
        + CALLS
        + "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ("<|user|>", "<|observation|>"),
        eos="</s>",
        calls=True,
        per_turn=True,
        stop_tokens=("<|user|>", "<|observation|>"),
    ),
    "special tokens close calls": Family(
        "{% for m in messages %}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>' + (m.content or '') }}"
        "{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}{{ '<|start|>' + c.function.name + '<|message|>' "
        "+ (a if a is string else a | tojson) + '<|end|>' }}{% endfor %}{{ '<|eom|>' if m.tool_calls }}{{ '</s>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("</s>",),
        eos="</s>",
        calls=True,
    ),
    "channels, return becomes end": Family(
        "{% set ns = namespace(name=none) %}{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "{% if m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}<|start|>assistant to={{ ns.name }}"
        "<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
        "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}"
        "{% endif %}{% elif m.role == 'tool' %}<|start|>{{ ns.name }} to=assistant<|message|>{{ m.content | tojson }}<|end|>"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        ("<|return|>", "<|call|>"),
        eos="<|return|>",
        calls=True,
        per_turn=True,
    ),
    "drops old reasoning": Family(
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}"
        "<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}"
        "{% if m.content is string and '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
        "{% else %}{{ m.content or '' }}{% endif %}"
        + CALLS
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
        calls=True,
        per_turn=True,
    ),
    "the prompt opens the reasoning": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        ("<|im_end|>",),
        refused="no_reasoning",
    ),
    "arguments as tags": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{{ '\n' }}<tool_call>\n<function={{ c.function.name }}>{% for k, v in c.function.arguments | items %}"
        "{{ '\n' }}<{{ k }}>{{ v if v is string else v | tojson }}</{{ k }}>{% endfor %}{{ '\n' }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
        calls=True,
    ),
    "plain words": Family(
        "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} ASSISTANT:{% elif m.role == 'system' %}"
        "{{ m.content }}\n\n{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
        ("</s>",),
        eos="</s>",
    ),
    "results in groups, content dropped beside calls": Family(
        "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
        "<|im_start|>user{% endif %}{{ '\n' }}<r>\n{{ m.content }}\n</r>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
        "<|im_end|>\n{% endif %}{% elif m.tool_calls %}<|im_start|>assistant"
        + CALLS
        + "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
        calls=True,
    ),
    "generation tag": Family(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_end|>",),
    ),
    "built up in a namespace by macros": Family(
        "{% macro turn(role, text) %}{{ '{}{}\n{}'.format('<|im_start|>', role, text) }}{{ '<|im_end|>' }}\n{% endmacro %}"
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ turn(m['role'], m['content']) %}{% endfor %}"
        "{{ ns.t }}{{ '<|im_start|>assistant\n' if add_generation_prompt }}",
        ("<|im_end|>",),
    ),
    "ids after content": Family(
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
        '[INST]{"content": {{ m.content | tojson }}, "id": "{{ m.tool_call_id }}"}[/INST]{% elif m.tool_calls %}'
        "<tool_call>[{% for c in m.tool_calls %}{% set out = c.function | tojson %}{{ out[:-1] }}"
        ', "id": "{{ c.id }}"}{{ ", " if not loop.last }}{% endfor %}]</s>'
        "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}{{ m.content }}{% endif %}{% endfor %}",
        ("</s>",),
        eos="</s>",
        calls=True,
    ),
    "no stop at all": Family(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
        (),
        eos="</s>",
        refused="no_stop",
    ),
}


@functools.cache
def small_backend() -> Tokenizer:
    """A byte-level BPE with merges across words, spaces and newlines, and the control tokens of all families."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [
        "hello there, please look up the weather in Paris\n\n and tell me. ok ok assistant user\n\n\n",
        '{"name": "get_weather", "arguments": {"city": "Paris"}} 你好 😀 é',
        "user\nassistant\nsystem\nok\nhello\n",
    ] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in WORDS])
    return tokenizer


def special_tokens(family: Family) -> dict[str, str]:
    return {"bos_token": "<s>", "eos_token": family.eos}


@functools.cache
def small_tokenizer(name: str) -> ChatTokenizer:
    family = FAMILIES[name]
    return ChatTokenizer(
        small_backend(),
        family.template,
        special_tokens=special_tokens(family),
        variables=family.variables,
        stop_tokens=family.stop_tokens,
    )


# The stop tokens of the real families, as their makers document them.
REAL_STOPS = {
    "deepseek_v3": ("<｜end▁of▁sentence｜>",),
    "gemma3": ("<end_of_turn>",),
    "gptoss": ("<|return|>", "<|call|>"),
    "llama3_1": ("<|eot_id|>", "<|eom_id|>"),
    "mistral_nemo": ("</s>",),
    "phi3_mini": ("<|end|>",),
    "qwen2_5": ("<|im_end|>",),
    "qwen3": ("<|im_end|>",),
    "smollm2": ("<|im_end|>",),
}


@functools.cache
def real_tokenizer(name: str) -> ChatTokenizer:
    return ChatTokenizer.from_folder(SHARED / name)


@functools.cache
def real_hf(name: str) -> Any:
    """The same folder as transformers reads it."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(SHARED / name)
