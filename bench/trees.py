"""Training on token trees (sequences with common prefixes), compared with TRL's trainers and with less sharing.

    python -m bench.trees [SHAPE ...] [--rounds 1] [--scale 1] [--sides ours,trl,level,none]

All sides train the same model on the same sequences, masks and batches, alternating, each in a separate process with
one thread. CPU seconds cover the updates; TRL's GRPOTrainer gets recorded completions instead of generating them.
`level` is our code with one level of sharing: a sequence shares only the shortest prompt of the batch that is its
prefix. `none` shares nothing. `--scale` multiplies the length of all texts. The limit is the ratio of all tokens to
distinct ones (equal prefixes counted once); tokens of TRL are counted without padding.
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

from bench.train import make_model

# channel, sequences per batch, micro-batch (TRL: sequences, ours: tokens), targets: ratio of tokens, ratio of memory
SHAPES = {
    "20 turns, a sequence each": ("sft", 20, 4, 8192, 5.0, None),
    "groups of 8, prompt 1,000": ("grpo", 16, 8, 4096, 3.0, None),
    "64 runs of a task": ("grpo", 64, 16, 4096, 3.0, 0.4),
}
SIDES = ("ours", "trl", "level", "none")
NUM_EPOCHS, NUM_WORDS = 1, 8192
TEMPLATE = (
    "{% for m in messages %}<{{ 'assistant' if m.role == 'assistant' else 'user' }}>"
    "{% if loop.last and m.reasoning_content %}{{ m.reasoning_content }} {% endif %}{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_runs(shape: str, scale: float) -> list[Any]:
    """Return runs of random words as experiences, ordered by task."""
    from pairwright.records.experience import EID, Experience
    from pairwright.records.messages import Message

    random = np.random.default_rng(0)

    def say(role: str, num: int, reasoning: int = 0) -> Message:
        sizes = round(num * scale), round(reasoning * scale)
        words = [" ".join(f"w{token}" for token in random.integers(10, 8000, size)) for size in sizes]
        return Message(role, words[0], reasoning=words[1] or None)

    def spread(mean: int) -> int:
        return int(mean * random.uniform(0.67, 1.33))

    def make(task: int, run: int, prompt: list[Message], completion: list[Message]) -> Experience:
        eid, kind = EID(batch=0, task=task, run=run), "multi_turn" if len(completion) > 1 else "single_turn"
        return Experience(eid=eid, kind=kind, prompt=prompt, completion=completion, reward=float(random.random()))

    if shape.startswith("20"):  # tau-bench-like: a policy and tools, then thought, call, observation
        runs = []
        for task in range(1):
            turns = [
                say("assistant", spread(30), spread(60)) if number % 2 == 0 else say("tool", spread(100))
                for number in range(39)
            ]
            runs.append(make(task, 0, [say("system", 500), say("user", 60)], turns))
        return runs
    if shape.startswith("groups"):
        prompts = [[say("user", spread(1000))] for _ in range(4)]
        return [
            make(task, run, prompts[task], [say("assistant", spread(100))]) for task in range(4) for run in range(8)
        ]
    # Each of the first six turns branches into two: 64 runs.
    prompt, paths = [say("system", 300), say("user", 100)], [[say("assistant", 20)], [say("assistant", 20)]]
    for number in range(7):
        observed = [[*path, say("tool", 20)] for path in paths]
        paths = [[*path, say("assistant", 20)] for path in observed for _ in range(2 if number < 5 else 1)]
    return [make(0, run, prompt, path) for run, path in enumerate(paths)]


def prepare(folder: Path, shape: str, scale: float) -> None:
    """Create the model, the table, and its sequences."""
    from pairwright.config.sections import TokensConfig
    from pairwright.store.table import Table
    from pairwright.tokens.stage.stage import encode_source

    make_model(folder / "model")
    fields = json.loads((folder / "model" / "tokenizer_config.json").read_text())
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps({**fields, "chat_template": TEMPLATE}))
    with Table(folder / "runs") as table:
        table.append(make_runs(shape, scale))
    encode_source(folder / "runs", folder / "tokens", TokensConfig(tokenizer=str(folder / "model")))


def read_items(folder: Path) -> list[tuple[str, Any]]:
    from pairwright.tokens.stage.cache import read_sequences

    return [(uid, sequence) for uid, _, sequence in read_sequences(folder / "tokens")]


def measure_ours(folder: Path, shape: str, work: Path) -> dict[str, Any]:
    from pairwright.config import Config
    from pairwright.training import loop, train

    channel, batch, _, at_once, *_ = SHAPES[shape]
    settings = {
        "epochs": NUM_EPOCHS, "batch_size": batch, "learning_rate": 1e-4, "shuffle": False, "threads": 1,
        "schedule": "constant", "save_every": 10**6, "max_grad_norm": 0, "micro_batch_tokens": at_once,
        "channels": {"dpo": 0, channel: 1}, "grpo": {"kl_weight": 0, "aggregation": "token", "advantage": "dr_grpo"},
    }  # fmt: skip
    marks: list[float] = []
    steps: list[tuple[float, float]] = []

    def progress(event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            marks.append(time.process_time())
            steps.append((event["loss"], event["grad_norm"]))

    run_updates = loop.Training.run

    def run_timed(self: Any, stop: Any) -> Any:
        marks.append(time.process_time())  # data and model are loaded
        return run_updates(self, stop)

    loop.Training.run = run_timed  # type: ignore[method-assign]
    train(
        Config.model_validate({"train": settings}), model=folder / "model", tokens=folder / "tokens",
        output=work / "run", progress=progress,
    )  # fmt: skip
    return {"seconds": marks[-1] - marks[0], "steps": steps}


def share_less(side: str) -> None:
    """Make the trainer share only one level, or nothing, for the rest of this process: while trees are cut and laid
    out, tokens that must not be shared get unique ids."""
    from msgspec.structs import replace

    from pairwright.tokens.batch.collate import Tree
    from pairwright.training import batch_schedule
    from pairwright.training.model import policy_model

    def part_below_prompts(trees: list[Any]) -> list[Any]:
        prompts = sorted({tree.prompt.tobytes() for tree in trees}, key=len)
        parted = []
        for number, tree in enumerate(trees):
            shared = 0
            if side == "level":
                key = tree.prompt.tobytes()
                shared = len(next(prompt for prompt in prompts if key.startswith(prompt))) // tree.prompt.itemsize
            offset = NUM_WORDS * (number + 1)
            prompt = np.concatenate([tree.prompt[:shared], tree.prompt[shared:] + offset])
            parted.append(Tree(prompt, tuple(branch + offset for branch in tree.branches), tree.masks, tree.rows))
        return parted

    cut, collate = batch_schedule.micro_batches, policy_model.collate_trees

    def cut_parted(items: Any, trees: Any, **limits: Any) -> Any:
        parted = dict(zip(items.tolist(), part_below_prompts([trees(item)[0] for item in items]), strict=True))
        return cut(items, lambda item: [parted[int(item)]], **limits)

    def collate_parted(trees: Any, layout: Any) -> Any:
        batch = collate(part_below_prompts(list(trees)), layout)
        return replace(batch, input_ids=batch.input_ids % NUM_WORDS, target=batch.target % NUM_WORDS)

    batch_schedule.micro_batches, policy_model.collate_trees = cut_parted, collate_parted


def measure_trl(folder: Path, shape: str, work: Path) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    torch.set_num_threads(1)
    channel, batch, at_once, *_ = SHAPES[shape]
    marks: list[float] = []
    steps: list[tuple[float, float]] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            marks.append(time.process_time())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                steps.append((logs["loss"], logs["grad_norm"]))

        def on_train_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.process_time())

    common = {
        "output_dir": str(work / "trl"), "num_train_epochs": NUM_EPOCHS, "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": batch // at_once, "learning_rate": 1e-4, "lr_scheduler_type": "constant",
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "max_grad_norm": 0.0, "disable_tqdm": True,
    }  # fmt: skip
    items = [sequence for _, sequence in read_items(folder)]
    words = {"processing_class": AutoTokenizer.from_pretrained(folder / "model"), "callbacks": [Watch()]}
    if channel == "sft":
        from trl import SFTConfig, SFTTrainer

        labels = [np.where(item.mask, item.ids, -100).tolist() for item in items]
        rows = [{"input_ids": item.ids.tolist(), "labels": label} for item, label in zip(items, labels, strict=True)]
        arguments = SFTConfig(
            **common, max_length=None, dataset_kwargs={"skip_prepare_dataset": True},
            train_sampling_strategy="sequential", loss_type="nll",
        )  # fmt: skip
        trainer: Any = SFTTrainer(
            model=str(folder / "model"), args=arguments, train_dataset=Dataset.from_list(rows), **words
        )
    else:
        trainer = make_policy_trainer(folder, items, common, words, batch)
    trainer.train()
    return {"seconds": marks[-1] - marks[0], "steps": steps}


def make_policy_trainer(folder: Path, items: list[Any], common: Any, words: Any, batch: int) -> Any:
    """Create TRL's GRPOTrainer with recorded completions and rewards instead of generating and scoring."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rewards = np.array([run.reward for run in read_runs(folder)])
    num = 64 if batch == 64 else 8  # runs per group
    advantages = (rewards.reshape(-1, num) - rewards.reshape(-1, num).mean(1, keepdims=True)).reshape(-1)

    class Recorded(GRPOTrainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            # Runs in order instead of repeated prompts; each batch is repeated once per micro-batch.
            batches = [list(range(start, start + batch)) for start in range(0, len(items), batch)]
            return [number for each in batches for _ in range(self.args.steps_per_generation) for number in each]

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            chosen = [items[row["number"]] for row in inputs]
            starts = [max(1, int(np.flatnonzero(item.mask)[0])) for item in chosen]

            def pad(rows: list[Any], *, left: bool = False) -> Any:
                width = max(len(row) for row in rows)
                sides = [(width - len(row), 0) if left else (0, width - len(row)) for row in rows]
                return torch.tensor(np.stack([np.pad(row, side) for row, side in zip(rows, sides, strict=True)]))

            pairs = list(zip(chosen, starts, strict=True))
            masks = pad([item.mask[start:].astype(np.int64) for item, start in pairs])
            return {
                "prompt_ids": pad([item.ids[:start] for item, start in pairs], left=True),
                "prompt_mask": pad([np.ones(start, np.int64) for start in starts], left=True),
                "completion_ids": pad([item.ids[start:] for item, start in pairs]),
                "completion_mask": pad([np.ones(len(item.ids) - start, np.int64) for item, start in pairs]),
                "tool_mask": masks,
                "advantages": torch.tensor([advantages[row["number"]] for row in inputs], dtype=torch.float32),
                "num_items_in_batch": masks.sum(),
            }

    arguments = GRPOConfig(
        **common, beta=0.0, loss_type="dapo", num_generations=2, generation_batch_size=batch,
        max_completion_length=512,
    )  # fmt: skip
    return Recorded(
        model=str(folder / "model"), args=arguments, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "", "number": number} for number in range(len(items))]), **words,
    )  # fmt: skip


def read_runs(folder: Path) -> list[Any]:
    from pairwright.store.table import Table

    return list(Table(folder / "runs", create=False).records())


def count_tokens(folder: Path, shape: str) -> tuple[int, int]:
    """Count the tokens of all sequences, and the distinct ones within each batch."""
    from pairwright.tokens.batch.collate import as_tree, count_distinct

    items, batch = [as_tree(sequence) for _, sequence in read_items(folder)], SHAPES[shape][1]
    starts = range(0, len(items), batch)
    total = sum(item.num_tokens for item in items)
    return total, sum(count_distinct(items[start : start + batch]) for start in starts)


def child(side: str, shape: str, folder: str, scale: str) -> None:
    if side == "prepare":
        prepare(Path(folder), shape, float(scale))
        print(json.dumps(count_tokens(Path(folder), shape)))
        return
    if side in ("level", "none"):
        share_less(side)
    measure = measure_trl if side == "trl" else measure_ours
    measured = measure(Path(folder), shape, Path(tempfile.mkdtemp(dir=folder)))
    print(json.dumps({**measured, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def run(side: str, shape: str, folder: str, scale: float) -> Any:
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    root = Path(__file__).parents[1]
    paths = {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, "-m", "bench.trees", "--child", side, shape, folder, str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet, **paths})
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", default=",".join(SIDES), help="what to measure, ours among it")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    print("| data | side | CPU s | ours is faster by | of the limit | peak memory | ours to it | apart |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        if not options.shapes or any(shape.startswith(name) for name in options.shapes):
            report(shape, options.rounds, options.scale, options.sides.split(","))


def report(shape: str, rounds: int, scale: float, sides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        total, distinct = run("prepare", shape, folder, scale)
        measured: dict[str, list[Any]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                measured[side].append(run(side, shape, folder, scale))
    best = {side: min(each, key=lambda one: one["seconds"]) for side, each in measured.items()}
    ours, limit = best["ours"], total / distinct
    aim, memory_aim = SHAPES[shape][4:]
    print(f"| {shape} | {total:,} tokens, {distinct:,} distinct: limit {limit:.2f}× (aim {aim:g}×) | | | | | | |")
    for side, other in best.items():
        if len(ours["steps"]) != len(other["steps"]):
            sys.exit(f"{shape}: {len(ours['steps'])} updates of ours, {len(other['steps'])} of {side}: cannot compare")
        # The largest difference over the steps: of the loss, or of the gradient norm (relative).
        apart = max(
            max(abs(mine[0] - theirs[0]), abs(mine[1] - theirs[1]) / theirs[1])
            for mine, theirs in zip(ours["steps"], other["steps"], strict=True)
        )
        speed, memory = other["seconds"] / ours["seconds"], ours["memory"] / other["memory"]
        share = f"{speed / limit:.2f}" if side == "trl" else ""
        wanted = f" (aim {memory_aim}×)" if memory_aim and side == "trl" else ""
        compared = f"**{speed:.2f}×** | {share}" if side != "ours" else "|"
        sizes = f"{other['memory']:.0f} MB | " + (f"**{memory:.2f}×**{wanted} | {apart:.0e}" if side != "ours" else "|")
        print(f"| | {side} | {other['seconds']:.1f} | {compared} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
