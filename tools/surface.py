"""Size of the user interface: the number of commands, groups, options and configuration keys.

python -m tools.surface           the counts
python -m tools.surface --list    every option with its command
"""

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from typer.core import TyperGroup
from typer.main import get_command

from pairwright.cli.main import app
from pairwright.config import Config


def walk_commands(command: Any, name: str = "pairwright") -> Iterator[tuple[str, Any]]:
    yield name, command
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            yield from walk_commands(child, f"{name} {word}")


def list_options(command: Any) -> list[str]:
    return [param.opts[0] for param in command.params if param.param_type_name == "option" and param.name != "help"]


def list_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of the values of a configuration, without sections."""
    keys = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += list_keys(kind, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def main() -> None:
    commands = [(name, command) for name, command in walk_commands(get_command(app)) if name != "pairwright"]
    options = [(name, option) for name, command in commands for option in list_options(command)]
    if "--list" in sys.argv:
        for name, option in options:
            print(f"{name} {option}")
    print(f"{len(commands)} commands and groups, {len(options)} options, {len(list_keys(Config))} configuration keys")


if __name__ == "__main__":
    main()
