"""`pairwright init DIR`: a new project."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pairwright.cli.arguments import AsJson
from pairwright.cli.output import print_json, say


def init_project(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    template: Annotated[
        Literal["chat", "tools", "openai-sdk", "traces", "nat"],
        typer.Option(
            help="chat: one question, several answers. tools: an agent with tools. openai-sdk: your existing agent. "
            "traces: your existing data. nat: from NeMo Agent Toolkit."
        ),
    ] = "chat",
    as_json: AsJson = False,
) -> None:
    """Create a small project that is ready to run: configuration, workflow, scorer, tasks, README."""
    from pairwright.flow.example import create_project, read_commands

    names = create_project(folder, template)
    commands = read_commands((folder / "README.md").read_text(encoding="utf-8"))
    if as_json:
        print_json({"folder": str(folder), "template": template, "files": names, "commands": commands})
    say(f"{folder}: {', '.join(names)}")
    say("Next:")
    for command in (f"cd {folder}", *commands):
        say(f"  {command}")
