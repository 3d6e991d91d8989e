"""A group of commands with one that is meant when none is named: `tokens DIR` is `tokens build DIR`."""

from typing import Any

from typer.core import TyperGroup


class GroupWithBuild(TyperGroup):
    """`build` is the command unless the first word names another one, or asks for help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["build", *args]
        return super().parse_args(ctx, args)
