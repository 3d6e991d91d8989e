"""`-o KEY VALUE`: single keys of the configuration on the command line."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pairwright.errors import ConfigError


class WithOverrides(TyperCommand):
    """A command whose `-o KEY VALUE` takes two words, which Typer's options cannot: they are joined before parsing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined, words = [], iter(args)
        for word in words:
            if word in ("-o", "--override"):
                key, value = next(words, ""), next(words, None)
                if value is None:
                    raise ConfigError(f"-o {key}: expected a key and a value, e.g. -o sources.format nat")
                joined += ["--override", f"{key}={value}"]
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


Overrides = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="KEY VALUE", help="Set one key, e.g. -o sources.format nat."),
]


def pairs_of(joined: list[str] | None) -> list[tuple[str, str]]:
    """Keys and values, as `load_config` takes them."""
    return [(key, value) for key, _, value in (word.partition("=") for word in joined or [])]
