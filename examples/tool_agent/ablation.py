"""What made the model better? Train the same model on the same collection in other ways, and give it the same exam.

    python ablation.py RUN FOLDER [--arms dpo,sft,...]

RUN is a finished run of the example. Every arm has the model, the collection, the number of updates, the learning rate
and the held-out tasks of RUN. Arms that are done in FOLDER are not repeated; the tables are printed in the end.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import pairwright as pw
from pairwright.config import Config, load_config
from pairwright.evaluation.comparison import CompareOptions, Metric, compare
from pairwright.evaluation.held_out_runs import holdout_scores, play_holdout
from pairwright.evaluation.scores import Scores
from pairwright.ledger.run_status import read_status
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import pair_options
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.paths import write_json
from pairwright.records.experience import Experience

HERE = Path(__file__).resolve().parent
Options = dict[str, Any]

# Arm -> (what it is, changes of the sections `pairs`, `train` and `tokens`). "both" is RUN itself.
ARMS: dict[str, tuple[str, dict[str, Options]]] = {
    "both": ("DPO with the SFT term: the recipe, our pairs and masks", {}),
    "dpo": ("DPO without the SFT term", {"train": {"dpo.sft_loss_weight": 0.0}}),
    "sft": ("SFT on the chosen sides alone", {"train": {"channels.dpo": 0.0, "channels.sft": 1.0}}),
    "sft-best": (
        "SFT on the best candidate of each group alone",
        {"pairs": {"strategy": "best-worst"}, "train": {"channels.dpo": 0.0, "channels.sft": 1.0}},
    ),
    "grpo": (
        "GRPO on all candidates",  # a pair is two sequences
        {"train": {"channels.dpo": 0.0, "channels.grpo": 1.0, "batch_size": 16}},
    ),
    "kto": ("KTO's loss on the same pairs, no SFT term", {"train": {"dpo.loss": "kto", "dpo.sft_loss_weight": 0.0}}),
    "kto-runs": (
        "KTO on all candidates, exact calls against the others: no pairs",
        {"train": {"channels.dpo": 0.0, "channels.kto": 1.0, "kto.threshold": 0.95, "batch_size": 16}},
    ),
    "across": (
        "prompts that do not match: high against low rewards across groups",
        {
            "pairs": {"strategy": "stratified", "across_groups": True, "high": "q0.7", "low": "q0.3"},
            "tokens": {"recorded": "ignore"},  # the rejected side was sampled after another prompt
        },
    ),
    "rendered": ("masks of a second rendering, not what was sampled", {"tokens": {"recorded": "ignore"}}),
    "noise": ("ties and small gaps kept: two random pairs a group", {}),
}


def adjust(config: Config, changes: dict[str, Options], *, num_steps: int) -> Config:
    values = config.model_dump(mode="json")
    for section, options in changes.items():
        for dotted, value in options.items():
            place, *names = values[section], *dotted.split(".")
            for name in names[:-1]:
                place = place[name]
            place[names[-1]] = value
    # the same number of updates, whatever the number of items
    values["train"] |= {"max_steps": num_steps, "epochs": 100}
    return Config.model_validate(values)


def write_noisy_pairs(experience: Path, folder: Path, *, seed: int) -> None:
    """Two pairs of different answers of each group, drawn at random; where rewards tie, the first drawn is chosen."""
    groups: dict[str, list[Experience]] = {}
    for row in pw.Table(experience).records():
        groups.setdefault(row.prompt[-1].text, []).append(row)
    draw = random.Random(seed)
    pairs = []
    for rows in groups.values():
        options = [(one, two) for one in rows for two in rows if one.completion != two.completion]
        for drawn in draw.sample(options, min(2, len(options))):
            chosen, rejected = sorted(drawn, key=lambda row: -(row.reward or 0.0))
            reward = chosen.reward or 0.0
            low = min(rejected.reward or 0.0, reward - 1e-6)  # a table of ours holds no tie: a gap that says nothing
            pairs.append(
                pw.Pair(
                    id=pair_id(chosen.prompt, (), chosen.completion, rejected.completion), prompt=chosen.prompt,
                    chosen=chosen.completion, rejected=rejected.completion, chosen_reward=reward, rejected_reward=low,
                    chosen_eid=chosen.eid, rejected_eid=rejected.eid, gap=reward - low, strategy="all",
                )
            )  # fmt: skip
    write_pairs(folder, [pairs_to_batch(pairs)])


def run_arm(name: str, config: Config, run: Path, folder: Path, *, num_steps: int) -> None:
    """Build, train and examine one arm."""
    _, changes = ARMS[name]
    config = adjust(config, changes, num_steps=num_steps)
    experience, pairs = run / "round-1" / "experience", run / "round-1" / "pairs"
    if name == "noise":
        pairs = folder / "pairs"
        write_noisy_pairs(experience, pairs, seed=config.seed)
        config = adjust(config, {"tokens": {"experience": [str(experience)]}}, num_steps=num_steps)
    elif "pairs" in changes:
        pairs = folder / "pairs"
        build_pairs([pw.Table(experience)], pairs, pair_options(config))
    pw.train(
        config=config,
        model=str(config.model),
        output=folder / "train",
        pairs=pairs,
        experience=experience,
        reference_cache=run / "round-1" / "reference",
        resume=(folder / "train" / "train.json").exists(),
    )
    play_holdout(config, str(folder / "train" / "model"), folder / "exam", resume=True, base=HERE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and examine the arms of the ablation.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arms", default=",".join(ARMS))
    words = parser.parse_args()
    config = load_config(words.run / "config.yaml")
    num_steps = read_status(words.run / "round-1" / "train").step
    before = holdout_scores(config, words.run / "round-1" / "evaluation" / "before")
    exams: dict[str, Scores] = {"both": holdout_scores(config, words.run / "round-1" / "evaluation" / "after")}
    for name in words.arms.split(","):
        folder = words.folder / name
        if name != "both":
            if not (folder / "done.json").exists():
                print(f"{name}: started", file=sys.stderr, flush=True)
                run_arm(name, config, words.run, folder, num_steps=num_steps)
                write_json(folder / "done.json", {"arm": name, "updates": num_steps})
            exams[name] = holdout_scores(config, folder / "exam")

    num_tasks = len(before.column("success"))
    print(f"{num_steps} updates each; success on the same {num_tasks} held-out tasks; 95% intervals.\n")
    print("| arm | what | success | against the base model | against `both` |")
    print("|---|---|---|---|---|")
    for name, scores in exams.items():
        cells = [show_difference(start, scores, seed=config.seed) for start in (before, exams["both"])]
        mean = sum(scores.column("success").values()) / len(scores.column("success"))
        print(f"| `{name}` | {ARMS[name][0]} | {mean:.1%} | {cells[0]} | {cells[1] if name != 'both' else ''} |")


def show_difference(before: Scores, after: Scores, *, seed: int) -> str:
    difference = compare(before, after, Metric("success"), CompareOptions(seed=seed)).difference
    low, high = difference.low or 0.0, difference.high or 0.0
    return f"{100 * difference.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    main()
