"""Pairs, or runs without a single pair? Train on one collection in several ways, and give each model the whole exam.

    python signals.py FOLDER [--seed 0] [--arms dpo,kto,grpo]

FOLDER is prepared and collected into once (1,000 games); every arm has the base model, that experience, the number of
updates and about the number of sequences in each. What is done is not repeated; the table is printed in the end.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from prepare import prepare

import pairwright as pw
from pairwright.collection.runner import collect
from pairwright.config import Config, load_config
from pairwright.evaluation.held_out_runs import holdout_scores, play_holdout
from pairwright.evaluation.scores import Scores
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import pair_options
from pairwright.paths import write_json

HERE = Path(__file__).resolve().parent
# Arm -> (what it is, changes of the section `train`). A pair is two sequences: 64 pairs or 128 runs in an update.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpo": ("DPO on the best against the worst move of each turn", {}),
    "kto": (
        "KTO without pairs: the best moves of each turn desirable, the worst undesirable",
        {
            "channels": {"dpo": 0.0, "kto": 1.0},
            "batch_size": 128,
            "kto": {
                "label_by": "best-worst",
                "unique": True,
                "beta": 1.0,
                "sft_loss_weight": 0.2,
                "desirable_weight": 1.5,
            },
        },
    ),
    "grpo": ("GRPO on all proposed moves, no pairs", {"channels": {"dpo": 0.0, "grpo": 1.0}, "batch_size": 128}),
}


def make_config(folder: Path, seed: int, train: dict[str, Any]) -> Config:
    values = load_config(HERE / "config.yaml").model_dump(mode="json")
    values["seed"] = seed
    values["policy"]["model"] = str(folder / "base")
    values["evaluate"]["dataset"] = str(folder / "exam.jsonl")
    values["train"] |= train
    return Config.model_validate(values)


def run_arm(name: str, folder: Path, *, seed: int) -> None:
    """Train one arm, and let its model take the exam."""
    config = make_config(folder, seed, ARMS[name][1])
    start = time.process_time()
    pw.train(
        config=config,
        model=str(folder / "base"),
        output=folder / name / "train",
        pairs=folder / "pairs" if config.train.channels.dpo else None,
        experience=folder / "experience",
        reference_cache=folder / "reference",
        resume=(folder / name / "train" / "train.json").exists(),
    )
    seconds = time.process_time() - start
    play_holdout(config, str(folder / name / "train" / "model"), folder / name / "exam", resume=True, base=HERE)
    write_json(folder / name / "done.json", {"arm": name, "cpu_seconds": seconds})


def mean(scores: Scores, metric: str) -> float:
    values = scores.column(metric)
    return sum(values.values()) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on one collection in several ways and print the table.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", default=",".join(ARMS))
    words = parser.parse_args()
    folder, config = words.folder, make_config(words.folder, words.seed, {})
    if not (folder / "base" / "model.safetensors").exists():
        prepare(folder, seed=words.seed)
    if not (folder / "pairs" / "pairs.parquet").exists():
        collect(config, output=folder, resume=True, base=HERE)
        build_pairs([pw.Table(folder / "experience")], folder / "pairs", pair_options(config))
    if not (folder / "before.json").exists():
        play_holdout(config, str(folder / "base"), folder / "before", resume=True, base=HERE)
        write_json(folder / "before.json", {"arm": "before"})
    for name in words.arms.split(","):
        if not (folder / name / "done.json").exists():
            print(f"{name}: started", file=sys.stderr, flush=True)
            run_arm(name, folder, seed=words.seed)

    before = mean(holdout_scores(config, folder / "before"), "optimal")
    gains = {name: holdout_scores(config, folder / name / "exam") for name in words.arms.split(",")}
    most = mean(gains["dpo"], "optimal") - before if "dpo" in gains else float("nan")
    print(f"optimal moves of the base model: {before:.1%}; {config.train.max_steps} updates each\n")
    print("| arm | what | optimal moves | share of DPO's gain | illegal moves |")
    print("|---|---|---|---|---|")
    for name, scores in gains.items():
        optimal = mean(scores, "optimal")
        share = (optimal - before) / most
        print(f"| `{name}` | {ARMS[name][0]} | {optimal:.1%} | {share:.0%} | {mean(scores, 'illegal'):.2%} |")


if __name__ == "__main__":
    main()
