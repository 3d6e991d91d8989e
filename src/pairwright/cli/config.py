"""`pairwright config schema|validate|show`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pairwright.cli.output import print_json, say
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


app = typer.Typer(
    help="Look at a configuration: its schema, whether it is valid, what it resolves to.", no_args_is_help=True
)
File = Annotated[Path | None, typer.Argument(help="A YAML file; without it the defaults.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--override", "-o", metavar="KEY VALUE", help="Set one key, e.g. -o sources.format nat."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration (for editors and other tools)."""
    from pairwright.config import config_schema

    print_json(config_schema())


@app.command(cls=WithOverrides)
def validate(file: File = None, override: Overrides = None) -> None:
    """Check a configuration; exit code 3 and one line if it is not valid."""
    from pairwright.config import load_config

    load_config(file, overrides=_pairs(override))
    say(f"{file or 'the defaults'}: valid")


@app.command(cls=WithOverrides)
def show(file: File = None, override: Overrides = None, as_json: AsJson = False) -> None:
    """Print the resolved configuration. Values from the environment stand as ${VAR}, never in clear."""
    from pairwright.config import shown_config

    resolved = shown_config(file, overrides=_pairs(override))
    if as_json:
        print_json(resolved)
    else:
        print(_as_yaml(resolved), end="")


def _pairs(joined: list[str] | None) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (word.partition("=") for word in joined or [])]


def _as_yaml(value: Any) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    stream = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(value, stream)
    return stream.getvalue()
