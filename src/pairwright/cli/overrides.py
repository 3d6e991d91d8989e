"""Keys of the configuration on the command line as `KEY=VALUE` words, also after --set.

    pairwright run config.yaml train.epochs=2 -o runs/short

Keys are absolute. A word is an override or a path; a word that could be both is refused.
"""

import glob
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from pairwright.cli.arguments import complete_override
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.config import Config

FLAGS = "pairwright.flags"  # where the context keeps what derived options set
# A dotted key; parts after the first may have dashes
_KEY = r"[A-Za-z_]\w*(?:\.[\w-]+)*"
# Group 1 is the key; a value may span lines
_OVERRIDE = re.compile(rf"({_KEY})=.*", re.S)

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one key of the configuration, e.g. train.epochs=2; repeat. --set may be left out.",
        autocompletion=complete_override,
    ),
]


class ConfigCommand(TyperCommand):
    """A command that takes a configuration: KEY=VALUE words are passed to `--set` before parsing."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [param for param in self.params if param.param_type_name == "option"]
        with_value = {name for param in options if not param.is_flag and not param.count for name in param.opts}
        joined: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":  # what follows are arguments
                joined += [word, *words]
            elif word in with_value:  # the next word is its value
                joined += [word, *islice(words, 1)]
            # completion must not fail or access files
            elif not word.startswith("-") and _is_override(word, is_checked=not ctx.resilient_parsing):
                joined += ["--set", word]
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


def parse_overrides(words: Iterable[str] | None) -> list[tuple[str, str]]:
    """Keys and values for `load_config`."""
    pairs = []
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: got {word!r}, expected KEY=VALUE, e.g. --set train.epochs=2")
        pairs.append((key, value))
    return pairs


def set_flags(ctx: typer.Context) -> dict[str, tuple[str, Any]]:
    """The derived options that were set on the command line, as key: (option, value)."""
    flags: dict[str, tuple[str, Any]] = ctx.meta[FLAGS]
    return flags


def load_settings(
    file: Path | None, words: list[str] | None, flags: Mapping[str, tuple[str, Any]] | None = None
) -> "Config":
    """The configuration of a command, from its --config, its KEY=VALUE words and its derived options (`set_flags`)."""
    from pairwright.config import load_config

    return load_config(file, overrides=parse_overrides(words), flags=flags)


def _is_override(word: str, *, is_checked: bool) -> bool:
    """Whether a word among the arguments sets a key. Folders of datasets may be called `date=2026-01-01`."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or not is_checked:
        return match is not None
    from pairwright.config.config_tree import explain_unknown, is_top_key

    key = match[1]
    # lexists, because a broken link is also a path
    is_path = os.path.lexists(word) or (glob.has_magic(word) and any(True for _ in glob.iglob(word, recursive=True)))
    if is_path and is_top_key(key):
        raise ConfigError(f"{word}: a path and an override: write ./{word} for the path, or --set {shlex.quote(word)}")
    if not is_path and not is_top_key(key):
        raise ConfigError(f"{word}: no such file, and as an override: {explain_unknown(key)}")
    return not is_path
