"""Create the start of the example: a tokenizer, a small model that knows the rules, and the exam.

    python prepare.py FOLDER [--seed 0]

    FOLDER/base/        a Llama of 160 thousand parameters, trained only on random legal moves
    FOLDER/exam.jsonl   every position in which a player may have to move

The model plays legal moves without any strategy, which preference pairs will teach.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

from game import EMPTY, after, board_text, is_over, legal_moves, reachable_boards

ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NUM_STEPS, BATCH_SIZE, LEARNING_RATE = 300, 128, 5e-3


def make_tokenizer(folder: Path) -> Any:
    """Make a tokenizer of 42 words: nine moves, nine cells in three states, and the tokens of a conversation."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = [PAD, UNKNOWN, *ROLES, END]
    words = [str(move) for move in range(1, 10)] + [f"{cell}{state}" for cell in range(1, 10) for state in ".xo"]
    backend = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate([*marks, *words])}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(marks)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, unk_token=UNKNOWN, eos_token=END, chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_base(folder: Path, *, seed: int) -> None:
    """Train the base model from scratch on random games, and save it with its tokenizer."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(folder)
    torch.set_num_threads(1)  # for a model of this size, a second thread is slower
    torch.manual_seed(seed)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.15, **special,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    games = torch.tensor(random_moves(tokenizer, NUM_STEPS * BATCH_SIZE, seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 20) * (1 - step / NUM_STEPS)
        batch = games[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
        logits = model(batch).logits[:, -3:-1]  # the two tokens that the model generates: its move and the end token
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, -2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1} of {NUM_STEPS}", flush=True)
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(folder)


def random_moves(tokenizer: Any, num_moves: int, *, seed: int) -> list[list[int]]:
    """Return the positions of random games with the move made in each, as token ids."""
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < num_moves:
        board = EMPTY
        while not is_over(board):
            move = draw.choice(legal_moves(board))
            texts.append(f"<|user|>{board_text(board)}{END}<|assistant|>{move + 1}{END}")  # as in the chat template
            board = after(board, move)
    draw.shuffle(texts)
    ids: list[list[int]] = tokenizer(texts[:num_moves], add_special_tokens=False)["input_ids"]
    return ids


def exam_tasks() -> list[dict[str, Any]]:
    """Return the tasks on which the old and the new model are compared."""
    return [
        {"id": "position " + "".join(".xo"[cell] for cell in board), "board": board} for board in reachable_boards()
    ]


def prepare(folder: Path, *, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "exam.jsonl").write_text("".join(json.dumps(task) + "\n" for task in exam_tasks()), encoding="utf-8")
    make_base(folder / "base", seed=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the base model and the exam of the example.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    prepare(words.folder, seed=words.seed)


if __name__ == "__main__":
    main()
