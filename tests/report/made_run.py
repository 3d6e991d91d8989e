"""A whole run made by code, small but with every stage: for tests of the report."""

import json
import math
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pairwright import EID, Experience, Message, Table
from pairwright.config import TokensConfig
from pairwright.evaluation import Gate, Metric, evaluate, scores_of, write_evaluation
from pairwright.pairs import PairOptions, build_pairs
from pairwright.tokens.stage.stage import encode_source

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ORDERS = {"A17": "shipped", "B03": "delayed by nine days", "C88": "delivered", "D41": "waiting for payment"}
GUESSES = ("It is on its way.", "Tomorrow, I think.", "I do not know; please call the shop.")


def make_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer with ChatML, as a model's folder has it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir(parents=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return folder


def make_experiences(num_tasks: int = 24, *, odd: str = "") -> list[Experience]:
    """Candidates of a support agent; `odd` is put into prompts, answers and task names."""
    draw = random.Random(3)
    rows = []
    for task in range(num_tasks):
        order, status = list(ORDERS.items())[task % len(ORDERS)]
        prompt = [
            Message("system", "You answer customers of a shop. Look the order up before you answer."),
            Message("user", f"Hello! Where is my order {order}? (ticket {task}) {odd}"),
        ]
        for run in range(4):
            knows = draw.random() < 0.5
            text = (
                f"Thank you for asking. Order {order} is {status}."
                if knows
                else f"Thank you for asking. {draw.choice(GUESSES)}"
            )
            reward = round((0.7 if knows else 0.1) + draw.random() * 0.2, 2)
            rows.append(
                Experience(
                    eid=EID("b", f"ticket {task}{odd}", run, 0, "s"), kind="single_turn", prompt=prompt,
                    completion=[Message("assistant", text + odd)], reward=None if draw.random() < 0.05 else reward,
                )
            )  # fmt: skip
    return rows


def make_metrics(path: Path, num_steps: int = 120, *, falling: bool = False) -> None:
    draw = random.Random(5)
    with path.open("w") as file:
        for step in range(1, num_steps + 1):
            share = step / num_steps
            row = {
                "step": step, "epoch": share, "loss": 0.2 + 0.49 * math.exp(-4 * share) + draw.gauss(0, 0.02),
                "learning_rate": 5e-6 * (1 - share), "grad_norm": 1 + draw.random(), "tokens_per_second": 900 + 50 * draw.random(),
                "rewards/chosen": 0.4 * share, "rewards/rejected": -1.1 * share, "rewards/margins": 1.5 * share + draw.gauss(0, 0.05),
                "rewards/accuracies": min(1.0, 0.5 + 0.45 * share + draw.gauss(0, 0.03)),
                "logps/chosen": -20 + (-6 if falling else 4) * share + draw.gauss(0, 0.4), "logps/rejected": -21 - 11 * share + draw.gauss(0, 0.4),
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")
            if step % 30 == 0:
                file.write(
                    json.dumps(
                        {
                            "step": step,
                            "eval_loss": row["loss"] + 0.05,
                            "eval_rewards/accuracies": row["rewards/accuracies"] - 0.04,
                        }
                    )
                    + "\n"
                )


def make_evaluation(folder: Path, *, gain: float = 0.3, odd: str = "") -> None:
    draw = random.Random(9)
    rows: tuple[list, list] = ([], [])
    for task in range(60):
        level = draw.random() * 0.6
        for side, value in zip(rows, (level, level + gain + draw.gauss(0, 0.25)), strict=True):
            score = round(min(1.0, max(0.0, value)), 2)
            side.append(
                (f"row {task}", {"task": f"held out {task}{odd}", "score": score, f"lost{odd}": int(score < 0.25)})
            )
    before, after = (
        scores_of(side, source=name) for side, name in zip(rows, ("the old model", "the new model"), strict=True)
    )
    metrics = [Metric("score"), Metric(f"lost{odd}", "lower")]
    write_evaluation(folder, evaluate(before, after, metrics=metrics, gate=Gate(min_improvement=0.05)))


def make_run(folder: Path, *, odd: str = "", falling: bool = False) -> Path:
    """A run's folder with all stages."""
    folder.mkdir(parents=True)
    with Table(folder / "experience") as table:
        table.append(make_experiences(odd=odd))
    build_pairs([Table(folder / "experience")], folder / "pairs", PairOptions(min_gap=0.1, validation=0.1))
    tokenizer = make_tokenizer(folder / "model")
    encode_source(folder / "pairs", folder / "tokens", TokensConfig(tokenizer=str(tokenizer)), num_workers=1)
    make_metrics(folder / "metrics.jsonl", falling=falling)
    make_evaluation(folder, odd=odd)
    (folder / "train.json").write_text(json.dumps({"state": "completed", "step": 120, "num_steps": 120}))
    (folder / "config.yaml").write_text(
        f"name: support\nseed: 0\nevaluate:\n  gate: {{min_improvement: 0.05}}\n# {odd}\n"
    )
    manifest = {
        "versions": {"pairwright": "0.1.0", "python": "3.11.2", "torch": "2.13.0"},
        "seed": 0,
        "inputs": {"experience": "9f2c"},
        "note": odd,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
