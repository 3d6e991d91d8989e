"""How help looks: groups with a default command, plain names of types, few options.

`tokens DIR` is `tokens build DIR`, `evaluate A B` is `evaluate compare A B`; the help of such a group is that of its
default command, with the other commands below. For commands with many options, `--help` shows the dozen most common
ones, `--help-all` all of them.
"""

import difflib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup

from pairwright.errors import ConfigError

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
# Names of types in help: the choices of an option, and nothing for a switch.
_PLAIN = {"<str>": "<text>", "<int range>": "<int>", "<float range>": "<float>"}


class GroupWithDefault(TyperGroup):
    """A group whose default command is `build`: used unless the first word names another command or asks for help."""

    default = "build"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", *HELP_NAMES):
            near = difflib.get_close_matches(args[0], self.commands, n=1)
            if near and not os.path.exists(args[0]):
                raise ConfigError(f"{args[0]}: no such command, file or folder. Did you mean {near[0]!r}?")
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        default = self.commands[self.default]
        usage = [piece for piece in default.collect_usage_pieces(ctx) if piece != default.options_metavar]
        page = _Page(
            name=self.name,
            commands=dict(self.commands),
            params=[*default.params, self.get_help_option(ctx)],
            add_help_option=False,
            help=f"{self.help}\n\nWithout the name of a command, {self.default} is meant: {default.help}",
            rich_markup_mode=self.rich_markup_mode,
            epilog=self.epilog,
        )
        page.usage = ["[OPTIONS]", *usage]
        page.format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        items = super().shell_complete(ctx, incomplete)
        names = {item.value for item in items}
        others = self.commands[self.default].shell_complete(ctx, incomplete)
        return [*items, *(item for item in others if item.value not in names)]


class GroupWithCompare(GroupWithDefault):
    default = "compare"


class _Page(TyperGroup):
    """A group that only renders help and is never run."""

    usage: list[str]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return self.usage


def simplify_help(command: Any, name: str = "") -> None:
    """Let the help of a command and its subcommands show plain type names and hide rarely used options.
    The work is done only when help is shown."""
    command.format_help = _with_plain_help(command, name, command.format_help)
    if isinstance(command, TyperGroup):
        default = command.default if isinstance(command, GroupWithDefault) else ""
        for child_name, child in command.commands.items():
            simplify_help(child, name if child_name == default else f"{name} {child_name}".strip())


def _with_plain_help(command: Any, name: str, format_help: Callable[..., None]) -> Callable[..., None]:
    def format_plainly(ctx: Any, formatter: Any) -> None:
        children = command.commands.values() if isinstance(command, GroupWithDefault) else ()
        for member in (command, *children):  # the help of a group with a default command has that one's options
            for param in member.get_params(ctx):
                text = _plain_type(param, ctx)
                param.display_type_rich = lambda ctx, text=text: text
        shown = command.commands[command.default] if isinstance(command, GroupWithDefault) else command
        with _shorten_help(name, shown) as more:
            command.epilog = more or command.epilog
            format_help(ctx, formatter)

    return format_plainly


def _plain_type(param: Any, ctx: Any) -> str:
    if getattr(param, "is_flag", False):
        return ""
    name: str = param.display_type_rich(ctx=ctx) or ""
    if name.startswith("<list[") and name.endswith("]>"):  # an option to repeat: the type of one value
        name = f"<{name[len('<list[') : -len(']>')]}>"
    return _PLAIN.get(name, name)


@contextmanager
def _shorten_help(name: str, command: Any) -> Iterator[str]:
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
