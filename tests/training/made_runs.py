"""Small models, tokenizers and pairs for the training tests, made from nothing in a moment."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.experience import EID, Experience, Pair
from pairwright.records.messages import ErrorSite, Message
from pairwright.store.table import Table

WORDS = [
    "red",
    "green",
    "blue",
    "yes",
    "no",
    "ask",
    "stop",
    "one",
    "two",
    "three",
    "good",
    "bad",
    "go",
    "left",
    "right",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|user|>", "<|system|>", "<|tool|>", "<|assistant|>", "<|end|>"]


def make_tokenizer(folder: Path) -> int:
    """A byte-level tokenizer with a few words and a chat template; returns the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "chat_template": TEMPLATE,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocabulary)


def make_model(folder: Path, kind: str = "llama", *, width: int = 32, layers: int = 2, seed: int = 0) -> Path:
    size = make_tokenizer(folder)
    torch.manual_seed(seed)
    shape = {
        "vocab_size": size, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.15,
        "bos_token_id": None, "eos_token_id": 5, "pad_token_id": 0,
    }  # fmt: skip
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    elif kind == "tied":
        model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))
    elif kind == "experts":
        model = MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=4))
    elif kind == "capped":
        model = Gemma2ForCausalLM(Gemma2Config(**shape, head_dim=width // 4))
    else:
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=size, n_embd=width, n_layer=layers, n_head=4, n_positions=512, bos_token_id=5,
                       eos_token_id=5, initializer_range=0.15)
        )  # fmt: skip
    model.save_pretrained(folder)
    return folder


def made_pair(number: int, *, flipped: bool = False, split: str = "train", weight: float = 1.0, words: int = 3) -> Pair:
    """The good answer names the colour of the question; the bad one another colour."""
    colours = WORDS[:3]
    colour = colours[number % 3]
    other = colours[(number + 1) % 3]
    prompt = (Message("user", f"{WORDS[number % len(WORDS)]} {number}: say {colour}" + " please" * (number % words)),)
    good, bad = (Message("assistant", f"it is {colour}"),), (Message("assistant", f"no, {other}!"),)
    chosen, rejected = (bad, good) if flipped else (good, bad)
    return Pair(
        id=pair_id(prompt, (), chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected, chosen_reward=1.0,
        rejected_reward=0.25, chosen_eid=EID(batch=0, task=number, run=0), rejected_eid=EID(batch=0, task=number, run=1),
        gap=0.75, strategy="all", split=split, weight=weight,
    )  # fmt: skip


def make_pairs(folder: Path, num: int = 16, *, held: int = 0, **options) -> Path:
    pairs = [made_pair(number, **options) for number in range(num)]
    pairs += [made_pair(number, split="validation", **options) for number in range(num, num + held)]
    write_pairs(folder, [pairs_to_batch(pairs)])
    return folder


def make_runs(folder: Path, num_tasks: int = 4, num_runs: int = 3) -> Path:
    """Scored runs of some tasks; the first one names the colour."""
    colours = WORDS[:3]
    with Table(folder) as table:
        table.append([
            Experience(
                eid=EID(batch=0, task=task, run=run), kind="single_turn", prompt=[Message("user", f"{task} say {colours[task % 3]}")],
                completion=[Message("assistant", f"it is {colours[(task + run) % 3]}")], reward=float(run == 0),
            )
            for task in range(num_tasks) for run in range(num_runs)
        ])  # fmt: skip
    return folder


def make_failed_runs(folder: Path, num_tasks: int = 6, num_runs: int = 2) -> Path:
    """Runs in which a tool failed and the model then wrote something; the first one of a task is the better."""
    with Table(folder) as table:
        table.append([
            Experience(
                eid=EID(batch=0, task=task, run=run), kind="multi_turn",
                prompt=[Message("user", f"count {task}" + " more" * task)],
                completion=[
                    Message("assistant", "go left"), Message("tool", "no such file", tool_call_id=None),
                    Message("assistant", f"it is {task} {run}"),
                ],
                reward=float(run == 0), errors=[ErrorSite(2, "file_not_found", "no such file")],
            )
            for task in range(num_tasks) for run in range(num_runs)
        ])  # fmt: skip
    return folder
