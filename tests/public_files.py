"""The files that examples of the public functions name: traces, scores, a tiny model, and a run's folders."""

import json
import os
from pathlib import Path

import pairwright as pw
from training.made_runs import make_model

COLOURS = ("red", "green", "blue", "yes")


def make_traces(folder: Path) -> None:
    """Two answers to each of four questions, one of them right."""
    (folder / "traces").mkdir(parents=True)
    for name, answers in (("good", COLOURS), ("bad", COLOURS[::-1])):
        with open(folder / "traces" / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for number, (colour, answer) in enumerate(zip(COLOURS, answers, strict=True)):
                prompt = {"role": "user", "content": f"say {colour}"}
                messages = [prompt, {"role": "assistant", "content": f"it is {answer}"}]
                row = {
                    "messages": messages,
                    "task_id": number,
                    "run": int(name == "bad"),
                    "score": float(name == "good"),
                }
                file.write(json.dumps(row) + "\n")


def make_scores(folder: Path) -> None:
    (folder / "scores").mkdir()
    for name, rewards in (("before", (0, 0, 0, 1)), ("after", (1, 1, 1, 1))):
        rows = [f"{task},{reward}" for task, reward in enumerate(rewards)]
        (folder / "scores" / f"{name}.csv").write_text("\n".join(["task,reward", *rows]) + "\n")


def make_public_files(folder: Path) -> None:
    """Everything, made with the public functions themselves."""
    make_traces(folder)
    make_scores(folder)
    make_model(folder / "models" / "tiny")
    before = Path.cwd()
    os.chdir(folder)
    try:
        table = pw.import_traces("traces/*.jsonl", "runs/first/experience")
        table.pairs(strategy="best-worst").encode("models/tiny", workers=1)
    finally:
        os.chdir(before)
