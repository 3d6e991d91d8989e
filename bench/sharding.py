"""Memory of a process that trains with others: with the whole model in each, and in shards.

    python -m bench.sharding [--processes 2] [--layers 12] [--width 512] [--pairs 1]

A Llama-style model with AdamW, all weights, on this machine's processor: two processes of torchrun, the same pairs. The
peak of the updates is the largest resident memory from the second update to the last one; that of the run has loading,
the reference, checkpoint and result as well. What a process holds before it has a model is given beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 8192
NUM_STEPS, BATCH, PROMPT, COMPLETION = 6, 8, 96, 48


def make_model(folder: Path, layers: int, width: int) -> int:
    """A model and its tokenizer, one token a word; returns the number of parameters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=1024, bos_token_id=None, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    special = ["<pad>", "<end>", "<user>", "<assistant>"]
    words = {word: number for number, word in enumerate(special)}
    words |= {f"w{number}": number for number in range(len(special), VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**fields, "chat_template": template}))
    return sum(tensor.numel() for tensor in model.parameters())


def make_pairs(folder: Path) -> None:
    import numpy as np

    from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
    from pairwright.records.experience import EID, Pair
    from pairwright.records.messages import Message

    random = np.random.default_rng(0)

    def said(role: str, length: int) -> tuple[Message, ...]:
        return (Message(role, " ".join(f"w{token}" for token in random.integers(10, 8000, length))),)

    def made(number: int) -> Pair:
        prompt = said("user", PROMPT)
        chosen, rejected = said("assistant", COMPLETION), said("assistant", COMPLETION)
        return Pair(
            id=pair_id(prompt, (), chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected,
            chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(batch=0, task=number, run=0),
            rejected_eid=EID(batch=0, task=number, run=1), gap=1.0, strategy="all",
        )  # fmt: skip

    write_pairs(folder, [pairs_to_batch([made(number) for number in range(NUM_STEPS * BATCH)])])


def megabytes(key: str) -> float:
    """A line of what the kernel knows of this process: VmHWM is the peak, VmRSS what is resident now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def work(folder: Path, sharding: str, pairs: int) -> None:
    """One process of a run: trains, and writes down its peaks."""
    import torch
    import transformers  # noqa: F401

    from pairwright.config import Config
    from pairwright.training import train

    torch.set_num_threads(1)
    before = megabytes("VmRSS")
    peaks = {"loading": 0.0, "updates": 0.0, "speed": 0.0}

    def progress(event: dict[str, Any]) -> None:
        if event["kind"] != "step":
            return
        if event["step"] == 1:
            peaks["loading"] = megabytes("VmHWM")
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        peaks["updates"] = megabytes("VmHWM")
        peaks["speed"] = max(peaks["speed"], event["tokens_per_second"])

    settings = {
        "batch_size": BATCH, "learning_rate": 1e-5, "threads": 1, "micro_batch_size": pairs, "save_every": 10**6,
        "sharding": sharding,
    }  # fmt: skip
    train(
        Config.model_validate({"train": settings}),
        model=folder / "model",
        pairs=folder / "pairs",
        output=folder / sharding,
        progress=progress,
    )
    rank = int(os.environ["RANK"])
    found = {**peaks, "before": before, "run": max(megabytes("VmHWM"), peaks["loading"])}
    (folder / f"{sharding}-{rank}.json").write_text(json.dumps(found))


def run(folder: Path, sharding: str, processes: int, pairs: int) -> list[dict[str, float]]:
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
        "-m", "bench.sharding", "--work", str(folder), sharding, str(pairs),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet})
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return [json.loads((folder / f"{sharding}-{rank}.json").read_text()) for rank in range(processes)]


def apart(folder: Path) -> float:
    """The largest difference of the weights that both runs ended with."""
    from safetensors.torch import load_file

    one, other = (load_file(folder / name / "model" / "model.safetensors") for name in ("none", "full"))
    return max(float((one[key] - other[key]).abs().max()) for key in one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=1, help="of a part, in each process")
    parser.add_argument("--work", nargs=3)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.work[1], int(options.work[2]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num = make_model(folder / "model", options.layers, options.width)
        make_pairs(folder / "pairs")
        print(f"{num / 1e6:.1f} M parameters, {4 * num / 2**20:.0f} MB; {options.processes} processes; peak MB\n")
        print("| sharding | process | before | start to first update | updates | run | tokens/s |\n" + "|---" * 7 + "|")
        for sharding in ("none", "full"):
            for rank, found in enumerate(run(folder, sharding, options.processes, options.pairs)):
                columns = (found[key] for key in ("before", "loading", "updates", "run", "speed"))
                print(f"| {sharding} | {rank} | " + " | ".join(f"{value:.0f}" for value in columns) + " |", flush=True)
        print(f"\nweights apart: {apart(folder):.1e}")


if __name__ == "__main__":
    main()
