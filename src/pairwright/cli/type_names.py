"""Types as help names them: `<text>`, `<int>`, `<path>`, the choices of a word, and nothing for a switch."""

from collections.abc import Callable
from typing import Any

from typer.core import TyperGroup

from pairwright.cli.groups import GroupWithDefault

_PLAIN = {"<str>": "<text>", "<int range>": "<int>", "<float range>": "<float>"}
_Format = Callable[[Any, Any], None]


def name_types_plainly(command: Any) -> None:
    """Let the help of a command, and of all commands below it, name types plainly; costs nothing until it is shown."""
    command.format_help = _with_plain_types(command, command.format_help)
    if isinstance(command, TyperGroup):
        for child in command.commands.values():
            name_types_plainly(child)


def _with_plain_types(command: Any, format_help: _Format) -> _Format:
    def format_plainly(ctx: Any, formatter: Any) -> None:
        children = command.commands.values() if isinstance(command, GroupWithDefault) else ()
        for shown in (command, *children):  # the help of a group with a default command has that one's options
            for param in shown.get_params(ctx):
                param.display_type_rich = _constant(_plain_type(param, ctx))
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
