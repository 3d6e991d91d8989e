"""`pairwright config schema|validate|show|from-nat`."""

from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.arguments import AsJson, Overwrite
from pairwright.cli.output import print_json, say
from pairwright.cli.overrides import ConfigCommand, Overrides, load_settings, parse_overrides
from pairwright.errors import ConfigError

app = typer.Typer(
    help="Look at a configuration: its schema, whether it is valid, what it resolves to.", no_args_is_help=True
)
File = Annotated[Path | None, typer.Argument(help="A YAML file; without it the defaults.", show_default=False)]


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration (for editors and other tools)."""
    import json

    from pairwright.config import config_schema

    print(json.dumps(config_schema(), indent=2, ensure_ascii=False))


@app.command(cls=ConfigCommand)
def validate(file: File = None, override: Overrides = None) -> None:
    """Check a configuration; exit code 3 and one line if it is not valid."""
    load_settings(file, override)
    say(f"{file or 'the defaults'}: valid")


@app.command(cls=ConfigCommand)
def show(
    file: File = None,
    override: Overrides = None,
    comments: Annotated[
        bool, typer.Option("--comments", help="Write a comment above each key: its meaning and allowed values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the resolved configuration: every key with its value. Values from the environment are shown as ${VAR}.

    pairwright config show --comments > config.yaml  writes a file of all keys to start from.
    """
    from pairwright.config import Config, printable_config
    from pairwright.config.key_comments import to_commented_yaml, to_yaml

    if comments and as_json:
        raise ConfigError("JSON has no comments: leave out --comments or --json")
    resolved = printable_config(file, overrides=parse_overrides(override))
    if as_json:
        print_json(resolved)
    else:
        print(to_commented_yaml(resolved, Config) if comments else to_yaml(resolved), end="")


@app.command("from-nat")
def from_nat(
    file: Annotated[Path, typer.Argument(help="A NeMo Agent Toolkit configuration with finetuning.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write; else stdout.")] = None,
    overwrite: Overwrite = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 2 if a key could not be mapped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a NeMo Agent Toolkit finetuning configuration to ours; unmapped keys are listed on stderr."""
    from dataclasses import asdict

    from pairwright.config.from_nat import from_nat as convert
    from pairwright.config.from_nat import read_nat
    from pairwright.config.key_comments import to_yaml
    from pairwright.paths import write_bytes

    tree = read_nat(file)
    try:
        conversion = convert(tree)
    except ConfigError as error:
        # the conversion does not know the name of the file
        raise ConfigError(f"{file}: {error}") from None
    if output is not None:
        if output.exists() and not overwrite:
            raise ConfigError(f"{output}: exists already: choose another name, or --overwrite")
        write_bytes(output, to_yaml(conversion.tree).encode(), error=ConfigError)
    if as_json:
        unmapped = [asdict(entry) for entry in conversion.unmapped]
        print_json({"config": conversion.tree, "unmapped": unmapped, "set": conversion.to_set})
    elif output is None:
        print(to_yaml(conversion.tree), end="")
    for entry in conversion.unmapped:
        say(f"not mapped: {entry.key}: {entry.reason}")
    where = "" if output is None else f"{output}: "
    following = f"; set {', '.join(conversion.to_set)}" if conversion.to_set else ""
    check = "" if output is None else f"; then: pairwright config validate {output}"
    say(f"{where}{conversion.num_mapped} keys mapped, {len(conversion.unmapped)} not{following}{check}")
    if strict and conversion.unmapped:
        raise typer.Exit(2)
