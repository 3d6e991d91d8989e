"""Create the start of a seed: orders, a tokenizer, and a small model that is pretrained on whole runs.

    python prepare.py FOLDER [--seed 0]

    FOLDER/base/            a Llama of 0.1 million parameters
    FOLDER/train.jsonl      160 orders to practise on
    FOLDER/heldout.jsonl    100 others

The pretraining data are runs of an agent with habits: its calls are well-formed, and for each code it takes the right
tool in a quarter of the cases and one particular wrong tool in more than half of them. Its reports are honest. All
tokens are trained, including those of users and tools, as in the pretraining of real models.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from world import ACTIONS, CODES, NUM_LINES, TOOLS, Order, make_orders, prompt_of, right_actions

ROLES = ("<|user|>", "<|assistant|>", "<|tool|>")
PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}"
    "{% set arguments = call.function.arguments %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": '
    "{{ arguments if arguments is string else arguments | tojson }}}</tool_call>"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NUM_TRAIN, NUM_HELDOUT = 160, 100
NUM_STEPS, BATCH_SIZE, LEARNING_RATE = 400, 32, 5e-3
RIGHT, HABIT = 0.25, 0.55  # rates of the right and of the habitual wrong tool in the pretraining data
LATE = 0.3  # share of orders with late verdicts in the pretraining data


def demonstrations(number: int, *, seed: int) -> list[list[dict[str, Any]]]:
    """Return runs of the agent with habits, on orders that are not among the tasks."""
    draw = random.Random(f"demonstrations {seed}")
    right = right_actions(seed)
    habits = {code: draw.choice([name for name in ACTIONS if name != right[code]]) for code in CODES}
    return [_demonstrate(draw, right, habits) for _ in range(number)]


def _demonstrate(draw: random.Random, right: dict[str, str], habits: dict[str, str]) -> list[dict[str, Any]]:
    codes = draw.sample(CODES, NUM_LINES)
    task = {"codes": codes, "right": [right[code] for code in codes]}
    order = Order(task, late=draw.random() < LATE)
    chat: list[dict[str, Any]] = [{"role": "user", "content": prompt_of(draw.randrange(1000))}]
    for line, code in enumerate(codes, 1):
        rest = [name for name in ACTIONS if name not in (right[code], habits[code])]
        weights = [RIGHT, HABIT, *[(1 - RIGHT - HABIT) / len(rest)] * len(rest)]
        (action,) = draw.choices([right[code], habits[code], *rest], weights)
        for name in ("look", action):
            function = {"name": name, "arguments": {"line": line}}
            chat.append(
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
            )
            chat.append({"role": "tool", "content": order.answer(name, json.dumps({"line": line}), len(chat))})
    num_accepted = sum(verdict == "ok" for verdict in order.verdicts.values())
    return [*chat, {"role": "assistant", "content": f"sent {num_accepted}"}]


def make_tokenizer(texts: list[str]) -> Any:
    """Make a tokenizer with a token per word, including the space before it, so that decoding restores the text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = [PAD, UNKNOWN, END, *ROLES, CALL, CALL_END]
    # tags are single tokens; digits and line breaks are separate pieces
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Split(Regex(r"\n"), "isolated"),
        ]
    )
    for mark in marks:
        texts = [text.replace(mark, "\0") for text in texts]
    pieces = {piece for text in set(texts) for part in text.split("\0") for piece, _ in splitter.pre_tokenize_str(part)}
    vocabulary = {word: number for number, word in enumerate([*marks, *sorted(pieces)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    backend.add_special_tokens(marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, unk_token=UNKNOWN, eos_token=END, chat_template=TEMPLATE
    )


def make_base(folder: Path, *, seed: int) -> None:
    """Train the base model from scratch on every token of the demonstrations, and save it with its tokenizer."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)  # for a model of this size, a second thread is slower
    torch.manual_seed(seed)
    chats = demonstrations(NUM_STEPS * BATCH_SIZE // 2, seed=seed)  # two epochs
    tokenizer = make_tokenizer([])
    plain = [tokenizer.apply_chat_template(chat, tools=TOOLS, tokenize=False) for chat in chats]
    tokenizer = make_tokenizer(plain + [prompt_of(digits) for digits in range(1000)])
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.1, **special,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    rows = tokenizer(plain, add_special_tokens=False)["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    draw = random.Random(seed)
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 30) * (1 - step / NUM_STEPS)
        batch = draw.sample(rows, BATCH_SIZE)
        width = max(map(len, batch))
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in batch])
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=tokenizer.pad_token_id
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1} of {NUM_STEPS}: loss {loss.item():.3f}", flush=True)
    model.generation_config = GenerationConfig(**special)
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(folder: Path, *, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", NUM_TRAIN), ("heldout", NUM_HELDOUT)):
        lines = "".join(json.dumps(task) + "\n" for task in make_orders(split, number, seed=seed))
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    make_base(folder / "base", seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the base model and the orders of one seed.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    prepare(words.folder, seed=words.seed)


if __name__ == "__main__":
    main()
