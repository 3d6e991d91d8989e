"""`pairwright config schema|validate|show`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pairwright.cli.output import print_json, say
from pairwright.cli.overrides import Overrides, WithOverrides, pairs_of

app = typer.Typer(
    help="Look at a configuration: its schema, whether it is valid, what it resolves to.", no_args_is_help=True
)
File = Annotated[Path | None, typer.Argument(help="A YAML file; without it the defaults.", show_default=False)]
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

    load_config(file, overrides=pairs_of(override))
    say(f"{file or 'the defaults'}: valid")


@app.command(cls=WithOverrides)
def show(file: File = None, override: Overrides = None, as_json: AsJson = False) -> None:
    """Print the resolved configuration. Values from the environment stand as ${VAR}, never in clear."""
    from pairwright.config import shown_config

    resolved = shown_config(file, overrides=pairs_of(override))
    if as_json:
        print_json(resolved)
    else:
        print(_as_yaml(resolved), end="")


def _as_yaml(value: Any) -> str:
    from io import StringIO

    from ruamel.yaml import YAML

    stream = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(value, stream)
    return stream.getvalue()
