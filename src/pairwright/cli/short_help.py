"""Short help: for commands with many options, `--help` shows the dozen most common ones, `--help-all` all of them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HELP_NAMES = ["--help", "--help-all"]
# Commands that are not listed here show all their options.
ESSENTIAL = {
    "import": ("output", "format", "reward", "map", "task", "run", "scores", "update", "redact", "workers",
               "set", "json"),
    "pairs": ("output", "strategy", "min-gap", "within", "score", "votes", "where", "validation", "max-pairs-per-task",
              "near-duplicates", "seed", "config", "set", "json"),
    "tokens": ("tokenizer", "output", "max-length", "truncation", "train-turns", "chat-template", "tools-as-text",
               "allow-dropped", "workers", "config", "set", "json"),
    "train": ("model", "output", "pairs", "experience", "tokens", "config", "set", "epochs", "learning-rate",
              "batch-size", "loss", "lora", "resume", "json"),
    "evaluate": ("output", "metric", "min-improvement", "min-tasks", "confidence", "missing", "config", "set", "json"),
}  # fmt: skip


@contextmanager
def shorten_help(name: str, command: Any) -> Iterator[str]:
    """Hide rare options while help is shown; yields a line that counts them, "" if none is hidden."""
    others = [
        param
        for param in command.params
        if name in ESSENTIAL
        and param.param_type_name == "option"
        and not param.hidden
        and not {text.lstrip("-") for text in param.opts}.intersection(ESSENTIAL[name])
    ]
    is_short = "--help-all" not in sys.argv
    for param in others:
        param.hidden, param.rich_help_panel = is_short, "More options"
    try:
        yield f"{len(others)} more options: pairwright {name} --help-all" if others and is_short else ""
    finally:
        for param in others:
            param.hidden = False
