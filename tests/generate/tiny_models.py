"""Models small enough to make in a test: real transformers classes with random weights, real tokenizers."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)

TEMPLATE = (
    "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|tools|>"]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: any text goes in, and single characters may be several tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat and the dog sat on the log"] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>", chat_template=TEMPLATE
    )


def llama(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, context: int = 256, **options) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def model_of(config) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def save_model(folder: Path, *, seed: int = 0, context: int = 256) -> Path:
    """A model folder as a user has it."""
    tokenizer = byte_tokenizer()
    llama(tokenizer, seed=seed, context=context).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
