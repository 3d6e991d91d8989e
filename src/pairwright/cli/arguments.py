"""Arguments of the command line (values that the shell completes, paths that may be addresses), and how help looks.

Completed names stand in the code's own tables, loaded when they are asked for.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperGroup

from pairwright.cli.short_help import HELP_NAMES, shorten_help
from pairwright.errors import ConfigError

_Completer = Callable[[str], list[str]]


def complete_words(*words: str) -> _Completer:
    """A completion of fixed words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def complete_choices(key: str) -> _Completer:
    """A completion of the values that a key of the configuration takes, such as `backend.name`."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in _choices_of(key) if word.startswith(incomplete)]

    return complete


def complete_target(incomplete: str) -> list[str]:
    """Names for `export --to`."""
    from pairwright.export import EXPORTERS

    return [name for name in (*EXPORTERS, "tokens") if name.startswith(incomplete)]


def complete_format(incomplete: str) -> list[str]:
    """Names for `import --format`."""
    from pairwright.sources import READERS

    return [name for name in ("auto", *READERS) if name.startswith(incomplete)]


def complete_names(*names: str) -> _Completer:
    """A completion of comma-separated names, each at most once."""

    def complete(incomplete: str) -> list[str]:
        # only the last name is completed; those before it are not offered again
        before, comma, last = incomplete.rpartition(",")
        rest = [name for name in names if name not in before.split(",")]
        return [before + comma + name for name in rest if name.startswith(last)]

    return complete


def complete_override(incomplete: str) -> list[str]:
    """`KEY=` for `--set`, and after the equals sign the values that the key takes."""
    from pairwright.config.config_file import iterate_keys

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _choices_of(key) if choice.startswith(value)]
    return [f"{name}=" for name in iterate_keys() if name.startswith(incomplete)]


def _choices_of(key: str) -> list[str]:
    """The words that a key takes: literals of its type, or names of a registry; none for numbers and free text."""
    from pairwright.config.backend_config import BACKEND_NAMES
    from pairwright.config.config_file import field_of
    from pairwright.config.pairs_config import STRATEGY_NAMES
    from pairwright.config.train_config import PREFERENCE_LOSS_NAMES

    # Keys that also take code of the user, so that their type is not a list of literals.
    names = {"train.dpo.loss": PREFERENCE_LOSS_NAMES, "pairs.strategy": STRATEGY_NAMES, "backend.name": BACKEND_NAMES}
    if key in names:
        return list(names[key])

    try:
        annotation = field_of(key).annotation
    except KeyError:
        return []
    return ["true", "false"] if annotation is bool else list(literals_of(annotation))


def literals_of(annotation: Any) -> Iterator[str]:
    """The words that a type allows, as `Literal` has them."""
    # literals may be nested in unions and tuples
    for choice in get_args(annotation):
        if isinstance(choice, str):
            yield choice
        else:
            yield from literals_of(choice)


PLACE = "<path>"  # what help calls a local path or an address; the text becomes one by `pairwright.paths.paths`
_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/].*", re.S)  # what pathlib makes of scheme://...


def refuse_addresses(params: dict[str, Any], name: str) -> None:
    """Raise ConfigError for an address among the arguments of a command where it takes a local path."""
    for param, value in params.items():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and _MANGLED.fullmatch(str(path)):
                raise ConfigError(_refusal(str(path), f"pairwright {name}", param))


def _refusal(text: str, name: str, param: str) -> str:
    from pairwright.paths import place

    return (
        f"{place(text.replace(':/', '://', 1))}: an address, but `{name}` takes its {param.replace('_', ' ')} only on "
        "this machine: copy it to a folder here and name that (docs: Scale)"
    )


# How help looks: groups with a default command, commands in the order of the flow, and plain names of types.
#
# `tokens DIR` is `tokens build DIR`, `evaluate A B` is `evaluate compare A B`; the help of such a group is that of
# its default command, with the other commands below.


# Groups of commands.


class GroupWithDefault(TyperGroup):
    """`default` is the command unless the first word names another one, or asks for help."""

    default = "build"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", *HELP_NAMES):
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
        """Commands of the group, and the options of the default one."""
        items = super().shell_complete(ctx, incomplete)
        names = {item.value for item in items}
        others = self.commands[self.default].shell_complete(ctx, incomplete)
        return [*items, *(item for item in others if item.value not in names)]


class GroupWithBuild(GroupWithDefault):
    """`build` is the default command."""


class GroupWithCompare(GroupWithDefault):
    """`compare` is the default command."""

    default = "compare"


class GroupInOrder(TyperGroup):
    """Commands in the order in which `order` names them; Typer lists groups after all other commands."""

    order: tuple[str, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=self.order.index)


class _Page(TyperGroup):
    """A group that is never run: only what its help shows."""

    usage: list[str]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return self.usage


# Names of types: `<text>`, `<int>`, `<path>`, the choices of a word, and nothing for a switch.

_PLAIN = {"<str>": "<text>", "<int range>": "<int>", "<float range>": "<float>"}
_Format = Callable[[Any, Any], None]


def simplify_help(command: Any, name: str = "") -> None:
    """Let the help of a command, and of all commands below it, name types plainly and leave out options that few people
    need (short_help.py); costs nothing until it is shown."""
    command.format_help = _with_plain_help(command, name, command.format_help)
    if isinstance(command, TyperGroup):
        default = command.default if isinstance(command, GroupWithDefault) else ""
        for child_name, child in command.commands.items():
            simplify_help(child, name if child_name == default else f"{name} {child_name}".strip())


def _with_plain_help(command: Any, name: str, format_help: _Format) -> _Format:
    def format_plainly(ctx: Any, formatter: Any) -> None:
        children = command.commands.values() if isinstance(command, GroupWithDefault) else ()
        for member in (command, *children):  # the help of a group with a default command has that one's options
            for param in member.get_params(ctx):
                param.display_type_rich = _constant(_plain_type(param, ctx))
        shown = command.commands[command.default] if isinstance(command, GroupWithDefault) else command
        with shorten_help(name, shown) as more:
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


def _constant(text: str) -> Callable[..., str]:
    return lambda ctx: text
