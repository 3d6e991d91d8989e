"""Training compared with TRL's DPOTrainer: the same model, pairs and batches, alternating, each in a separate process.

    python bench/train.py [SHAPE ...] [--rounds 2]

Steps per CPU second cover the whole training: updates and reference values. Ours computes the reference once before the
first update; TRL runs a second model at each step by default, and is also measured with a precomputed reference. Peak
memory is that of the process. Losses are compared step by step.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SHAPES = {  # prompt tokens, completion tokens, pairs of a batch, floor of speed, floor of memory
    "agent 16:1": (1024, 64, 4, 2.5, 0.5),
    "agent 4:1": (512, 128, 4, 2.0, None),
    "chat 1:1": (96, 96, 8, 1.2, None),
}
NUM_STEPS, NUM_EPOCHS = 4, 3


def made_ids(shape: str) -> list[dict[str, list[int]]]:
    """Return pairs of random tokens, with lengths within a third of those of the shape."""
    prompt, completion, batch, *_ = SHAPES[shape]
    random = np.random.default_rng(0)

    def ids(mean: int) -> list[int]:
        return [int(number) for number in random.integers(10, 8000, int(mean * random.uniform(0.67, 1.33)))]

    return [
        {"prompt_ids": ids(prompt), "chosen_ids": ids(completion), "rejected_ids": ids(completion)}
        for _ in range(batch * NUM_STEPS)
    ]


def make_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<end>": 1, "<user>": 2, "<assistant>": 3} | {f"w{n}": n for n in range(4, 8192)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<end>", "<user>", "<assistant>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**fields, "chat_template": template}))


def measure_ours(model: Path, pairs: list[dict[str, list[int]]], batch: int, work: Path) -> dict[str, Any]:
    from pairwright.config import Config
    from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
    from pairwright.records.experience import EID, Pair
    from pairwright.records.messages import Message
    from pairwright.training import train

    def made(number: int, pair: dict[str, list[int]]) -> Pair:
        def said(role: str, ids: list[int]) -> tuple[Message, ...]:
            return (Message(role, " ".join(f"w{token}" for token in ids)),)

        prompt, chosen = said("user", pair["prompt_ids"]), said("assistant", pair["chosen_ids"])
        rejected = said("assistant", pair["rejected_ids"])
        return Pair(
            id=pair_id(prompt, (), chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected,
            chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(batch=0, task=number, run=0),
            rejected_eid=EID(batch=0, task=number, run=1), gap=1.0, strategy="all",
        )  # fmt: skip

    write_pairs(work / "pairs", [pairs_to_batch([made(number, pair) for number, pair in enumerate(pairs)])])
    settings = {
        "epochs": NUM_EPOCHS, "batch_size": batch, "learning_rate": 1e-4, "shuffle": False, "threads": 1,
        "schedule": "constant", "save_every": 10**6, "max_grad_norm": 0,
    }  # fmt: skip
    marks: list[float] = []
    losses: list[float] = []

    def progress(event: dict[str, Any]) -> None:
        if event["kind"] == "encode":
            marks[:] = [time.process_time()]  # the tokens stage has its own benchmark
        if event["kind"] == "step":
            marks.append(time.process_time())
            losses.append(event["loss"])

    train(
        Config.model_validate({"train": settings}),
        model=model,
        pairs=work / "pairs",
        output=work / "run",
        progress=progress,
    )
    return {"seconds": marks[-1] - marks[0], "losses": losses}


def measure_trl(
    model: Path, pairs: list[dict[str, list[int]]], batch: int, work: Path, precompute: bool
) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(1)
    losses: list[float] = []
    marks: list[float] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            marks.append(time.process_time())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                losses.append(logs["loss"])

        def on_train_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.process_time())

    roles = {"prompt_ids": "user", "chosen_ids": "assistant", "rejected_ids": "assistant"}
    rows = [
        {
            name.removesuffix("_ids"): [{"role": roles[name], "content": " ".join(f"w{token}" for token in ids)}]
            for name, ids in pair.items()
        }
        for pair in pairs
    ]
    arguments = DPOConfig(
        output_dir=str(work / "trl"), num_train_epochs=NUM_EPOCHS, per_device_train_batch_size=batch,
        learning_rate=1e-4, lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=None, max_grad_norm=0.0,
        precompute_ref_log_probs=precompute, disable_tqdm=True, train_sampling_strategy="sequential",
    )  # fmt: skip
    start = time.process_time()
    trainer = DPOTrainer(
        model=str(model), args=arguments, train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model), callbacks=[Watch()],
    )  # fmt: skip
    built = time.process_time()
    trainer.train()
    return {"seconds": marks[-1] - marks[0], "losses": losses, "building": built - start}


def child(side: str, shape: str, folder: str) -> None:
    pairs, batch = made_ids(shape), SHAPES[shape][2]
    model, work = Path(folder) / "model", Path(tempfile.mkdtemp(dir=folder))
    if side == "ours":
        found = measure_ours(model, pairs, batch, work)
    else:
        found = measure_trl(model, pairs, batch, work, precompute=side == "trl-precomputed")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**found, "memory": memory}))


def run(side: str, shape: str, folder: str) -> dict[str, Any]:
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--child", side, shape, folder]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet})
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    print("| data | steps a CPU second, ours / TRL | speed | TRL precomputed | limit by tokens | memory | loss apart |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model")
        for shape in options.shapes or SHAPES:
            report(shape, folder, options.rounds)


def report(shape: str, folder: str, rounds: int) -> None:
    sides = ("ours", "trl", "trl-precomputed")
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side].append(run(side, shape, folder))
    best = {side: min(each, key=lambda one: one["seconds"]) for side, each in found.items()}
    steps = NUM_STEPS * NUM_EPOCHS
    ours, theirs, computed = (best[side] for side in sides)
    apart = max(abs(a - b) for a, b in zip(ours["losses"], theirs["losses"], strict=True))
    prompt, completion, _, floor, memory_floor = SHAPES[shape]
    limit = 2 * (prompt + completion) / (prompt + 2 * completion)
    memory = ours["memory"] / theirs["memory"]
    wanted = f" (floor {memory_floor}×)" if memory_floor else ""
    print(
        f"| {shape} | {steps / ours['seconds']:.3g} / {steps / theirs['seconds']:.3g} | "
        f"**{theirs['seconds'] / ours['seconds']:.2f}×** (floor {floor}×) | "
        f"{computed['seconds'] / ours['seconds']:.2f}× | "
        f"{limit:.2f}× | {ours['memory']:.0f} / {theirs['memory']:.0f} MB, **{memory:.2f}×**{wanted} | {apart:.1e} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
